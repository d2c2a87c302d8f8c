#!/usr/bin/env python3
"""Export a run's model as a Hugging Face folder for transformers, vLLM and llama.cpp's converter."""

import sys

from trainyard.command.handler import exit_code_of
from trainyard.commands.export import main

if __name__ == "__main__":
    sys.exit(exit_code_of(main))
