"""The top-level handler in this process: errors become exit codes; test_command.py runs whole programs."""

import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from trainyard.command import handler
from trainyard.command.handler import end_at_once, exit_code_of

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SystemExit(2), 2, ""),
        (SystemExit(0), 0, ""),
        (SystemExit(None), 0, ""),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (BrokenPipeError(), 1, "Interrupted: the reader of the output has closed it (broken pipe).\n"),
        (OSError(errno.ENOSPC, "Full"), 1, "The output could not be written: [Errno 28] Full\n"),
        (OSError(errno.EDQUOT, "Quota", "/a/b"), 1, "/a/b: Quota\n"),
        (OSError(errno.ELOOP, "Loop", "a"), 2, "a: Loop\n"),
        (OSError(errno.EISDIR, "Folder", "a"), 2, "a: Folder\n"),
        (OSError(errno.EACCES, "Refused", "a"), 1, "a: Refused\n"),
        (OSError(errno.EIO, "Failed", "a"), 1, "a: Failed\n"),
        (
            FileNotFoundError(2, "no", "/none/b"),
            2,
            "/none: no such folder. Create it first, or name another one.\n",
        ),
    ],
)
def test_each_end_of_main_has_its_code_and_its_words(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise error

    assert exit_code_of(main) == code
    assert capsys.readouterr() == ("", said)


def test_anything_else_is_a_bug_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    absent = FileNotFoundError(errno.ENOENT, "no", "/a-file-whose-folder-is-there")
    for error in (KeyError("step"), OSError(errno.EINVAL, "odd"), FileNotFoundError(2, "no", 3), absent):

        def main(error: Exception = error) -> int:
            raise error

        assert exit_code_of(main) == 3
        said = capsys.readouterr().err
        assert said.startswith("Traceback (most recent call last)")
        assert said.splitlines()[-1].startswith(type(error).__name__)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("given", [0, 1, 75])
def test_output_to_a_reader_that_left_changes_no_answer(
    name: str, given: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, name, stream)
        assert exit_code_of(lambda: stream.write("x") and given) == given
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(("given", "code"), [(0, 1), (1, 1), (75, 75)])
def test_output_that_the_disk_did_not_take_is_not_done(
    given: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with FULL.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert exit_code_of(lambda: stream.write("x") and given) == code
        monkeypatch.undo()
    assert capsys.readouterr().err.startswith("The output could not be written: [Errno 28]")


def test_the_end_at_once_is_the_answer_or_a_no_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        end_at_once(lambda: 75)
    assert codes[0] == 75, "a process ends with the first"

    codes.clear()
    monkeypatch.setattr(handler, "_FLUSH_SECONDS", 0.05)
    reader, writer = os.pipe()
    with pytest.raises(SystemExit):
        end_at_once(lambda: len(os.read(reader, 1)))
    assert codes == [1]
    os.close(writer)
    os.close(reader)
