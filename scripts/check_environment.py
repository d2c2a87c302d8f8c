#!/usr/bin/env python3
"""Check that this machine can run a configuration."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_environment import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
