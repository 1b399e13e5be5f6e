"""Ours beside the limit, in one command: `python -m benchmarks`."""
