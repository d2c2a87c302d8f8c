"""Steps of the pipeline in one process: errors, signals, and where they print."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from trainyard.errors import ConfigError, ExitCode, ServiceError
from trainyard.pipeline import Step, StepRunner


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


def test_a_step_that_fails_ends_the_run_with_its_exit_code_and_its_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
