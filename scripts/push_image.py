#!/usr/bin/env python3
"""Push an image that was built here, read its digest back, scan it, and only then set its tags."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.image_push import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
