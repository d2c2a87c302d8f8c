#!/usr/bin/env python3
"""Send a training job to a cluster: check the cluster, plan, apply, and wait for its end if asked to."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.job_deploy import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
