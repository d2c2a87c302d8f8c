#!/usr/bin/env python3
"""Fetch the checkpoint from which a workflow's run resumes, unless it is on this machine already."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_fetch import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
