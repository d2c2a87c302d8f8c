#!/usr/bin/env python3
"""List, find and copy checkpoints of any trainer on a cluster, without kubectl."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.job_checkpoints import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
