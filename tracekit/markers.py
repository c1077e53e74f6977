"""Markers of the grammar in docs/markers.md, read out of the ranges of any format."""
