#!/usr/bin/env python3
"""Find mistakes in the network environment of training: NCCL, EFA and torch variables, and manifests."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.lint_environment import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
