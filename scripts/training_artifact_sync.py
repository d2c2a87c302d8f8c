#!/usr/bin/env python3
"""Store a run's checkpoints, metrics and records, and last a manifest of them."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.store_sync import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
