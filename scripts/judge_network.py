#!/usr/bin/env python3
"""Judge by the logs of NCCL which network joined the machines of a job."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.network import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
