"""Measured programs: exit code, time limit, memory and environment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.gateways.checkout import run_script
from trainyard.gateways.process import run_beside, run_measured


def test_the_end_of_the_output_is_kept_and_the_memory_measured(tmp_path: Path) -> None:
    program = (
        "import sys; x = bytearray(b'a') * 300_000_000; print('a' * 100_000); print(len(x)); sys.exit(3)"
    )
    done = run_measured([sys.executable, "-c", program], seconds=60, cwd=tmp_path, environment={})
    assert done.exit_code == 3
    assert done.log.endswith("a\n300000000\n")
    assert len(done.log) <= 64 * 1024
    assert done.memory_bytes > 300_000_000


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    line = ["/bin/sh", "-c", "echo begun; sleep 100 & echo $! > child; wait"]
    done = run_measured(line, seconds=0.5, cwd=tmp_path, environment={"PATH": os.environ["PATH"]})
    assert done.exit_code is None
    assert done.log == "begun\n\n/bin/sh: not done after 0 seconds"
    assert time.monotonic() - began < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(200):
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("what it started still runs")


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
    """The exit code of a process that runs `script` beside `companion`, told to end once `file` is there."""
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
    """The last checkpoint is written after the signal, and what stores it must outlive the trainer."""
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
    assert time.monotonic() - begun < 30


def test_a_missing_program_gives_a_result(tmp_path: Path) -> None:
    done = run_measured([str(tmp_path / "none")], seconds=5, cwd=tmp_path, environment={})
    assert (done.exit_code, done.memory_bytes) == (None, 0)
    assert "No such file" in done.log


def test_a_checkout_runs_its_own_code_in_its_own_environment_without_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-secret")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "show.py").write_text(
        "import os, sys\nprint(sorted(os.environ), os.environ['PYTHONPATH'], sys.argv[1:], os.getcwd())\n"
    )
    done = run_script(tmp_path, "show.py", ["--a", "b"], seconds=60)
    assert done.exit_code == 0
    assert "SLACK_BOT_TOKEN" not in done.log
    assert f"{tmp_path}/src ['--a', 'b'] {tmp_path}" in done.log
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\necho mine $1\n")
    own.chmod(0o755)
    assert run_script(tmp_path, "show.py", [], seconds=60).log == f"mine {tmp_path}/scripts/show.py\n"
