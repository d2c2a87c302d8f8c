#!/usr/bin/env python3
"""Dispatch the next segment of a run that stopped before its last step."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_continue import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
