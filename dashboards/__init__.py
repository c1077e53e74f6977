"""The interactive app over tracekit runs; it draws and computes nothing."""
