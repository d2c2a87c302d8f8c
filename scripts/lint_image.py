#!/usr/bin/env python3
"""Find faults of an image before its build: version conflicts, EFA, user, secrets."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.image_lint import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
