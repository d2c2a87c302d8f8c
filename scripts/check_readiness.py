#!/usr/bin/env python3
"""Check within seconds what is otherwise first used after training."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.doctor import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
