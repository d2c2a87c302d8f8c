#!/usr/bin/env python3
"""Check that the store holds what the trainer wrote."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.store_verify import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
