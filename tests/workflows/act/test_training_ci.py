"""The shipped training workflow, played from end to end: green only with a proof, red with a reason."""

import json
import re
from typing import Any

import pytest
from tests.workflows.act.conftest import KEY, SECRET

from trainyard.proof import PARTS

pytestmark = pytest.mark.act

TINY = "configs/tiny.yaml"
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
BEFORE_TRAINING = {"Check out the code", "Plan"}
TRAIN = "Train, store and prove"


def store(prefix: str) -> dict[str, str]:
    """Repository variables that point at the bucket."""
    return {"TRAINYARD_STORE": f"s3://ml-runs/{prefix}"}


def keys(bucket: Any) -> dict[str, str]:
    """The environment of a machine that may use the bucket."""
    return {"AWS_ENDPOINT_URL": bucket.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


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


@pytest.fixture(scope="module")
def role_bucket(role_store: Any) -> str:
    return str(role_store.endpoint.new_bucket())


def in_role(role_store: Any) -> dict[str, str]:
    """The environment of a job that may assume a role by GitHub's OIDC token, and has no keys."""
    given: dict[str, str] = role_store.variables(GITHUB_RUN_ID="1")
    return {name: value for name, value in given.items() if name != "TRAINYARD_AWS_ROLE"}


@pytest.fixture(scope="module")
def green(stage_in: Any, tmp_path_factory: pytest.TempPathFactory, role_store: Any, role_bucket: str) -> Any:
    """A run that nothing interrupts, with a role whose credentials live for 30 s."""
    place = {
        "TRAINYARD_STORE": f"s3://{role_bucket}/green",
        "TRAINYARD_AWS_ROLE": ROLE,
        "TRAINYARD_FOLLOW": "",
    }
    return stage_in(tmp_path_factory.mktemp("green")).play(
        "workflow_dispatch",
        inputs={"config": TINY, "set": "training.max_steps=8\ntraining.seed=7\n", "resume": "auto"},
        variables={**place, "TRAINYARD_USD_PER_HOUR": "3600"},
        environment=in_role(role_store),
    )


def test_a_dispatch_is_green_with_a_verified_checkpoint_in_the_bucket(
    green: Any, role_store: Any, role_bucket: str
) -> None:
    played = green
    assert played.green, played.log
    assert set(played.steps.values()) == {"success"}
    [tag] = played.dispatched
    assert (tag["path"].endswith("/git/refs"), tag["ref"]) == (True, "refs/tags/trainyard-lineage-1")
    groups = re.findall(r"::group::(\w+)", played.log)
    order = ["machine", "readiness", "prepare", "claim", "notify", "train", "store", "prove", "report"]
    assert list(dict.fromkeys(groups))[: len(order)] == order

    run = json.loads((played.run_directory / "run.json").read_text())
    assert (run["run_id"], run["seed"], run["outcome"]["steps"]) == ("gh-1", 7, 8)
    assert run["git"]["dirty"] is False
    client = role_store.endpoint.client
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=role_bucket, Prefix="green/")["Contents"]]
    assert "green/manifests/run-1-manifest.json" in keys
    assert any(re.fullmatch(r"green/run-1/checkpoint-0*8/manifest\.json", key) for key in keys), keys

    assert proof(played) == dict.fromkeys(PARTS, True)
    assert played.summary.startswith("### Plan: tiny on gpu-runner")
    assert "✅ Trained and proven" in played.summary
    for part in (
        "xychart-beta",
        "| repeatable | ✅ |",
        "$ ",
        "actions/runs/1",
        "trainyard store restore",
    ):
        assert part in played.summary, part
    assert "❌" not in played.summary
    assert len(played.messages) == 2
    assert "(workflow_dispatch) \\u00b7 tiny, 8 steps" in told(played, "started")
    told(played, "proven")

    assert (played.record / "upload-artifact").read_text().splitlines() == ["training-gh-1-1 30"]
    kept = played.record / "artifacts" / "training"
    assert {path.name for path in kept.iterdir()} >= {"run.json", "config.yaml", "metrics.jsonl", "report"}
    assert json.loads((kept / "report" / "proof.json").read_text())["proven"] is True
    assert not [path for path in kept.rglob("*") if path.name in ("checkpoints", "tensorboard")]


