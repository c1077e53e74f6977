"""Happens-before: which work is ordered with which, by what, and how surely."""
