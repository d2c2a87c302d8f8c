#!/usr/bin/env python3
"""Find a proven run of the same commit, configuration and data in the store."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_proven import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
