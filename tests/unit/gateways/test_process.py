"""Measured programs: exit code, time limit, memory and environment."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.gateways.process import run_beside

NOTES = """
import pathlib, signal, sys, time
lines = pathlib.Path(sys.argv[1])
def note(word):
    with lines.open("a") as file:
        file.write(word + "\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(note("asked to end")))
note("started")
time.sleep(60)
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def told_to_end_when(file: Path, script: str, companion: list[str]) -> int:
    """The exit code of a process that runs `script` beside `companion`, with SIGTERM once `file` exists."""
    parent = (
        "import sys\n"
        "from trainyard.gateways.process import run_beside\n"
        f"sys.exit(run_beside([sys.executable, '-c', {script!r}], {companion!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    until(file.exists)
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_a_signal_reaches_the_program_and_what_runs_beside_it_ends_after_it(tmp_path: Path) -> None:
    """The last checkpoint is written after the signal, and its uploader must outlive the trainer."""
    lines, ready = tmp_path / "lines", tmp_path / "ready"
    script = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        f"    pathlib.Path({str(lines)!r}).open('a').write('saved\\n')\n"
        "    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"while not pathlib.Path({str(lines)!r}).exists(): time.sleep(0.02)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    assert told_to_end_when(ready, script, [sys.executable, "-c", NOTES, str(lines)]) == 75
    assert lines.read_text().splitlines() == ["started", "saved", "asked to end"]


@pytest.mark.process
def test_what_runs_beside_a_program_is_started_again_and_killed_if_it_does_not_end(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.touch()
    note = f"open({str(starts)!r}, 'a').write('x')"
    waits = f"import os, time\nwhile os.path.getsize({str(starts)!r}) < 3: time.sleep(0.02)\n"
    failing = [sys.executable, "-c", f"{waits}raise SystemExit(3)"]
    assert run_beside(failing, [sys.executable, "-c", note], pause=0.05) == 3
    assert len(starts.read_text()) >= 3

    starts.write_text("")
    deaf = f"import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\n{note}\ntime.sleep(60)"
    begun = time.monotonic()
    done = [sys.executable, "-c", waits.replace("< 3", "< 1")]
    assert run_beside(done, [sys.executable, "-c", deaf], patience=0.5) == 0
    assert time.monotonic() - begun < 120
