#!/usr/bin/env python3
"""Check configurations and report every problem with its line; in GitHub Actions also as an annotation."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.check_configs import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
