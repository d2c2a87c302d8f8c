"""The script that restores the run or checkpoint from which a workflow's run resumes."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import load_script

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.command import handler
from trainyard.run.directory import RunDirectory

fetch_resume = load_script("step_fetch_checkpoint")


def test_a_later_segment_on_a_new_machine_gets_the_run_from_the_store(
    finished_run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = (tmp_path / "store").as_uri()
    sync_run(open_store(store), finished_run, 812)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    there = tmp_path / "new" / finished_run.path.name
    line = ["--run-dir", str(there), "--resume", f"{store}/manifests/run-812-manifest.json", "--store", store]
    line += ["--run-number", "812", "--segment", "2", "--json"]
    assert fetch_resume.main([*line, "--dry-run"]) == 0
    assert not there.exists()
    capsys.readouterr()
    assert fetch_resume.main(line) == 0
    assert json.loads(capsys.readouterr().out)["resume"] == "auto"
    assert RunDirectory(there).checkpoint_steps() == [20]
    assert "resume<<" in (tmp_path / "output").read_text()
    new = ["--run-dir", str(tmp_path / "gh-2"), "--resume", "none", "--store", store, "--run-number", "2"]
    assert handler.exit_code_of(lambda: fetch_resume.main([*new, "--segment", "2"])) == 1
    assert "could not be fetched" in (tmp_path / "summary").read_text()
    where: Any = {"store": store, "run_number": 2, "segment": 2, "resume": "none"}
    found = fetch_resume.fetch_checkpoint(tmp_path / "gh-2", **where, allow_missing_checkpoint=True)
    assert found.resume == "none"
