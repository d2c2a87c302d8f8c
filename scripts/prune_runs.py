#!/usr/bin/env python3
"""Remove directories of old runs that are proven and stored."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_prune_runs import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
