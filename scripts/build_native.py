#!/usr/bin/env python3
"""Build the C++ kernels in native/ with CMake, then their GoogleTest suite, and run it."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.step_native import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
