"""The command line. It translates, and decides nothing: each group of commands is a file of its own."""

from holdfast.cli.root import main

__all__ = ["main"]
