#!/usr/bin/env python3
"""List the contents of a store: runs, checkpoints, sizes, age, completeness, and monthly cost."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.list_artifacts import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
