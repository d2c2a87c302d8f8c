#!/usr/bin/env python3
"""Give a stored checkpoint a name (best, production) that restore takes and retention keeps."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.promote_artifact import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
