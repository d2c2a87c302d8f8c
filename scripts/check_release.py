#!/usr/bin/env python3
"""Check that a tag may be released: the same version everywhere, dated notes, a commit of the main branch."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_check_release import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
