"""Ordinary surroundings change no verdict: places, names, languages, times, users, streams.

Each command gets the run in each of them. The answer must be the usual one, with a note where something
could not be written; never a crash, and never a false red. Locale, streams and user are tried with real
processes, which get them at their start; the rest is tried in this process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.conditions import AS_ROOT, IN_ASCII
from tests.integration.planted.judging import Answer, call
from tests.integration.planted.yard import ROOT, Yard, make_all, plain

from trainyard.proof import PARTS

NOBODY = 65534
RAW = os.fsdecode(b"caf\xe9")
"""A name in Latin-1, which is not UTF-8."""
COMMANDS = ("prove", "store_verify", "store_restore", "report", "store_sync")
READERS = ("prove", "store_verify", "report", "store_sync")
"""Commands that need not write into the run, nor a second time into the store."""
RUNNER = "tests.integration.planted.runner"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return make_all(tmp_path_factory.mktemp("surroundings"), kinds=(plain,))["plain"]


@pytest.fixture
def yard(made: Yard, tmp_path: Path) -> Yard:
    """A real copy, which a command may write into."""
    return copied(made, tmp_path / "yard")


def copied(yard: Yard, target: Path) -> Yard:
    shutil.copytree(yard.path, target)
    return Yard(target)


def words_for(name: str, yard: Yard) -> list[str]:
    """The command line of a script on the run and its store."""
    run, store = ["--run-dir", str(yard.run.path)], ["--store", yard.store]
    return {
        "prove": [*run, *store, "--json"],
        "store_verify": [*run, *store, "--run-number", "1", "--depth", "full"],
        "store_restore": [*store, "--run-number", "1", "--to", str(yard.path / f"back-{time.time_ns()}")],
        "report": [str(yard.run.path), "--format", "json"],
        "store_sync": [*run, *store, "--once"],
    }[name]


def parts_of(answer: Answer) -> list[tuple[str, bool]]:
    """Return whether each part of a proof holds."""
    proof: dict[str, Any] = json.loads(answer.out)
    return [(part["name"], part["passed"]) for part in proof["parts"]]


def require_usual_answers(yard: Yard) -> None:
    """Require the usual answer of every command in the current surroundings."""
    stored = {path: path.stat().st_mtime_ns for path in yard.store_folder.rglob("*") if path.is_file()}
    for name in COMMANDS:
        answer = call(name, *words_for(name, yard), within=yard.path)
        assert answer.code == 0, f"{name}: {answer.said}"
        assert "Traceback" not in answer.said
        if name == "prove":
            assert [ok for _, ok in parts_of(answer)] == [True] * len(PARTS), answer.said
    nowhere = ("--store", (yard.path / "nowhere").as_uri(), "--dry-run")
    answer = call("prove", "--run-dir", str(yard.run.path), *nowhere, within=yard.path)
    assert answer.code == 1, answer.said
    assert "next" in answer.said
    assert stored == {p: p.stat().st_mtime_ns for p in yard.store_folder.rglob("*") if p.is_file()}


def test_a_working_directory_anywhere_and_one_that_was_removed(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("run/checkpoints", ".."):
        monkeypatch.chdir(yard.path / where)
        there = Path(os.path.relpath(yard.path))
        for name in COMMANDS:
            words = [word.replace(str(yard.run.path), str(there / "run")) for word in words_for(name, yard)]
            answer = call(name, *words, within=yard.path)
            assert answer.code == 0, f"{name}: {answer.said}"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    require_usual_answers(yard)
    answer = call("prove", "--run-dir", "run", within=yard.path)
    assert answer.code == 2, answer.said
    assert "working directory was removed" in answer.said or "not a run directory" in answer.said


@pytest.mark.parametrize("name", [RAW, "-x %41%zz".ljust(255, "a")])
def test_the_run_and_its_store_may_be_moved_to_any_name(made: Yard, tmp_path: Path, name: str) -> None:
    require_usual_answers(copied(made, tmp_path / name))


def test_a_run_directory_and_a_store_that_are_reached_by_links(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    for name in ("run", "store"):
        (tmp_path / "linked" / name).symlink_to(yard.path / name)
    require_usual_answers(Yard(tmp_path / "linked"))


COMMANDING = "a\x1b[2J\n::set-output name=proven::false"
"""It clears a terminal, and its second line is a command to the runner of a workflow."""


@pytest.mark.parametrize("name", [RAW, COMMANDING, "e\u0301"])
def test_a_log_of_any_name(yard: Yard, name: str) -> None:
    (yard.run.logs / name).write_text("a line\n")
    for script in ("store_sync", "prove", "store_verify"):
        answer = call(script, *words_for(script, yard), within=yard.path)
        assert answer.code == 0, answer.said
        assert "\x1b" not in answer.said
    there = (yard.store_folder / "run-1" / "logs" / name).exists()
    assert there is (name != RAW)  # no bucket can hold that name


def test_no_name_in_a_store_is_obeyed(yard: Yard) -> None:
    (yard.store_folder / "run-1/checkpoint-8" / COMMANDING).write_text("")
    for script in ("prove", "store_verify"):
        answer = call(script, *words_for(script, yard), within=yard.path)
        assert answer.code == 1, answer.said
        assert "a\\x1b[2J" in answer.said
        assert "\x1b" not in answer.said
        assert "\n::" not in answer.said


def run_apart(
    yard: Yard,
    tmp_path: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    closed: str = "",
    user: int | None = None,
    names: Sequence[str] = COMMANDS,
    code: int = 0,
) -> str:
    """Make the calls in a process of their own; return its stderr. Fail if one does not end with `code`."""
    calls = [[name, *words_for(name, yard)] for name in names]
    given, answered = tmp_path / "calls", tmp_path / "answers"
    given.write_text(json.dumps(calls))
    hidden = ("GITHUB_", "CI", "HOME", "LANG", "LC_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    words = [sys.executable, "-m", RUNNER, str(given), str(answered), *([str(user)] if user else [])]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,  # a machine may be busy
        env=environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"} | dict(variables),
        cwd=yard.path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(answered.read_text()) == [code] * len(names), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "language",
    [
        pytest.param({"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, marks=IN_ASCII),
        {"LC_ALL": "tr_TR.ISO8859-9", "PYTHONIOENCODING": "iso8859-9"},
    ],
    ids=["C", "Latin-5"],
)
def test_any_language_with_names_that_are_no_utf_8(
    made: Yard, tmp_path: Path, language: dict[str, str]
) -> None:
    run_apart(copied(made, tmp_path / RAW), tmp_path, language)


def test_closed_streams_where_no_language_is_set(made: Yard, tmp_path: Path) -> None:
    yard = copied(made, tmp_path / RAW)
    run_apart(yard, tmp_path, {"TMPDIR": "/nonexistent"}, closed="1>&- 2>&- 0<&-")
    assert (yard.run.report / "proof.json").is_file()


@AS_ROOT
def test_a_user_who_may_read_and_not_write(made: Yard) -> None:
    with tempfile.TemporaryDirectory() as name:  # not pytest's own, which is closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        yard = copied(made, folder / "yard")
        said = run_apart(yard, folder, user=NOBODY, names=READERS)
        assert "proof.json was not written, so no report shows this proof" in said
        (yard.run.path / "metrics.jsonl").chmod(0o000)
        said = run_apart(yard, folder, user=NOBODY, names=["prove"], code=1)
        assert "metrics.jsonl" in said
