"""Marks of tests that need something of the machine, the user or the folder."""

import os
import sys

import pytest

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
COMPILES = pytest.mark.skipif(
    " " in sys.prefix, reason="torch cannot compile for a CPU from a folder with a space"
)
IN_ASCII = pytest.mark.skipif(
    not sys.prefix.isascii(), reason="torch cannot be imported from a folder that the language cannot write"
)
