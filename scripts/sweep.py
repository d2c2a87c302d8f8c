#!/usr/bin/env python3
"""Search over keys of a configuration: train with many values, and report on all runs."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.sweep import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
