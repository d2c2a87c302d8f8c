#!/usr/bin/env python3
"""Plan a run before it starts: parameters, memory by part, whether it fits, tokens, time, cost."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.plan import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
