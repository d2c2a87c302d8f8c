#!/usr/bin/env python3
"""Dispatch the next watch of a job on a cluster that has not ended yet."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.continue_watch import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
