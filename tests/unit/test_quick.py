"""The suite's own tools: `make quick`, slow tests first, `each_case`; and steps of the pipeline."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.slow_first import slow_first

from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.pipeline import Step, StepRunner

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import multiprocessing, os, subprocess, sys
import pytest

def test_plain(): ...

def test_subprocess():
    try:
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    except Exception:
        pass
    raise AssertionError("it went on")

def test_fork():
    multiprocessing.get_context("fork").Process(target=print).start()

@pytest.fixture(scope="module")
def server():
    return subprocess.Popen([sys.executable, "-c", "pass"])

def test_with_a_server(server): ...

@pytest.mark.slow
def test_slow():
    raise AssertionError("it ran")

@pytest.fixture
def lab():
    raise AssertionError("it ran")

def test_training(lab): ...
"""


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        (["--quick"], "1 passed, 3 skipped, 2 deselected"),
        (["--quick", "-n", "1"], "1 passed, 3 skipped"),  # pytest itself may start processes
        (["-x"], "1 failed"),
    ],
)
def test_quick_skips_what_starts_a_process(tmp_path: Path, options: list[str], outcome: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  process")
    line = [sys.executable, "-m", "pytest", "-p", "tests.quick", "-p", "no:cacheprovider", *options, "-k"]
    # Without a folder of its own, this pytest would remove those that earlier ones left: many gigabytes.
    own = ["--basetemp", str(tmp_path / "own"), "--rootdir", str(tmp_path), str(tmp_path)]
    chosen = "test" if "--quick" in options else "slow"
    ran = subprocess.run(
        [*line, chosen, *own], cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False
    )
    assert outcome in ran.stdout, ran.stdout


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_each_test_is_run_once_by_any_number_of_processes(are_slow: list[bool], processes: int) -> None:
    assert sorted(slow_first(are_slow, processes)) == [*range(len(are_slow))]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_slow_ones_begin_all_rows_but_the_last(processes: int) -> None:
    are_slow = [number % 10 == 0 for number in range(600)]
    order = slow_first(are_slow, processes)
    row = 600 // processes
    each = 60 // (processes - 1)
    for place in range(processes - 1):
        front = order[place * row : place * row + each]
        assert all(are_slow[number] for number in front)
    assert not any(are_slow[number] for number in order[-row:])


def test_one_process_keeps_the_order_of_the_files() -> None:
    assert slow_first([False, True, False], 1) == [0, 1, 2]


SEEN: list[tuple[int, str]] = []


@each_case("number", [1, 2], ids=["one", "two"])
@each_case(("word",), [("a",), pytest.param("b", id="bee")])
def test_cases_multiply_and_each_has_a_folder_of_its_own(number: int, word: str, tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text(word)
    SEEN.append((number, word))
    assert [(1, "a"), (1, "b"), (2, "a"), (2, "b")][: len(SEEN)] == SEEN


def test_all_cases_that_fail_are_named() -> None:
    @each_case("number", range(20), ids=lambda number: f"case-{number}")
    def fails(number: int) -> None:
        assert number % 2, f"{number} is even"

    with pytest.raises(pytest.fail.Exception) as failed:
        fails()
    message = str(failed.value)
    assert message.startswith("10 cases failed\ncase case-0\n")
    assert "8 is even" in message and "10 is even" not in message
    assert message.endswith("and 5 more")


def test_an_empty_table_is_no_test() -> None:
    @each_case("number", [])
    def never(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(AssertionError, match="no case"):
        never()


def step(apply: Callable[[], object], name: str = "step") -> Step:
    return Step(name, apply, {})


def raising(error: BaseException) -> Step:
    def apply() -> int:
        raise error

    return step(apply)


def receiving(number: int) -> Step:
    """A step that gets a signal, and would otherwise take a minute."""

    def apply() -> int:
        os.kill(os.getpid(), number)
        time.sleep(60)
        return 0

    return step(apply)


def test_a_failing_step_ends_the_run_with_its_code_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    last = step(lambda: ran.append("last"))
    with StepRunner() as steps:
        for first, code, text in (
            (raising(ConfigError("wrong key")), 2, "wrong key\n"),
            (raising(ServiceError("the store is away")), 4, "the store is away\n"),
            (raising(ZeroDivisionError("oh")), 3, "ZeroDivisionError: oh\n"),
            (raising(SystemExit(5)), 5, ""),
            (step(lambda: ExitCode.NO), 1, ""),
        ):
            assert steps.run(first, last) == code
            assert capsys.readouterr().err.endswith(text)
        assert ran == []
        assert steps.run(step(lambda: "a result"), last) == 0
        assert (ran, steps.result) == (["last"], None)


def test_a_signal_interrupts_a_step_and_nothing_between_two_steps(capsys: pytest.CaptureFixture[str]) -> None:
    def swallow() -> None:  # as the import of torch may
        with contextlib.suppress(BaseException):
            receiving(signal.SIGUSR1).apply()

    before = signal.getsignal(signal.SIGTERM)
    with StepRunner() as steps:
        assert steps.run(receiving(signal.SIGTERM)) == 143
        assert steps.run(step(swallow)) == 143
        os.kill(os.getpid(), signal.SIGINT)
        assert steps.run(step(lambda: 0)) == 0
        assert steps.passed == [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]
    with StepRunner() as steps:
        assert steps.run(receiving(signal.SIGINT)) == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "Interrupted.\n" * 2


def test_a_signal_that_came_before_reaches_the_process_that_trains() -> None:
    """It saves and stops at once. The exit code is its own, and a second signal interrupts nothing."""
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print(flush=True)"
    code += "; time.sleep(60)"
    with StepRunner(prints=False) as steps:
        os.kill(os.getpid(), signal.SIGTERM)
        trains = Step("train", lambda: [sys.executable, "-c", code], {}, is_process=True)
        assert steps.run(trains) in (75, 143), "143 if it came before the handler"
        os.kill(os.getpid(), signal.SIGTERM)
        assert steps.run(step(lambda: 0)) == 0


def test_steps_print_to_stderr_where_stdout_is_for_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    for prints in (True, False):
        with StepRunner(prints=prints) as steps:
            steps.run(step(lambda: print("here")))
            process = [sys.executable, "-c", "print('there')"]
            steps.run(Step("train", lambda command: command, {"command": process}, is_process=True))
        told = capfd.readouterr()
        said, other = (told.out, told.err) if prints else (told.err, told.out)
        assert (sorted(said.split()), other) == (["here", "there"], "")
