"""The first lines of a script for a Python whose path may have spaces, as pip writes them."""


def interpreter_line(python: str) -> str:
    """Return lines that a shell and Python read: a `#!` line takes no path with a space."""
    return f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
