#!/usr/bin/env python3
"""Train on a cluster from GitHub: the steps of `deploy_eks.yml` and `watch_eks.yml`."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_eks import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
