"""The archive about a failed run: what it has, and no secret in it."""

import json
import tarfile
from pathlib import Path

import pytest

from trainyard.commands import debug_dump
from trainyard.errors import ConfigError

TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "a run"
    (run / "logs").mkdir(parents=True)
    outcome = {"status": "failed", "exit_code": 1, "reason": "the program ended with exit code 1"}
    (run / "run.json").write_text(json.dumps({"run_id": "r1", "recipe": "command", "outcome": outcome}))
    (run / "config.yaml").write_text("recipe: command\n")
    log = f"step 1\ntoken {TOKEN}\nOSError: [Errno 28] No space left on device\n"
    (run / "logs" / "node-0.log").write_text("x" * 2_000_000 + "\n" + log)
    return run


def test_a_dump_has_records_ends_of_logs_versions_and_the_cause_and_no_secret(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    file = tmp_path / "dump.tar.gz"
    assert debug_dump.main([str(run), "--output", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    with tarfile.open(file) as archive:
        texts = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }
    assert {"run.json", "config.yaml", "explanation.json", "machine/versions.json"} <= set(texts)
    assert json.loads(texts["explanation.json"])["class"] == "disk-full"
    assert json.loads(texts["machine/environment.json"])["NCCL_DEBUG"] == "WARN"
    assert texts["logs/node-0.log"].startswith("(the first ") and "No space left" in texts["logs/node-0.log"]
    assert not any(TOKEN in text for text in texts.values())
    assert "(a line with a secret, left out)" in texts["logs/node-0.log"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        debug_dump.main([str(tmp_path)])
    with pytest.raises(ConfigError, match="not a directory"):
        debug_dump.main([str(tmp_path / "none")])
