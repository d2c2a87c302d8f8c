"""The sync as a program: its forms and exit codes, document 004's functions, and the commits on record."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.git_repository import git
from tests.scripts.conftest import ROOT, Call, load_script, require_success

from trainyard.checkpoint_functions import origin_of_checkpoint
from trainyard.command.handler import exit_code_of
from trainyard.errors import ConfigError
from trainyard.gateways.git import git_facts
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import ci_facts_at, write_identity

script = load_script("store_sync")
SCRIPT = ROOT / "scripts" / "training_artifact_sync.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def sync(called: Call, small_run: RunDirectory) -> Call:
    return lambda *arguments: called("store sync", "--run-dir", small_run.path, *arguments)


def test_a_run_is_stored_and_the_second_time_nothing_is_sent(sync: Call, folder: Path) -> None:
    first = require_success(sync("--store", folder.as_uri(), "--run-number", "7", "--once", "--json"))
    report = json.loads(first.stdout)
    assert (report["run_number"], report["sent"], report["skipped"]) == (7, 4, 0)
    assert report["manifest_key"] == "manifests/run-7-manifest.json"
    assert "artifacts: 5 files" in first.stderr
    assert first.stderr.rstrip().endswith("[ok]")
    second = sync("--store", folder.as_uri(), "--run-number", "auto")
    assert second.returncode == 0
    assert second.stdout == ""
    assert "run-7: unchanged, nothing sent" in second.stderr


def test_the_store_may_stand_in_the_runs_configuration(
    sync: Call, small_run: RunDirectory, folder: Path
) -> None:
    small_run.config_file.write_text(f"artifacts:\n  store: {folder.as_uri()}\n  encryption: AES256\n")
    assert sync().returncode == 0
    assert (folder / "run-1" / "config.yaml").is_file()


def test_no_store_is_a_usage_error(sync: Call) -> None:
    done = sync()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "No store: give --store, or set artifacts.store in the configuration.\n"


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_folder_that_is_no_run_is_wrong_usage(
    sync: Call, small_run: RunDirectory, folder: Path, dry: tuple[str]
) -> None:
    small_run.run_file.unlink()
    done = sync("--store", folder.as_uri(), *dry)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{small_run.run_file}: missing, so {small_run.path} is not a run directory" in done.stderr
    assert not folder.exists()


@pytest.mark.parametrize("outcome", [[1], None, "succeeded"])
def test_a_record_with_an_outcome_of_another_type_is_named(
    sync: Call, small_run: RunDirectory, folder: Path, outcome: object
) -> None:
    small_run.run_file.write_text(json.dumps({"schema": 1, "run_id": "run-a", "outcome": outcome}))
    done = sync("--store", folder.as_uri())
    assert done.returncode == 1
    assert done.stderr.startswith(f"{small_run.run_file}: outcome is not an object")
    assert not folder.exists()


def test_a_damaged_checkpoint_is_named_with_exit_1(sync: Call, small_run: RunDirectory, folder: Path) -> None:
    (small_run.checkpoint(100) / "data").write_bytes(os.urandom(2000))
    done = sync("--store", folder.as_uri())
    assert done.returncode == 1
    assert "checkpoint-100 was not uploaded" in done.stderr
    assert done.stderr.rstrip().endswith("[failed]")


def test_a_dry_run_says_what_would_go_and_stores_nothing(sync: Call, folder: Path) -> None:
    done = sync("--store", folder.as_uri(), "--dry-run")
    assert done.returncode == 0
    assert "send     run-1/checkpoint-100/data" in done.stdout
    assert not folder.exists()
    plan = json.loads(sync("--store", folder.as_uri(), "--dry-run", "--json").stdout)
    assert len(plan["send"]) == 4


def test_following_is_at_the_lowest_priority_and_a_signal_ends_it_cleanly(
    small_run: RunDirectory, folder: Path
) -> None:
    options = ("--run-dir", small_run.path, "--store", folder.as_uri(), "--follow")
    line = [sys.executable, str(SCRIPT), *map(str, options)]
    follower = warm_start.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    manifest, deadline = folder / "manifests" / "run-1-open-1.json", time.monotonic() + 60
    while not manifest.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.getpriority(os.PRIO_PROCESS, follower.pid) == 19
    follower.send_signal(signal.SIGTERM)
    _, said = follower.communicate(timeout=60)
    assert follower.returncode == 75, said
    assert "1 checkpoint stored while it was trained; a stop was requested" in said


def test_loose_files_go_by_document_004s_flags(called: Call, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "latest.pt").write_bytes(os.urandom(2000))
    (tmp_path / "metrics.json").write_text('{"loss": 1.08}')
    flags = ("--checkpoint", tmp_path / "latest.pt", "--metrics", tmp_path / "metrics.json")
    require_success(called("store sync", *flags, "--store", folder.as_uri(), "--run-number", "42"))
    assert (folder / "run-42/checkpoint/latest.pt").is_file()
    assert (folder / "manifests/run-42-manifest.json").is_file()


def test_a_bucket_is_short_for_a_store_and_times_have_units() -> None:
    args = script.parse_args(
        ["--run-dir", "runs/a", "--s3-bucket", "models", "--follow", "--idle-timeout", "5m"]
    )
    assert (args.store, args.idle_timeout, args.run_number) == ("s3://models", 300, "auto")


def test_wrong_usage_ends_with_exit_2_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        "--store file:///x": "one of the arguments RUN --run-dir --checkpoint is required",
        "--run-dir /none --store file:///x": "/none: the run directory does not exist",
        "--run-dir . --store file://x": "file://x",
        "--run-dir . --store file:///x --run-number 0": "--run-number 0",
        "--run-dir . --checkpoint x": "not allowed with argument",
        "--checkpoint c --store file:///x": "--checkpoint needs --metrics FILE",
        "--checkpoint c --metrics m --follow": "--follow needs --run-dir",
        "--checkpoint x --metrics y --store file:///x": "x: there is no such file or directory",
        "--run-dir r --follow --once": "not allowed with argument",
        "--run-dir r --encryption arn:aws:kms:eu-west-1:1:key/2": "the bucket's default key",
    }
    for line, reason in lines.items():
        assert exit_code_of(lambda line=line: script.main(line.split())) == 2, line  # type: ignore[misc]
        assert reason in capsys.readouterr().err, line


PLACES = ("own", "own-ignored", "own-subfolder", "other", "none", "link", "submodule", "worktree", "bare")
STARTS = ("own", "other", "none")
CODES = (None, "own", "other")
VARIABLES = ("unset", "github", "hook", "codebuild")


def repository(folder: Path, content: str) -> str:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text(content)
    (folder / ".gitignore").write_text("out/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", content)
    return git(folder, "rev-parse", "HEAD")


# The commit on record is that of the repository whose working tree holds the file, if the file is not older,
# or that of the repository named by --code; else there is none. The folder of the command and the environment
# change nothing.
class World:
    """Repositories and folders, each with a checkpoint, and the commit that a record may name for it."""

    def __init__(self, root: Path) -> None:
        self.folders = {name: root / name for name in ("own", "other", "none", "worktree", "bare")}
        self.commits: dict[str | None, str | None] = dict.fromkeys(("none", "bare"))
        for name in ("own", "other"):
            self.commits[name] = repository(self.folders[name], name)
        git(self.folders["own"], "worktree", "add", "-q", "-b", "side", str(root / "worktree"))
        (self.folders["worktree"] / "train.py").write_text("side")
        git(self.folders["worktree"], "commit", "-q", "-a", "-m", "side")
        self.commits["worktree"] = git(self.folders["worktree"], "rev-parse", "HEAD")
        self.commits["submodule"] = repository(root / "library", "library")
        git(self.folders["own"], "submodule", "--quiet", "add", str(root / "library"), "library")
        git(self.folders["own"], "commit", "-q", "-m", "with a library")
        self.commits["own"] = git(self.folders["own"], "rev-parse", "HEAD")
        self.folders["submodule"] = self.folders["own"] / "library"
        git(root, "init", "-q", "--bare", str(self.folders["bare"]))
        for name, below in (("own-ignored", "out"), ("own-subfolder", "runs/deep")):
            self.folders[name], self.commits[name] = self.folders["own"] / below, self.commits["own"]
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "step-7.pt").write_bytes(b"weights")
        self.folders["link"], self.commits["link"] = root / "none" / "links", self.commits["other"]
        self.folders["link"].mkdir()
        (self.folders["link"] / "step-7.pt").symlink_to(self.folders["other"] / "step-7.pt")
        self.metrics = root / "metrics.json"
        self.metrics.write_text("{}")

    def variables(self, kind: str) -> dict[str, str]:
        other, hook = str(self.commits["other"]), self.folders["other"] / ".git"
        return {
            "unset": {},
            "github": {"GITHUB_ACTIONS": "true", "GITHUB_SHA": other, "GITHUB_RUN_ID": "5"},
            "hook": {"GIT_DIR": str(hook), "GIT_WORK_TREE": str(hook.parent), "GIT_INDEX_FILE": "x"},
            "codebuild": {"CODEBUILD_RESOLVED_SOURCE_VERSION": other, "TRAINYARD_COMMIT": other},
        }[kind]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize(
    ("place", "start", "variables"),
    [
        (place, STARTS[(row + column) % len(STARTS)], variables)  # any two of the three meet
        for row, place in enumerate(PLACES)
        for column, variables in enumerate(VARIABLES)
    ],
)
def test_the_commit_on_record_is_that_of_the_files_repository(
    place: str, start: str, variables: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.variables(variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(world.folders[start])
    checkpoint = world.folders[place] / "step-7.pt"
    for code in CODES:
        origin = origin_of_checkpoint(checkpoint, None if code is None else world.folders[code])
        expected = world.commits[place if code is None else code]
        assert origin["git"].get("commit") == expected, code
        assert origin["ci"].get("sha") in (None, expected)
        run = {key: value for key, value in origin.items() if value}
        assert [each for each in world.commits.values() if each and each in json.dumps(run)] in (
            [],
            [each for each in world.commits.values() if each and each == expected],
        )


AGES = {"older": (-1, -1), "same second": (0, 0), "newer": (60, 60), "one file older": (60, -1)}
"""Seconds after the commit at which each of two files was written."""


STATES = ("tracked", "untracked", "ignored")


@pytest.mark.parametrize(
    ("age", "kind", "state", "code"),
    [
        *itertools.product(AGES, ("file", "folder"), STATES, (None,)),
        # A folder named by --code decides alone: each age is tried once.
        *((age, ("file", "folder")[row % 2], STATES[row % 3], "own") for row, age in enumerate(AGES)),
        *((age, ("folder", "file")[row % 2], STATES[row % 3], "other") for row, age in enumerate(AGES)),
    ],
)
def test_a_commit_that_is_newer_than_the_file_did_not_write_it(
    age: str, kind: str, state: str, code: str | None, tmp_path: Path, caplog: Any
) -> None:
    own = tmp_path / "own"
    repository(own, "own")
    commits = {"other": repository(tmp_path / "other", "other")} if code == "other" else {}
    folder = own / ("out" if state == "ignored" else "runs") / "step-7"
    folder.mkdir(parents=True)
    files = [folder / "a.pt", folder / "b.pt"]
    for path in files:
        path.write_bytes(b"weights")
    git(own, *(("add", ".") if state == "tracked" else ("status",)))
    git(own, "commit", "-q", "--allow-empty", "-m", "later")
    commits["own"] = git(own, "rev-parse", "HEAD")
    committed = int(git(own, "show", "-s", "--format=%ct", "HEAD"))
    for path, seconds in zip(files, AGES[age], strict=True):
        os.utime(path, (committed + seconds, committed + seconds))
    checkpoint = files[1] if kind == "file" else folder
    is_older = AGES[age][1] < 0
    found = origin_of_checkpoint(checkpoint, None if code is None else tmp_path / code)
    expected = None if code is None and is_older else commits[code or "own"]
    assert found["git"].get("commit") == expected
    said = [record.getMessage() for record in caplog.records if "--code DIR" in record.getMessage()]
    assert len(said) == (expected is None)
    assert all(f"older than commit {commits['own'][:12]}" in line for line in said)


@pytest.mark.parametrize("place", ["own", "none"])
def test_a_stored_manifest_and_document_004s_names_the_same_commit(
    place: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folders["other"])
    checkpoint, expected = world.folders[place] / "step-7.pt", world.commits[place]
    made = script.create_manifest(str(checkpoint), str(world.metrics), "bucket", 42)
    flags = ["--checkpoint", str(checkpoint), "--metrics", str(world.metrics), "--run-number", "42"]
    assert script.main([*flags, "--store", (tmp_path / "store").as_uri()]) == 0
    stored = json.loads((tmp_path / "store" / "manifests" / "run-42-manifest.json").read_text())
    for manifest in (made, stored):
        assert manifest["provenance"].get("git", {}).get("commit") == expected
        assert str(world.commits["other"]) not in json.dumps(manifest)


def test_a_named_folder_without_committed_code_is_refused(world: World, tmp_path: Path) -> None:
    for place in ("none", "own-ignored", "bare"):
        with pytest.raises(ConfigError, match="no file there is committed"):
            origin_of_checkpoint(world.folders["own"] / "step-7.pt", world.folders[place])
    run = tmp_path / "run" / "checkpoints"
    run.mkdir(parents=True)
    (run / "step-7.pt").write_bytes(b"weights")
    write_identity(run.parent / "run.json", "run-a", {})
    with pytest.raises(ConfigError, match=r"whose run\.json names its code"):
        origin_of_checkpoint(run / "step-7.pt", world.folders["own"])
    with pytest.raises(SystemExit):
        script.parse_args(["--run-dir", str(run.parent), "--code", str(world.folders["own"])])


def test_a_hooks_variables_do_not_change_the_commit_of_the_running_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.variables("hook").items():
        monkeypatch.setenv(name, value)
    assert git_facts(world.folders["own"])["commit"] == world.commits["own"]


def test_a_workflow_runs_commit_is_on_record_only_for_code_of_that_commit() -> None:
    variables = {"GITHUB_ACTIONS": "true", "GITHUB_SHA": "a" * 40, "GITHUB_RUN_ID": "5"}
    assert ci_facts_at("a" * 40, variables) == {"sha": "a" * 40, "run_id": "5"}
    for commit in ("b" * 40, None):
        assert ci_facts_at(commit, variables) == {"run_id": "5"}
