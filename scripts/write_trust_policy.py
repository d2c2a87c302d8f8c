#!/usr/bin/env python3
"""Write the trust policy of an AWS role: the jobs of a GitHub repository that may assume it without keys."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.write_trust_policy import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
