#!/usr/bin/env python3
"""Remove checkpoints from a store by rule."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.prune_artifacts import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
