"""The calls for programs: recorded in a run, without effect outside one, and never an exception."""

import decimal
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm_start

import trainyard
from trainyard.programs import program_events

NAMES = ("TRAINYARD_EVENTS", "TRAINYARD_CHECKPOINT", "TRAINYARD_STOP_FILE", "RANK", "WORLD_SIZE")


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of events of a run; each of its lines must be an event at the end of the test."""
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("TRAINYARD_EVENTS", str(file))
    yield file
    events = program_events.ProgramEvents(file)
    events.poll()
    assert events.bad_lines == 0


def events_of(file: Path) -> list[program_events.ProgramEvent]:
    return program_events.ProgramEvents(file).poll()


def run_program(text: str, tmp_path: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a program in a run, whose events are in `events.jsonl`."""
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, "TRAINYARD_EVENTS": str(tmp_path / "events.jsonl"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_a_program_reports_can_be_read(file: Path) -> None:
    trainyard.begin(3, 9)
    trainyard.log(step=4, loss=2.5, learning_rate=1)
    begin, row = events_of(file)
    assert isinstance(begin, program_events.TrainingSpan)
    assert isinstance(row, program_events.LoggedFigures)
    assert (begin.step, begin.steps) == (3, 9)
    assert (row.step, row.figures) == (4, {"loss": 2.5, "learning_rate": 1})
    assert abs(time.time() - (row.time or 0)) < 60


def test_the_steps_may_be_unknown(file: Path) -> None:
    trainyard.begin(0)
    assert [(event.step, getattr(event, "steps", 1)) for event in events_of(file)] == [(0, None)]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(0.5), 0.5),
        (np.array([0.5]), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (torch.tensor([3]), 3),
        (torch.tensor(float("nan")), math.nan),
        (np.float64("-inf"), -math.inf),
        (decimal.Decimal("0.5"), 0.5),
        (True, 1),
        ("0.5", 0.5),
        (2**63, 2.0**63),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (decimal.Decimal("1e400"), math.inf),
    ],
)
def test_a_figure_is_any_number(file: Path, value: object, number: float) -> None:
    trainyard.log(step=1, loss=value)
    (figures,) = [each.figures for each in events_of(file) if isinstance(each, program_events.LoggedFigures)]
    assert str(figures["loss"]) == str(number)


