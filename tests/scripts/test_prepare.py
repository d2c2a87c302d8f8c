"""trainyard prepare as people and the pipeline run it."""

import json
from pathlib import Path

import pytest
from tests.scripts.conftest import Call, Program

ROOT = Path(__file__).parents[2]
CONFIG = """\
model: {{name: m}}
training: {{max_steps: 2, warmup_steps: 0}}
data: {{train_path: {train}, prepared_directory: {prepared}, sequence_length: 16,
        validation_fraction: 0.0}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration for five text files."""
    for number in range(5):
        (tmp_path / "train").mkdir(exist_ok=True)
        (tmp_path / "train" / f"{number}.txt").write_text("some text\n" * 100)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(train=tmp_path / "train", prepared=tmp_path / "prepared"))
    return path


def test_says_what_is_held_out_of_few_files(config: Path, called: Call) -> None:
    for number in range(1, 5):
        (config.parent / "train" / f"{number}.txt").unlink()
    config.write_text(config.read_text().replace("fraction: 0.0", "fraction: 0.02"))
    result = called("prepare", "--config", config)
    assert result.returncode == 0, result.stderr
    assert "validation (the end of it) [ok]" in result.stderr


def test_gives_the_facts_as_json(config: Path, called: Call) -> None:
    first, second = (json.loads(called("prepare", "--config", config, "--json").stdout) for _ in range(2))
    assert first["train_files"] == 5
    assert first["train_tokens"] == 5005
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["fingerprint"] == second["fingerprint"]
    assert Path(first["train_path"]).stat().st_size == 5005


def test_a_dry_run_writes_nothing(config: Path, called: Call) -> None:
    result = called("prepare", "--config", config, "--dry-run", "--json")
    assert result.returncode == 0
    assert "5 files to train on, 0 held out" in result.stderr
    planned = json.loads(result.stdout)
    assert planned["bytes"] == 5000
    assert not Path(planned["directory"]).parent.exists()


def test_the_shipped_smoke_configuration_needs_no_files(tmp_path: Path, called: Call) -> None:
    smoke = ROOT / "configs" / "smoke.yaml"
    result = called("prepare", "--config", smoke, "--set", f"data.prepared_directory={tmp_path}", "--json")
    assert result.returncode == 0, result.stderr
    assert "MB train" in result.stderr
    assert json.loads(result.stdout)["validation_tokens"] > 100_000


def test_a_stream_is_tried_and_one_that_cannot_be_reached_exits_4(
    config: Path, tmp_path: Path, program: Program
) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    line: list[str | Path] = [
        "--config",
        config,
        "--set",
        "data.hugging_face.validation_split=null",
        "--json",
    ]
    line += ["--set", "data.train_path=null", "--set"]
    here = program("prepare", *line, f"data.hugging_face.dataset={tmp_path}/train", **offline)
    assert here.returncode == 0, here.stderr
    assert "train: read while training, nothing to prepare [ok]" in here.stderr
    assert len(json.loads(here.stdout)["fingerprint"]) == 64
    assert not (tmp_path / "prepared").exists()
    away = program("prepare", *line, "data.hugging_face.dataset=allenai/c4", **offline)
    assert away.returncode == 4
    assert "\nallenai/c4 cannot be read from the Hugging Face Hub (" in f"\n{away.stderr}"
    assert "Unset HF_HUB_OFFLINE, or" in away.stderr


def test_a_failure_is_in_the_job_summary(config: Path, tmp_path: Path, called: Call) -> None:
    files = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    for text in (tmp_path / "train").iterdir():
        text.write_text("")
    result = called("prepare", "--config", config, **files)
    assert result.returncode == 2
    summary = (tmp_path / "summary").read_text()
    assert summary.startswith("### ❌ Not started: the data could not be prepared\n")
    reason = result.stderr.strip().splitlines()[-1]
    assert reason in summary
    assert reason in (tmp_path / "output").read_text()
