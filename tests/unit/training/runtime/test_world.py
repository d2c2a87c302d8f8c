"""The end of a process that has joined a run."""

import os
import sys
from pathlib import Path

import pytest
from tests import warm_start

ENDING = """
import atexit, os, sys, threading
from trainyard.training.runtime.world import end_if_joined, join_world
atexit.register(print, "cleans up")
if sys.argv[1] != "none":
    os.environ |= {"RANK": "0", "WORLD_SIZE": sys.argv[2], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    try:
        with join_world("cpu", sys.argv[1]):
            if sys.argv[3] == "fails":
                raise OSError("an error of this process alone")
    except OSError:
        pass
end_if_joined(7)
os.write(1, b"the interpreter ends\\n")
"""


@pytest.mark.parametrize(
    ("strategy", "outcome", "code", "output"),
    [("single", "", 0, "the interpreter ends\ncleans up\n"), ("fsdp", "fails", 7, "cleans up\n")],
)
def test_the_interpreter_of_a_process_that_had_a_group_does_not_end(
    tmp_path: Path, strategy: str, outcome: str, code: int, output: str
) -> None:
    """Its end would now and then abort a process whose training was done."""
    (tmp_path / "ending.py").write_text(ENDING)
    command = [sys.executable, str(tmp_path / "ending.py"), strategy, "1", outcome]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = warm_start.run(command, env=environment, timeout=100)
    assert (done.returncode, done.stdout) == (code, output), done.stderr
