#!/usr/bin/env python3
"""Check a cluster before a job is sent: is it ready for the plan, what is free, which nodes are healthy."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.cluster import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
