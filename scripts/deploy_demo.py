#!/usr/bin/env python3
"""Show a job on a real cluster made for it: two nodes and two pods train, store and prove a run."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.deploy_demo import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
