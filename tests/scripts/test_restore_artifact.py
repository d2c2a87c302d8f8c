"""The restore as a program: what it restores, how it ends."""

import json
import shutil
from pathlib import Path

from tests.scripts.conftest import Call

from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory


def test_a_run_is_planned_restored_and_proven_again(
    called: Call, store: str, finished_run: RunDirectory, tmp_path: Path
) -> None:
    line = ("store restore", "--store", store, "--run-number", "7", "--to", "back")
    planned = called(*line, "--step", "newest", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["steps"] == [20]
    assert not (tmp_path / "back").exists()
    done = called(*line, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["steps"], report["run_number"], report["kept"]) == ([10, 20], 7, 0)
    assert "restored: run 7 → " in done.stderr
    assert f"resume: {report['go_on']}" in done.stderr
    assert (tmp_path / "back" / "run.json").read_bytes() == finished_run.run_file.read_bytes()
    proof = called("store verify", "--store", store, "--run-dir", "back", "--depth", "full")
    assert proof.returncode == 0, proof.stderr
    again = called(*line)
    assert again.returncode == 2
    assert "is not empty, and nothing in it is replaced" in again.stderr


def test_the_records_of_a_run_are_restored_and_no_checkpoint_with_them(
    called: Call, store: str, finished_run: RunDirectory, tmp_path: Path
) -> None:
    line = ("store restore", "--store", store, "--run-number", "7", "--step", "none")
    outputs = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(tmp_path / "output")}
    done = called(*line, "--to", "records", **outputs)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "records").iterdir()}
    assert {"run.json", "config.yaml", "metrics.jsonl"} <= names
    assert not (tmp_path / "records" / "checkpoints").exists()
    told = (tmp_path / "output").read_text()
    manifest = tmp_path / "store" / "manifests" / "run-7-manifest.json"
    assert manifest.name in told
    assert sha256_of_file(manifest) in told
    refused = called(*line[:4], "8", *line[5:], "--to", "again", **outputs)
    assert refused.returncode == 1, refused.stderr
    assert "reason<<" in (tmp_path / "output").read_text()


def test_how_it_ends(called: Call, store: str, tmp_path: Path) -> None:
    state = tmp_path / "store/run-7/checkpoint-20/state.bin"
    state.write_bytes(state.read_bytes()[:-1])
    line = ("store restore", "--store", store, "--to", "back")
    whole = called(*line, "--run-number", "7")
    assert whole.returncode == 1
    assert "run-7/checkpoint-20/state.bin: 4,999 bytes arrived, the manifest says 5,000" in whole.stderr
    newest = called(*line, "--run-number", "7", "--step", "newest", "--json")
    assert newest.returncode == 0
    assert json.loads(newest.stdout)["steps"] == [10]
    assert "checkpoint-20 passed over" in newest.stderr
    assert newest.stderr.count("[degraded]") == 1
    shutil.rmtree(tmp_path / "back")
    assert called(*line).returncode == 2
    assert called(*line, "--run-number", "auto").returncode == 2
    missing = called(*line, "--run-number", "8")
    assert missing.returncode == 1
    assert f"Run 8 is not in {store}; it has 7. " in missing.stderr
    down = called(
        *("store restore", "--store", "s3://nobody-here", "--run-number", "7", "--to", "back"),
        AWS_ENDPOINT_URL="http://127.0.0.1:9",
        AWS_ACCESS_KEY_ID="x",
        AWS_SECRET_ACCESS_KEY="x",
        AWS_MAX_ATTEMPTS="1",
    )
    assert down.returncode == 4
    assert not (tmp_path / "back").exists()
