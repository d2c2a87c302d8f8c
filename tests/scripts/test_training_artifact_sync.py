"""The sync as a program: its two forms, its exit codes, and the functions of source document 004."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from tests import warm_start
from tests.scripts.conftest import ROOT, Call

from trainyard.command.handler import exit_code_of
from trainyard.run.directory import RunDirectory

SCRIPT = ROOT / "scripts" / "training_artifact_sync.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def script() -> ModuleType:
    return importlib.import_module("trainyard.commands.store_sync")


@pytest.fixture
def sync(called: Call, small_run: RunDirectory) -> Call:
    return lambda *arguments: called("store sync", "--run-dir", small_run.path, *arguments)


def test_a_run_is_stored_and_the_second_time_nothing_is_sent(sync: Call, folder: Path) -> None:
    first = sync("--store", folder.as_uri(), "--run-number", "7", "--once", "--json")
    assert first.returncode == 0, first.stderr
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
    done = called("store sync", *flags, "--store", folder.as_uri(), "--run-number", "42")
    assert done.returncode == 0, done.stderr
    assert (folder / "run-42/checkpoint/latest.pt").is_file()
    assert (folder / "manifests/run-42-manifest.json").is_file()


def test_a_bucket_is_short_for_a_store_and_times_have_units(script: ModuleType) -> None:
    args = script.parse_args(
        ["--run-dir", "runs/a", "--s3-bucket", "models", "--follow", "--idle-timeout", "5m"]
    )
    assert (args.store, args.idle_timeout, args.run_number) == ("s3://models", 300, "auto")


def test_wrong_usage_ends_with_exit_2_and_its_reason(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
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
