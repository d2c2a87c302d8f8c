"""scripts/explain_failure.py on the output of processes that really fail, and its command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "explain_failure.py"
BEGIN = "import time\nfor n in range(5): print(f'step {n}/600 loss 2.5', flush=True)\n"
FAILING = {
    "raises": ("user-code", "raise KeyError('labels')"),
    "raises in a chain": (
        "user-code",
        "try:\n  1/0\nexcept Exception as e:\n  raise ValueError('bad batch') from e",
    ),
    "fills a disk": ("disk-full", "f = open('/dev/full', 'w'); f.write('x' * 100000); f.flush()"),
    "wants too much memory": ("oom-host", "bytearray(10 ** 17)"),
    "wants memory beyond its limit": (
        "oom-host",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); b = bytearray(2 << 30)",
    ),
    "takes a port that is taken": (
        "port-in-use",
        "import socket; a = socket.socket(); a.bind(('127.0.0.1', 0)); socket.socket().bind(a.getsockname())",
    ),
    "lacks a module": ("configuration", "import a_module_that_nobody_has"),
    "has a wrong flag": (
        "configuration",
        "import argparse; argparse.ArgumentParser().parse_args(['--fast'])",
    ),
    "is interrupted": ("cancelled", "import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"),
    "kills itself": ("unknown", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    "is terminated": ("unknown", "import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"),
    "crashes": ("unknown", "import ctypes; ctypes.string_at(0)"),
    "ends with a code": ("unknown", "raise SystemExit(3)"),
    "prints a failure that it survives": (
        "unknown",
        "print('OSError: [Errno 28] No space left on device')\n"
        "for n in range(5, 10): print(f'step {n}/600 loss 2.5', flush=True)\nraise SystemExit(1)",
    ),
}


def explain(*words: str | Path, stdin: str | None = None, code: int = 0) -> str:
    line = [sys.executable, SCRIPT, *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, input=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize(("klass", "program"), FAILING.values(), ids=FAILING)
def test_a_process_that_fails_is_explained(klass: str, program: str, tmp_path: Path) -> None:
    log = tmp_path / "the log"
    with log.open("w") as file:
        ended = subprocess.run([sys.executable, "-c", BEGIN + program], stdout=file, stderr=file, timeout=60)
    assert ended.returncode != 0
    found = json.loads(explain("--log", log, "--exit-code", str(ended.returncode), "--json"))
    assert set(found) == {"class", "evidence", "retryable"}
    assert found["class"] == klass, (found, log.read_text())
    assert found["evidence"] and isinstance(found["retryable"], bool)


PARALLEL = """
import os, sys, time, datetime, torch, torch.distributed as dist
mode, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
for step in range(3):
    dist.all_reduce(torch.ones(1)); print(f"step {step} loss 2.5", flush=True)
if rank == 1:
    if mode == "raises": raise IndexError("token 50257 is out of range")
    if mode == "hangs": time.sleep(20)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "klass"),
    [
        ("raises", "user-code"),
        ("hangs", "hang"),
    ],
)
def test_one_rank_of_a_parallel_training_fails(mode: str, klass: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PARALLEL)
    log = tmp_path / "both.log"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with log.open("w") as file:
        ended = subprocess.run(
            [*launch, str(program), mode], stdout=file, stderr=file, timeout=120, env=os.environ
        )
    assert ended.returncode != 0
    found = json.loads(explain("--log", log, "--exit-code", str(ended.returncode), "--json"))
    assert found["class"] == klass, (found, log.read_text()[-6000:])


def test_our_own_configuration_error_is_one(tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text("training: {max_step: 3}\n")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "train.py", "--config", config],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert explain("--log", "-", "--exit-code", "2", stdin=done.stderr).startswith("configuration: no retry")


def test_what_people_read_begins_with_the_class_and_shows_the_line(tmp_path: Path) -> None:
    log = tmp_path / "rank 1.log"
    log.write_text("step 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")
    first, second = explain("--log", log).splitlines()
    assert first == "oom-gpu: no retry heals it"
    assert second == f"  {log}:2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_events_decide_where_the_log_ends_in_the_middle(tmp_path: Path) -> None:
    log, events = tmp_path / "log", tmp_path / "events.json"
    log.write_text("step 1\nstep 2\n")
    event = {"reason": "Preempted", "message": "Preempted by pod 3f2c on node n1"}
    events.write_text(json.dumps({"items": [event]}))
    found = json.loads(explain("--log", log, "--events", events, "--exit-code", "143", "--json"))
    assert (found["class"], found["retryable"]) == ("preempted", True)
    assert json.loads(explain("--log", log, "--exit-code", "143", "--json"))["class"] == "unknown"


@pytest.mark.parametrize(
    "words", [("--log", "none.log"), ("--log", "."), ("--log", "x", "--exit-code", "many"), ()]
)
def test_wrong_usage_is_said(words: tuple[str, ...], tmp_path: Path) -> None:
    said = explain(*words, code=2)
    assert "Traceback" not in said and said


def test_a_log_of_any_bytes_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(os.urandom(100_000) + b"\nOSError: [Errno 28] No space left on device\n" + b"\xff\xfe\n")
    assert json.loads(explain("--log", log, "--json"))["class"] == "disk-full"


def test_signals_are_named() -> None:
    found = json.loads(explain("--log", "-", "--exit-code", str(128 + signal.SIGKILL), "--json", stdin=""))
    assert found["class"] == "unknown" and "signal 9" in found["evidence"][0]
