#!/usr/bin/env python3
"""Publish a built release on GitHub with `gh`: a draft first, public once every file is there."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.publish_release import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
