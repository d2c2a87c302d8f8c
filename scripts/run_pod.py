#!/usr/bin/env python3
"""Run one pod of a job: train, and on the first node store and prove the run when it is done."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.pod import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
