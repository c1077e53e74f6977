"""Hooks and patches of `instrumented_runtime` in a server's processes, as seen from outside."""
