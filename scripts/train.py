#!/usr/bin/env python3
"""Train a model into a run directory, or resume the run in it."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.train import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
