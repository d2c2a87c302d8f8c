#!/usr/bin/env python3
"""Prove a run: it trained, its network is known, the store holds all of it, and it can be repeated."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.prove import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
