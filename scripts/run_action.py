#!/usr/bin/env python3
"""Run the pipeline for the action of this repository, with the inputs that a workflow gave it."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_action import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
