"""Real programs on a real pseudo-terminal."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.gateways.pseudo_terminal import Recording, record

pytestmark = pytest.mark.process

SIZE = "import os, sys; print(*os.get_terminal_size(), sys.stdout.isatty(), sys.stderr.isatty())"


def on_terminal(
    *words: str,
    seconds: float = 60,
    cwd: Path | None = None,
    watch: Callable[[bytes], None] = lambda _: None,
) -> Recording:
    environment = {"PATH": os.environ["PATH"]}
    folder = cwd or Path.cwd()
    return record(
        words, columns=72, rows=20, seconds=seconds, cwd=folder, environment=environment, watch=watch
    )


def test_a_program_sees_a_terminal_of_the_size_asked_for() -> None:
    assert on_terminal(sys.executable, "-c", SIZE) == Recording(b"72 20 True True\r\n", 0)


def test_it_runs_in_the_given_folder_and_environment(tmp_path: Path) -> None:
    done = on_terminal("sh", "-c", 'pwd; echo "<$HOME>"', cwd=tmp_path)
    assert done.output.decode().splitlines() == [str(tmp_path), "<>"]


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_exit_code_is_that_of_the_program(code: int) -> None:
    assert on_terminal("sh", "-c", f"exit {code}").exit_code == code


def test_a_signal_is_a_negative_exit_code() -> None:
    assert on_terminal("sh", "-c", "kill -TERM $$").exit_code == -15


def test_a_missing_program_gives_a_result() -> None:
    done = on_terminal("no-such-program")
    assert done.exit_code == 127
    assert b"no-such-program" in done.output


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    began = time.monotonic()
    done = on_terminal("sh", "-c", f"echo first; (sleep 5; touch '{alive}') & sleep 60", seconds=1.5)
    assert done == Recording(b"first\r\n", None)
    assert time.monotonic() - began < 30
    time.sleep(4.5)
    assert not alive.exists()


def test_output_is_passed_on_as_it_arrives() -> None:
    seen: list[bytes] = []
    done = on_terminal("sh", "-c", "echo one; sleep 0.3; echo two", watch=seen.append)
    assert b"".join(seen) == done.output == b"one\r\ntwo\r\n"
    assert len(seen) > 1
