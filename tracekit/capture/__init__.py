"""Runs a server under a profiler and keeps what came of it: `lifecycle` is the chain of stages."""
