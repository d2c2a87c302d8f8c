#!/usr/bin/env python3
"""Restore a stored run: all of it, one checkpoint, the newest that verifies, or only its records."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.store_restore import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
