"""The shipped training workflow, played from end to end: green only with a proof, red with a reason."""

import json
import re
import sys
from typing import Any

import pytest
from tests import warm_start

from trainyard.proof import PARTS

pytestmark = pytest.mark.act

TINY = "configs/tiny.yaml"
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
BEFORE_TRAINING = {"Check out the code", "Plan"}
TRAIN = "Train, store and prove"


def told(played: Any, verdict: str) -> str:
    """The only message in Slack that contains `verdict`."""
    fitting: list[str] = [text for text in played.messages if verdict in text.lower()]
    assert len(fitting) == 1, played.messages
    return fitting[0]


def outcome(played: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((played.run_directory / "run.json").read_text())["outcome"]
    return result


def proof(played: Any) -> dict[str, bool]:
    """Which of the five parts hold."""
    record = json.loads((played.run_directory / "report" / "proof.json").read_text())
    return {part["name"]: part["passed"] for part in record["parts"]}


def test_two_segments_on_two_machines_are_one_proven_run(stage: Any, role_store: Any) -> None:
    """Each machine is a new one with a role: the checkpoint that it resumes from comes from the store.

    The role's credentials live for 30 s. The second workflow run is in its second attempt, as its outputs
    and artifact show.
    """
    bucket = str(role_store.endpoint.new_bucket())
    requested = {"config": TINY, "set": "training.max_steps=8\ntraining.seed=7\n"}

    def play(number: int, inputs: dict[str, str], **more: str) -> Any:
        variables = {"TRAINYARD_STORE": f"s3://{bucket}/lineage", "TRAINYARD_AWS_ROLE": ROLE, **more}
        variables["TRAINYARD_RUNS_DIRECTORY"] = str(stage.folder / f"machine-{number}")
        given = {"inputs": inputs, "variables": {"TRAINYARD_USD_PER_HOUR": "3600", **variables}}
        return stage.play("workflow_dispatch", environment=in_role(role_store) | run_number(number), **given)

    # The deadline counts from the job's start and passes before the training: one step, then the save.
    first = play(1, {**requested, "resume": "none"}, TRAINYARD_DEADLINE="1s")
    assert_stopped_and_handed_on(first, 1, requested, f"s3://{bucket}/lineage")
    last = play(2, first.dispatched[-1]["inputs"], TRAINYARD_FOLLOW="")
    assert last.green, last.log
    assert set(last.steps.values()) == {"success"}
    groups = re.findall(r"::group::(\w+)", last.log)
    order = list(dict.fromkeys(groups))
    assert order[:6] == ["machine", "readiness", "prepare", "fetch", "inputs", "claim"]
    assert order[6:11] == ["notify", "train", "store", "prove", "report"]
    assert_is_recorded(last)
    assert_is_shown(last)
    assert outcome(last)["state_sha256"] == train_in_one_segment(stage)["state_sha256"]
    prefix = "lineage/"
    found = role_store.endpoint.client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
    keys = [each["Key"].removeprefix(prefix) for each in found]
    manifests = ["manifests/run-1-manifest-2.json", "manifests/run-1-manifest.json"]
    ended = (key for key in keys if key.startswith("manifests/") and "-open-" not in key)
    assert sorted(ended) == manifests
    assert any(re.fullmatch(r"run-1/checkpoint-0*8/manifest\.json", key) for key in keys), keys


def train_in_one_segment(stage: Any) -> dict[str, Any]:
    """Train the same without a workflow; return the outcome."""
    run = stage.folder / "in one segment"
    words = ["train", "--config", TINY, "--set", "training.max_steps=8", "--set", "training.seed=7"]
    line = [sys.executable, "-m", "trainyard", *words, "--run-dir", str(run)]
    done = warm_start.run(line, cwd=stage.repository, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((run / "run.json").read_text())["outcome"]
    return found


def in_role(role_store: Any) -> dict[str, str]:
    """The environment of a job that may assume a role by GitHub's OIDC token, and has no keys."""
    given: dict[str, str] = role_store.variables()
    return {name: value for name, value in given.items() if name != "TRAINYARD_AWS_ROLE"}


def run_number(number: int) -> dict[str, str]:
    attempt = "2" if number == 2 else "1"
    return {"GITHUB_RUN_ID": str(number), "GITHUB_RUN_NUMBER": str(number), "GITHUB_RUN_ATTEMPT": attempt}


def assert_stopped_and_handed_on(segment: Any, number: int, requested: dict[str, str], store: str) -> None:
    assert segment.exit_code == 1
    assert segment.steps[TRAIN] == "failure"
    assert (outcome(segment)["status"], outcome(segment)["exit_code"]) == ("stopped", 75)
    assert f"Continued: segment {number + 1} of at most 20" in segment.summary
    assert "(workflow_dispatch) \\u00b7 tiny, 8 steps" in told(segment, "started")
    assert "deadline is near" in told(segment, "stopped")
    assert len(segment.messages) == 2, "the last job does not report the red job a second time"
    made, again, dispatch = segment.dispatched
    assert made == again, "the plan tags the commit; the last job needs the tag"
    assert dispatch["path"].endswith("/actions/workflows/training_ci.yml/dispatches")
    assert dispatch["ref"] == "trainyard-lineage-1"
    handed = json.loads(dispatch["inputs"]["continues"])
    assert handed["inputs"]["set"].split() == requested["set"].split()
    assert handed["inputs"]["resume"] == f"{store}/manifests/run-1-manifest.json"
    assert (handed["lineage"], handed["number"], handed["step"]) == ("1", number + 1, number)
    assert handed["commit"] == json.loads((segment.run_directory / "run.json").read_text())["git"]["commit"]


def assert_is_recorded(last: Any) -> None:
    """The second segment has resumed after the first step, has the inputs of the first, and is proven."""
    events = map(json.loads, (last.run_directory / "events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["event"] == "resumed"] == [1]
    run = json.loads((last.run_directory / "run.json").read_text())
    assert (run["run_id"], run["seed"], run["outcome"]["steps"]) == ("gh-1", 7, 8)
    assert run["git"]["dirty"] is False
    assert proof(last) == dict.fromkeys(PARTS, True)
    assert (last.record / "upload-artifact").read_text().splitlines() == ["training-gh-1-2 30"]
    kept = last.record / "artifacts" / "training"
    assert {path.name for path in kept.iterdir()} >= {"run.json", "config.yaml", "metrics.jsonl", "report"}
    assert json.loads((kept / "report" / "proof.json").read_text())["proven"] is True
    assert not [path for path in kept.rglob("*") if path.name in ("checkpoints", "tensorboard")]


def assert_is_shown(last: Any) -> None:
    """The summary has proof, curve, cost and the command that restores; Slack has two messages."""
    assert last.summary.startswith("### Plan: tiny on gpu-runner")
    shown = ("segment 2", "✅ Trained and proven", "xychart-beta", "| repeatable | ✅ |", "$ ")
    for part in (*shown, "actions/runs/2", "trainyard store restore"):
        assert part in last.summary, part
    assert "❌" not in last.summary
    assert len(last.messages) == 2
    told(last, "resumed 2/20")
    told(last, "proven")


def test_a_wrong_configuration_is_red_at_its_line_and_no_gpu_is_asked_for(stage: Any) -> None:
    played = stage.play("workflow_dispatch", inputs={"config": "configs/wrong.yaml", "dry_run": "true"})
    assert played.exit_code == 1
    assert played.steps["Plan"] == "failure"
    assert TRAIN not in played.steps
    assert "unknown key; did you mean max_steps?" in played.log
    assert played.summary.startswith("### ❌ Not started")
    [message] = played.messages
    assert "Training 1 failed" in message
    assert "the job Plan failed" in message
    assert "Next: gh run view 1 --log-failed" in message


COMMANDS = """\
gh variable set TRAINYARD_RUNNER_LABELS --body '["self-hosted","gpu"]'
gh variable set TRAINYARD_STORE --body s3://BUCKET/PREFIX
"""


def test_a_fresh_copy_is_green_trains_nothing_and_names_the_two_commands(stage: Any) -> None:
    played = stage.play("push", variables={"TRAINYARD_RUNNER_LABELS": ""})
    assert played.green, played.log
    assert played.steps.keys() == BEFORE_TRAINING
    assert played.summary.startswith("### Nothing was trained: ")
    assert f"```\n{COMMANDS}```" in played.summary
    assert played.summary.count("gh variable set") == 2
    assert "::notice::Nothing was trained" in played.log
    assert (played.messages, played.dispatched) == ([], [])
    assert not (played.record / "upload-artifact").exists()


def test_a_cancelled_run_stops_there_with_its_checkpoints_stored(stage: Any, tmp_path: Any) -> None:
    """The follower has stored the complete checkpoints."""
    played = stage.play(
        "workflow_dispatch",
        inputs={"config": TINY, "set": "training.max_steps=100000"},
        variables={"TRAINYARD_STORE": (tmp_path / "store").as_uri(), "TRAINYARD_FOLLOW": ""},
        cancelled_at_step=6,
    )
    assert played.exit_code == 1
    assert played.steps[TRAIN] == "failure"
    assert not [each for each in played.dispatched if each["path"].endswith("/dispatches")]
    assert "❌ Not proven: trained" in played.summary
    assert "somebody cancelled the run after " in told(played, "not proven")
    assert (tmp_path / "store" / "manifests" / "run-1-manifest.json").is_file(), played.log
    assert list((tmp_path / "store" / "run-1").glob("checkpoint-*/manifest.json"))
