#!/usr/bin/env python3
"""Build the files of a release from the commit that is checked out."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.build_release import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
