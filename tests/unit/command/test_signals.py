"""The effect of SIGTERM and SIGINT in this process; test_command.py ends whole programs with them."""

import io
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from trainyard.command.output import configure_logging
from trainyard.command.signals import end_at_signals, run_in_background

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the hook of ignored exceptions after the test."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("silently", [False, True])
def test_a_signal_ends_the_program_and_the_first_one_is_known(number: signal.Signals, silently: bool) -> None:
    told = end_at_signals(silently=silently)
    assert told() is None
    for later in (number, *NUMBERS):
        with pytest.raises(SystemExit if silently else KeyboardInterrupt) as caught:
            signal.raise_signal(later)
        assert not silently or caught.value.code == 130  # type: ignore[attr-defined]
    assert told() == number.name


class Raises:
    """Raises in `__del__`, where Python ignores the exception."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(130)])
def test_a_signal_that_python_ignored_comes_again(error: BaseException) -> None:
    told = end_at_signals()
    Raises(error)
    with pytest.raises(KeyboardInterrupt):
        time.sleep(20)
    assert told() == "SIGTERM"


def test_any_other_ignored_exception_is_shown_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told = end_at_signals()
    Raises(ValueError("in a destructor"))
    time.sleep(0.1)
    assert told() is None
    assert "ValueError: in a destructor" in capsys.readouterr().err


def test_work_beside_another_program_is_asked_once_and_then_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(value: int) -> int:
        asked.append(value)
        raise PermissionError

    for nice in (asked.append, refuse):
        monkeypatch.setattr(os, "nice", nice)
        for number in NUMBERS:
            event = run_in_background()
            assert asked.pop() == 19
            assert not event.is_set()
            signal.raise_signal(number)
            assert event.is_set()
            assert signal.getsignal(number) == signal.SIG_DFL, "the second one kills"


class Interrupted(io.FileIO):
    """A file whose write is interrupted by a signal."""

    def write(self, data: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return super().write(data)  # type: ignore[arg-type]


def test_a_signal_in_the_middle_of_a_line_breaks_neither_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        Interrupted(tmp_path / "log", "w") as file,
        io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True) as stream,
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging("info")
        signal.signal(signal.SIGTERM, lambda *_: logging.getLogger("trainyard").warning("stopping"))
        print("a line", file=sys.stderr)
    assert [line[-8:] for line in (tmp_path / "log").read_text().splitlines()] == ["stopping", "a line"]
