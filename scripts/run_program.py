#!/usr/bin/env python3
"""Run another training program on one node of a job, and keep a run directory for it."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_program import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
