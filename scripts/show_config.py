#!/usr/bin/env python3
"""Print the resolved configuration: every value, after extending files and --set."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.show_config import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
