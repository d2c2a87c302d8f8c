#!/usr/bin/env python3
"""Decide what a training workflow run will do: check its configuration, its inputs and the machine."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_plan import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
