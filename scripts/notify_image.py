#!/usr/bin/env python3
"""Post the state of an image build to Slack, in one thread."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_notify_image import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
