"""The script that dispatches the next segment: what it asks GitHub for, and when it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.gateways.github_api import GitHub
from trainyard.run.segment import Segment

FIRST = Segment("4711", 1, 812, "0123456789abcdef0123456789abcdef01234567")
PLAN = {
    "inputs": {"target": "gpu-runner", "config": "x.yaml", "overrides": "", "epochs": "", "resume": "none"},
    "segment": json.loads(FIRST.to_text()),
    "ref": "main",
    "store": "s3://ml-runs/phase2",
    "most_segments": 20,
}
STOPPED = ["--plan", json.dumps(PLAN), "--exit-code", "75", "--step", "500", "--stored", "true"]
STORED = [*STOPPED, "--manifest", "run-812-manifest.json"]


@pytest.fixture(scope="module")
def continue_lineage(load_script: Any) -> Any:
    return load_script("continue_lineage")


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What GitHub is asked for, in the place of GitHub."""
    asked: list[dict[str, Any]] = []

    def dispatch(_self: GitHub, workflow: str, *, ref: str, inputs: dict[str, str]) -> str:
        asked.append({"workflow": workflow, "ref": ref, "inputs": inputs})
        return "https://github.com/o/r/actions/runs/2"

    monkeypatch.setattr(GitHub, "dispatch", dispatch)
    for name, value in {"GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_ACTIONS": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.delenv("TRAINYARD_WORKFLOW", raising=False)
    return asked


def test_the_next_segment_goes_on_from_what_was_stored(
    continue_lineage: Any, dispatched: list[Any], tmp_path: Path
) -> None:
    assert continue_lineage.main([*STORED, "--thread", "C0123:1732140000.000100"]) == 0
    [asked] = dispatched
    assert (asked["workflow"], asked["ref"]) == ("training_ci.yml", "main")
    assert asked["inputs"]["resume"] == "s3://ml-runs/phase2/manifests/run-812-manifest.json"
    following = json.loads(asked["inputs"]["continues"])
    assert (following["number"], following["step"]) == (2, 500)
    assert following["thread"] == "C0123:1732140000.000100"
    assert "Goes on: segment 2 of at most 20" in (tmp_path / "summary").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (STOPPED, "not in the store"),
        ([*STORED, "--stored", "false"], "not in the store"),
        ([*STORED, "--step", ""], "not in the store"),
        ([*STORED, "--step", "0"], "did not move on"),
        ([*STORED, "--exit-code", "1"], "exit code 1"),
    ],
)
def test_what_does_not_go_on_is_red_and_says_why(
    continue_lineage: Any,
    dispatched: list[Any],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
    tmp_path: Path,
) -> None:
    assert continue_lineage.main([*arguments, "--json"]) == 1
    assert dispatched == []
    told = capsys.readouterr()
    assert "::error title=The run is not done%2C and nothing follows::" in told.err
    assert reason in json.loads(told.out)["reason"]
    assert reason in (tmp_path / "summary").read_text()


def test_a_dry_run_dispatches_nothing(
    continue_lineage: Any, dispatched: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert continue_lineage.main([*STORED, "--dry-run"]) == 0
    assert dispatched == []
    assert json.loads(capsys.readouterr().out)["ref"] == "main"
