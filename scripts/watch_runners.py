#!/usr/bin/env python3
"""Watch the GPU runners: report those offline or stuck, cancel orphaned jobs, resume trainings that died."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_watch_runners import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
