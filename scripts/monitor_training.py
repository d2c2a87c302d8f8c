#!/usr/bin/env python3
"""Watch a run or a job while it trains: progress, cost, checkpoints, network, GPUs, health."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.watch import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
