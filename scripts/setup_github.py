#!/usr/bin/env python3
"""Set up a copy of this repository on GitHub, from the push to the first green run, and check every step."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.init_github import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
