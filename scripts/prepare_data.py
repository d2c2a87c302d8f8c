#!/usr/bin/env python3
"""Prepare the training data: find the files, hold some out for validation, write the tokens."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.prepare import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
