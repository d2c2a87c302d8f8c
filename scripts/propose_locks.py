#!/usr/bin/env python3
"""Propose new locks as a pull request."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_propose_locks import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
