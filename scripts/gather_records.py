#!/usr/bin/env python3
"""Copy a run's report and records into a folder of limited size."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_records import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
