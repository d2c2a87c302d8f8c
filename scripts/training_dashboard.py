#!/usr/bin/env python3
"""Report on training runs: as text, JSON, Markdown (the job summary) or one HTML file."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.report import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
