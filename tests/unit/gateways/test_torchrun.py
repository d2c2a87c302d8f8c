"""The exit code of a run with several processes, and the signal that is passed on to them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.gateways.torchrun import launch, write_exit_code

WORKERS = """#!/bin/sh
{body}
"""


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> int:
    """Return the result of `launch`, with a shell script with `body` instead of Python and torchrun."""
    program = folder / "python"
    program.write_text(WORKERS.format(body=body))
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return launch(["train.py"], 2, "a-run", options=[], grace_seconds=300)


def test_a_worker_that_dies_after_the_last_step_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun ends with 1 if a worker failed, and with 4 if only the first node has gone."""
    for left in ("0=0 1=0", "0=0"):
        for ended, code in ((0, 0), (1, 1), (4, 0)):
            assert launched(tmp_path, monkeypatch, "\n".join([*leaving(left), f"exit {ended}"])) == code


def leaving(codes: str) -> list[str]:
    """The commands that leave the exit codes of workers, as in `1=3 0=1`."""
    line = 'printf {} > "$TRAINYARD_EXIT_CODE_FOLDER/exit-code-{}"; sleep 0.01'
    return [line.format(*word.split("=")[::-1]) for word in codes.split()]


def test_the_code_is_the_main_workers_or_that_of_the_failure_that_ended_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"1=0 0=75": 75, "1=3 0=1": 1, "1=2": 2, "1=130 2=2": 2, "1=2 0=130": 2, "": 1, "1=75": 1}
    for left, code in codes.items():
        assert launched(tmp_path, monkeypatch, "\n".join([*leaving(left), "exit 1"])) == code, left


@pytest.mark.process
def test_a_signal_before_there_is_a_run_interrupts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"

    def stop() -> None:
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    body = f"trap 'kill $child; exit 1' TERM\nsleep 60 &\nchild=$!\n: > {ready}\nwait"
    with pytest.raises(KeyboardInterrupt):
        launched(tmp_path, monkeypatch, body)


@pytest.mark.process
def test_a_signal_while_workers_start_ends_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **options)

    real = subprocess.Popen
    monkeypatch.setattr("trainyard.gateways.torchrun.subprocess.Popen", start)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launched(tmp_path, monkeypatch, "exec sleep 60")
    assert time.monotonic() - began < 30, "the workers were left to themselves"


def test_after_a_common_stop_a_worker_exits_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, str]] = []

    def leave(code: int) -> int:
        return write_exit_code(code, output=lambda name, value: given.append((name, value)))

    assert leave(75) == 75
    monkeypatch.setenv("TRAINYARD_EXIT_CODE_FOLDER", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    assert leave(75) == 0
    assert leave(2) == 2
    assert (tmp_path / "exit-code-1").read_text() == "2"
    assert given == [("exit_code", "75")], "only the main worker sets it"


def test_an_agent_gets_its_options_and_workers_lose_what_describes_their_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = tmp_path / "agent"
    agent.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\nenv > {tmp_path}/environment\nexit 1\n'
    )
    agent.chmod(0o755)
    for name in ("RANK", "PET_NNODES", "PET_NPROC_PER_NODE"):
        monkeypatch.setenv(name, "7")
    more: dict[str, Any] = {"options": ["--nnodes=3"], "agent": str(agent), "without": ("RANK",)}
    launch(["train.py", "--json"], 2, "a-run", grace_seconds=900, **more)
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:2] == ["--nnodes=3", "--no-python"]
    assert words[-3:] == [sys.executable, "train.py", "--json"]
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=900" in environment
    assert not [line for line in environment if line.startswith(("RANK=", "PET_"))]
