#!/usr/bin/env python3
"""Start a command once on each node of a Ray cluster, with the variables that other operators set."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_ray import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
