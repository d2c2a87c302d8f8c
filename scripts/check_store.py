#!/usr/bin/env python3
"""Check the settings of a bucket: versions, encryption, aborted uploads, public access."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.check_store import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
