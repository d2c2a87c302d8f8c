#!/usr/bin/env python3
"""Show and change training jobs on a cluster: state, cause of failure, logs and events."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.job import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
