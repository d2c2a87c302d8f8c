#!/usr/bin/env python3
"""Find the cause of a failed training in its logs, or say that it is unknown."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.explain import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
