#!/usr/bin/env python3
"""Build training images, in AWS or here, where their content is new."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.image_build import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