class Bad:
    """Raises an exception at any access."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")

    def __float__(self) -> float:
        raise object.__getattribute__(self, "error")


class BadInt(int):
    def __abs__(self) -> int:
        raise OSError

    def __int__(self) -> int:
        raise OverflowError


ODD: list[Any] = [
    *(Bad(OSError), Bad(OverflowError), Bad(RecursionError), BadInt(3), Bad, print),
    *(torch.ones(2), torch.ones(1, device="meta"), np.ones(2), np.array("x")),
    *(None, "", "text", "\ud800", b"bytes", 1j, [0.5], {"a": None}, math.nan, -math.inf, -1, 0.5, 2**70),
]


def test_no_value_raises_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "events.jsonl"
    monkeypatch.setenv("TRAINYARD_EVENTS", str(file))
    for number, value in enumerate(ODD):
        figures = {"loss": value, "other": value}
        trainyard.begin(value, value)
        trainyard.log(step=value, **figures)
        trainyard.log(step=1, **figures)
        trainyard.checkpoint(value, step=value)
        trainyard.checkpoint(value, step=1)
        trainyard.log(step=100 + number, loss=value)
        assert events_of(file)[-1].step == 100 + number, value
    for line in filter(None, file.read_bytes().splitlines()):
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize("step", [None, -1, 1.5, math.nan, math.inf, "x"])
def test_what_is_no_step_is_not_recorded(file: Path, step: Any) -> None:
    trainyard.log(step=step, loss=1)
    assert events_of(file) == []


@pytest.mark.parametrize(
    "name", ["/dev/full", "/dev/null", "folder", "folder/missing/events", "pipe", "socket" * 90]
)
def test_an_unwritable_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("TRAINYARD_EVENTS", str(tmp_path / name))
    for step in range(1000):
        trainyard.log(step=step, loss=1.0, note="x" * 100)


def test_nothing_happens_outside_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stop").touch()
    monkeypatch.setenv("TRAINYARD_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setenv("TRAINYARD_CHECKPOINT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    trainyard.begin(0, 9)
    trainyard.log(step=1, loss=Bad(OSError))
    trainyard.checkpoint(tmp_path, step=1)
    assert trainyard.latest_checkpoint() is None
    assert not trainyard.stop_requested()
    assert signal.getsignal(signal.SIGTERM) == handler
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


def test_only_rank_0_writes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ("1", "0", ""):
        monkeypatch.setenv("RANK", rank)
        trainyard.log(step=5 + len(rank) + int(rank or 0), loss=1)
    assert [event.step for event in events_of(file)] == [6, 5]


def test_the_checkpoint_to_resume_from_is_the_runners(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainyard.latest_checkpoint() is None
    monkeypatch.setenv("TRAINYARD_CHECKPOINT", "/out/checkpoint-4")
    assert trainyard.latest_checkpoint() == "/out/checkpoint-4"


def test_a_checkpoint_is_recorded_with_its_files(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "step-4" / "optimizer"
    inner.mkdir(parents=True)
    (inner / "a.pt").write_bytes(b"abc")
    (inner.parent / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    trainyard.checkpoint("step-4", step=4)
    trainyard.checkpoint(inner / "a.pt", step=5)
    trainyard.checkpoint(tmp_path / "missing", step=6)
    facts = (3, (inner / "a.pt").stat().st_mtime_ns)
    found = [(e.path, e.files) for e in events_of(file) if isinstance(e, program_events.WrittenCheckpoint)]
    assert found == [(tmp_path / "step-4", {"optimizer/a.pt": facts}), (inner / "a.pt", {"a.pt": facts})]


def test_threads_write_complete_lines(file: Path) -> None:
    def write(first: int) -> None:
        for step in range(first, first + 200):
            trainyard.log(step=step, loss=step, note=[1])

    threads = [threading.Thread(target=write, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e.step or 0 for e in events_of(file)) == [
        1000 * i + n for i in range(8) for n in range(200)
    ]


def test_a_line_without_its_end_spares_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"event": "ro')
    monkeypatch.setenv("TRAINYARD_EVENTS", str(file))
    trainyard.log(step=1, loss=1)
    events = program_events.ProgramEvents(file)
    assert ([event.step for event in events.poll()], events.bad_lines) == ([1], 1)


def test_importing_it_imports_nothing_else() -> None:
    text = (
        "import os, sys, types; before = set(sys.modules); import trainyard; print(set(sys.modules) - before)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(trainyard.__file__).parent.parent)}
    found = subprocess.run(
        [sys.executable, "-S", "-c", text], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == "{'trainyard'}\n"


def test_a_program_without_stdout_and_with_a_closed_file_table_continues(tmp_path: Path) -> None:
    text = "import os, sys, trainyard; [os.close(n) for n in range(3)]; sys.stdout = sys.stderr = None\n"
    text += "trainyard.begin(0, 2); trainyard.log(step=1, loss=1); os._exit(7)"
    program = run_program(text, tmp_path)
    program.communicate(timeout=60)
    assert program.returncode == 7
    assert len(events_of(tmp_path / "events.jsonl")) == 2


STOPPING = """
import os, signal, sys, threading, time, trainyard
def previous(number, frame):
    print("previous", number, flush=True)
if os.environ["CHAIN"]:
    signal.signal(signal.SIGTERM, previous)
