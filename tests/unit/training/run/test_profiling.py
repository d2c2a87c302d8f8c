"""A trace of the chosen steps only; training gives the same numbers; other steps are refused at once."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, StoppedError
from trainyard.run.records import read_rows

Build = Callable[..., Config]
Run = Callable[..., dict[str, Any]]


def steps_of(trace: Path) -> set[str]:
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    assert any("aten::" in name for name in names)
    return {name for name in names if name.startswith("step ")}


def test_the_chosen_steps_are_traced_and_the_numbers_stay_the_same(
    tiny_config: Build, run_training: Run, train_once: Run, tmp_path: Path
) -> None:
    plain = train_once("plain")
    traced = run_training(tiny_config(), "traced", profile=range(5, 7))
    assert traced["state_sha256"] == plain["state_sha256"]
    logs = tmp_path / "traced" / "logs"
    assert [path.name for path in logs.iterdir()] == ["profile-steps-5-6-rank-0.json.gz"]
    assert steps_of(logs / "profile-steps-5-6-rank-0.json.gz") == {"step 5", "step 6"}
    profiled = [row for row in read_rows(tmp_path / "traced" / "events.jsonl") if row["event"] == "profiled"]
    assert [(row["step"], row["files"]) for row in profiled] == [(6, ["profile-steps-5-6-rank-0.json.gz"])]


def test_a_stop_in_the_middle_keeps_the_traced_steps(
    tiny_config: Build, run_training: Run, tmp_path: Path, stop_after: Callable[[int], dict[str, Any]]
) -> None:
    with pytest.raises(StoppedError):
        run_training(tiny_config(), profile=range(5, 9), **stop_after(6))
    logs = tmp_path / "run" / "logs"
    assert steps_of(logs / "profile-steps-5-6-rank-0.json.gz") == {"step 5", "step 6"}


@pytest.mark.parametrize("steps", [range(12, 14), range(13, 14)])
def test_steps_that_the_run_does_not_have_are_refused_before_anything_is_written(
    tiny_config: Build, run_training: Run, tmp_path: Path, steps: range
) -> None:
    with pytest.raises(ConfigError, match=r"--profile 1[23]-13: this run trains the steps 1 to 12"):
        run_training(tiny_config(), profile=steps)
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_same_command_resumes_after_a_stop_and_traces_the_other_steps(
    tiny_config: Build, run_training: Run, tmp_path: Path, stop_after: Callable[[int], dict[str, Any]]
) -> None:
    with pytest.raises(StoppedError):
        run_training(tiny_config(), profile=range(5, 9), **stop_after(6))
    assert run_training(tiny_config(), profile=range(5, 9))["status"] == "succeeded"
    names = sorted(path.name for path in (tmp_path / "run" / "logs").iterdir())
    assert names == ["profile-steps-5-6-rank-0.json.gz", "profile-steps-7-8-rank-0.json.gz"]


def test_steps_that_were_trained_before_are_only_reported(
    tiny_config: Build,
    run_training: Run,
    stop_after: Callable[[int], dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(StoppedError):
        run_training(tiny_config(), **stop_after(6))
    assert run_training(tiny_config(), profile=range(5, 7))["status"] == "succeeded"
    assert "--profile 5-6: these steps were trained before" in caplog.text


def test_a_trace_that_cannot_be_written_does_not_end_the_run(
    tiny_config: Build, run_training: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run" / "logs" / "profile-steps-5-6-rank-0.json.gz").mkdir(parents=True)
    assert run_training(tiny_config(), profile=range(5, 7))["status"] == "succeeded"
    assert "could not be written" in caplog.text
    events = [row["event"] for row in read_rows(tmp_path / "run" / "events.jsonl")]
    assert "profiled" not in events
