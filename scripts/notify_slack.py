#!/usr/bin/env python3
"""Post the state of a run to Slack, in one thread per lineage."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.notify import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
