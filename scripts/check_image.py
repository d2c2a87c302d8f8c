#!/usr/bin/env python3
"""Check an image before it is deployed: its packages match its lock, import, and compute correctly."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.image_check import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
