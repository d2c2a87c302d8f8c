"""The end of a program in this process: errors, missing extras and signals; test_command.py runs programs."""

import errno
import io
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from trainyard.command import handler
from trainyard.command.handler import end_at_once, exit_code_of
from trainyard.command.missing_extra import extra_of, install_command
from trainyard.command.output import configure_logging
from trainyard.command.signals import end_at_signals, run_in_background

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


ROOT = Path(__file__).resolve().parents[3]
GIT: dict[str, Any] = {"url": "https://example.com/o/r", "vcs_info": {"vcs": "git", "commit_id": "a" * 40}}
ORIGINS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "index": (None, "trainyard-ci[train]==1.2"),
    "git": (GIT, f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}"),
    "git, a branch": (
        {**GIT, "vcs_info": {**GIT["vcs_info"], "requested_revision": "main"}},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}",
    ),
    "git, a folder": (
        {**GIT, "subdirectory": "tools/t"},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}#subdirectory=tools/t",
    ),
    "git, with a token": (
        {**GIT, "url": "https://me:s3cret@example.com/o/r"},
        f"trainyard-ci[train] @ git+https://example.com/o/r@{'a' * 40}",
    ),
    "archive": (
        {"url": "https://example.com/t-1.2.whl", "archive_info": {"hash": "sha256=00"}},
        "trainyard-ci[train] @ https://example.com/t-1.2.whl",
    ),
    "folder": ({"url": "file:///my/a%20b", "dir_info": {}}, "trainyard-ci[train] @ file:///my/a%20b"),
    "editable": ({"url": "file:///my/a%20b", "dir_info": {"editable": True}}, "--editable /my/a b[train]"),
}
INSTALLERS = {
    "pip": [sys.executable, "-m", "pip", "install"],
    "uv": ["uv", "pip", "install", "--python", sys.executable],
    "tool": ["uv", "tool", "install"],
}


def test_the_advice_is_that_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = []
    for (way, (origin, expected)), (installer, begins) in (
        (one, other) for one in ORIGINS.items() for other in INSTALLERS.items()
    ):
        site = tmp_path / f"{way}-{installer}".replace(" ", "")
        info = site / "trainyard_ci-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.4\nName: trainyard-ci\nVersion: 1.2\n")
        (info / "INSTALLER").write_text("uv\n" if installer == "tool" else f"{installer}\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        if installer == "tool":
            (site / "uv-receipt.toml").write_text("")
        with monkeypatch.context() as here:
            here.setattr(sys, "path", [str(site), *sys.path])
            here.setattr(sys, "prefix", str(site))
            words = shlex.split(install_command("train"))
        if words[: len(begins)] != begins or " ".join(words[len(begins) :]) != expected:
            wrong.append(f"{way}, {installer}: {words}")
        if "--editable" not in words:
            assert Requirement(words[-1]).extras == {"train"}
    assert not wrong, "\n".join(wrong)


def test_a_checkout_is_installed_by_its_makefile() -> None:
    extras = {"torch": "train", "websocket": "cluster", "model_signing": "sign"}
    assert {module: extra_of(module) for module in extras} == extras
    assert extra_of("nothing.of.ours") == ""
    if Path(sys.prefix) == ROOT / ".venv":
        assert install_command("train") == f"make -C {shlex.quote(str(ROOT))} install"


def test_nothing_names_the_package_of_somebody_else() -> None:
    """`trainyard` on PyPI is another project: no text may install it, bare or with extras."""
    bare = re.compile(
        r"(?<!\.)\btrainyard\[|\b(?:install|add|uvx|--with) (?:-\S+ )*[\"']?trainyard(?![\w./-])"
    )
    folders = ("src", "docs", "skills", "scripts", "tools", "docker", "examples", "configs", ".github")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*"))
    texts = [path for path in files if path.is_file() and path.suffix not in (".pyc", ".png", ".gif")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in texts
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if bare.search(line)
    ]
    assert len(texts) > 600
    assert not found, "\n".join(found)


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


def test_a_signal_within_a_line_breaks_no_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (
        Interrupted(tmp_path / "log", "w") as file,
        io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True) as stream,
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging("info")
        signal.signal(signal.SIGTERM, lambda *_: logging.getLogger("trainyard").warning("stopping"))
        print("a line", file=sys.stderr)
    assert [line[-8:] for line in (tmp_path / "log").read_text().splitlines()] == ["stopping", "a line"]