def test_a_push_is_red_in_seconds_when_the_gpu_does_not_answer(stage: Any) -> None:
    played = stage.play("push", variables={"TRAINYARD_STORE": "s3://ml-runs/no-gpu"})
    assert played.exit_code == 1
    assert played.steps[TRAIN] == "failure"
    assert "nvidia-smi failed (exit code 9)" in played.log
    assert "fix: " in played.log
    assert "### ❌ Not started: " in played.summary
    [message] = played.messages
    assert "Training 1 failed" in message
    assert "gpu: nvidia-smi failed (exit code 9)" in message
    assert "Next: gh run view 1 --log-failed" in message
    assert "exit status 1" in played.log


def test_two_segments_on_two_machines_come_to_the_same_bits_as_one(
    stage: Any, bucket: Any, green: Any
) -> None:
    """Each machine is a new one: the checkpoint it resumes from comes from the store.

    The second workflow run is in its second attempt, as its outputs and artifact show.
    """
    asked = {"config": TINY, "set": "training.max_steps=8 training.seed=7"}

    def play(number: int, inputs: dict[str, str], **more: str) -> Any:
        directory = {"TRAINYARD_RUNS_DIRECTORY": str(stage.folder / f"machine-{number}")}
        return stage.play(
            "workflow_dispatch",
            inputs=inputs,
            variables={**store("lineage"), **more, **directory},
            environment=keys(bucket) | run_number(number),
        )

    # The deadline counts from the job's start and passes before the training: one step, then the save.
    first = play(1, {**asked, "resume": "none"}, TRAINYARD_DEADLINE="1s")
    assert_stopped_and_handed_on(first, 1, asked)
    last = play(2, first.dispatched[-1]["inputs"])
    assert last.green, last.log
    events = map(json.loads, (last.run_directory / "events.jsonl").read_text().splitlines())
    assert [event["step"] for event in events if event["event"] == "resumed"] == [1]
    assert {each.run_directory.name for each in (first, last)} == {"gh-1"}
    kept = (last.record / "upload-artifact").read_text()
    assert kept.splitlines() == ["training-gh-1-2 30"]
    assert proof(last) == dict.fromkeys(PARTS, True)
    assert outcome(last)["state_sha256"] == outcome(green)["state_sha256"]
    manifests = bucket.keys("lineage/manifests/")
    assert len(manifests) == 2
    assert {key.split("/run-")[1].split("-")[0] for key in manifests} == {"1"}
    told(last, "resumed 2/20")
    assert "segment 2" in last.summary
    told(last, "proven")


def run_number(number: int) -> dict[str, str]:
    attempt = "2" if number == 2 else "1"
    return {
        "GITHUB_RUN_ID": str(number),
        "GITHUB_RUN_NUMBER": str(number),
        "GITHUB_RUN_ATTEMPT": attempt,
    }


def assert_stopped_and_handed_on(segment: Any, number: int, asked: dict[str, str]) -> None:
    assert segment.exit_code == 1
    assert segment.steps[TRAIN] == "failure"
    assert (outcome(segment)["status"], outcome(segment)["exit_code"]) == ("stopped", 75)
    assert f"Continued: segment {number + 1} of at most 20" in segment.summary
    assert "deadline is near" in told(segment, "stopped")
    made, again, dispatch = segment.dispatched
    assert made == again, "the plan tags the commit; the last job needs the tag"
    assert dispatch["path"].endswith("/actions/workflows/training_ci.yml/dispatches")
    assert dispatch["ref"] == "trainyard-lineage-1"
    handed = json.loads(dispatch["inputs"]["continues"])
    assert handed["inputs"]["set"].split() == asked["set"].split()
    assert handed["inputs"]["resume"] == "s3://ml-runs/lineage/manifests/run-1-manifest.json"
    assert (handed["lineage"], handed["number"], handed["step"]) == ("1", number + 1, number)
    assert handed["commit"] == json.loads((segment.run_directory / "run.json").read_text())["git"]["commit"]


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