thread = threading.Thread(target=lambda: print(trainyard.stop_requested(), flush=True))
thread.start(); thread.join()
print(trainyard.stop_requested(), flush=True)
deadline = time.monotonic() + 60
while not trainyard.stop_requested() and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(75)
"""


@pytest.mark.parametrize("chain", ["", "1"])
def test_sigterm_requests_a_stop_and_reaches_the_programs_own_handler(tmp_path: Path, chain: str) -> None:
    program = run_program(STOPPING, tmp_path, CHAIN=chain)
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == ["False\n", "False\n"]
    program.send_signal(signal.SIGTERM)
    output, errors = program.communicate(timeout=60)
    assert (program.returncode, output, errors) == (75, "previous 15\n" if chain else "", "")


def test_the_stop_file_requests_a_stop(tmp_path: Path) -> None:
    program = run_program(STOPPING, tmp_path, CHAIN="", TRAINYARD_STOP_FILE=str(tmp_path / "stop"))
    assert program.stdout is not None
    assert [program.stdout.readline() for _ in range(2)] == ["False\n", "False\n"]
    (tmp_path / "stop").touch()
    assert program.wait(60) == 75
    program.communicate()


def test_a_program_that_never_asks_dies_of_sigterm(tmp_path: Path) -> None:
    text = "import time, trainyard; trainyard.begin(0, 9); print(flush=True); time.sleep(60)"
    program = run_program(text, tmp_path)
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=30)
    assert program.returncode == -signal.SIGTERM


def test_a_forked_worker_still_dies_of_sigterm(tmp_path: Path) -> None:
    text = """
import multiprocessing, time, trainyard
def work():
    trainyard.log(step=2, loss=2)
    time.sleep(60)
if __name__ == "__main__":
    trainyard.stop_requested()
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    time.sleep(0.5)
    worker.terminate()
    worker.join(30)
    print(worker.exitcode, trainyard.stop_requested())
"""
    output, errors = run_program(text, tmp_path).communicate(timeout=60)
    assert (output, errors) == ("-15 False\n", "")
    assert [event.step for event in events_of(tmp_path / "events.jsonl")] == [2]


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
AGREEING = r"""
import atexit, os, pathlib, signal, sys, time, torch, trainyard

def count_threads():
    names = [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    os.write(1, f"threads: {names.count('pt_gloo_runloop')}\n".encode())
    os._exit(0)  # a group of the program's own may abort it from here on

atexit.register(count_threads)
torch.distributed.init_process_group()
rank = torch.distributed.get_rank()
trainyard.begin(0, 10000)
for step in range(1, 10000):
    torch.distributed.all_reduce(torch.ones(1))
    if rank == 1 and step == 20:
        os.kill(os.getpid(), signal.SIGTERM)
    if trainyard.stop_requested():
        break
    time.sleep(0.001 * rank)
os.write(1, f"{step} {trainyard.stop_requested()}\n".encode())
trainyard.log(step=step, loss=1)
torch.distributed.destroy_process_group()
os.write(1, f"{trainyard.stop_requested()}\n".encode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("destroys", [True, False])
def test_ranks_agree_on_the_step_of_the_stop(tmp_path: Path, destroys: bool) -> None:
    """No thread of the vote is left at the end, where it would abort some of the programs."""
    kept = [line for line in AGREEING.splitlines() if destroys or "destroy_process_group" not in line]
    (tmp_path / "program.py").write_text("\n".join(kept))
    environment = {**os.environ, "TRAINYARD_EVENTS": str(tmp_path / "events.jsonl"), "OMP_NUM_THREADS": "1"}
    program = warm_start.run([*TORCHRUN, tmp_path / "program.py"], env=environment, timeout=120)
    lines = sorted(program.stdout.splitlines())
    threads = ["threads: 0" if destroys else "threads: 2"] * 2
    expected = ["20 True", "20 True", "True", "True", *threads]
    assert (program.returncode, lines) == (0, expected), program.stderr
    assert [event.step for event in events_of(tmp_path / "events.jsonl")] == [0, 20]
