#!/usr/bin/env python3
"""Evaluate a checkpoint of a run by the command of its configuration, and record its figures."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
