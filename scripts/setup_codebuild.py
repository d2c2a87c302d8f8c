#!/usr/bin/env python3
"""Set up AWS once for building images with CodeBuild: registry, project, buckets, log group, roles."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.setup_codebuild import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
