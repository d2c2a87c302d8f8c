"""The shipped training workflow, played from end to end: green only with a proof, red with a reason."""

import json
import re
import threading
import time
from hashlib import sha256
from typing import Any

import pytest

pytestmark = pytest.mark.act

TINY = "configs/tiny.yaml"
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
UNTIL_TRAINING = [
    "Note when the job started",
    "Check out the code",
    "Remove what is not of this commit",
    "Set up",
    "Check the environment",
]


def store(prefix: str) -> dict[str, str]:
    """Repository variables that point at the bucket, with a role to get there."""
    return {"TRAINYARD_STORE": f"s3://ml-runs/{prefix}", "TRAINYARD_AWS_ROLE": ROLE}


def told(played: Any, verdict: str) -> str:
    """The one message of Slack that says `verdict`."""
    fitting: list[str] = [text for text in played.messages if verdict in text.lower()]
    assert len(fitting) == 1, played.messages
    return fitting[0]


def outcome(played: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((played.run_directory / "run.json").read_text())["outcome"]
    return result


def proof(played: Any) -> dict[str, bool]:
    """Which of the four parts hold."""
    record = json.loads((played.run_directory / "report" / "proof.json").read_text())
    return {part["name"]: part["holds"] for part in record["parts"]}


def test_a_dispatch_is_green_with_a_verified_checkpoint_in_the_bucket(stage: Any, bucket: Any) -> None:
    played = stage.play(
        "workflow_dispatch",
        inputs={"config": TINY, "overrides": "training.max_steps=8\ntraining.seed=7\n", "resume": "auto"},
        variables={**store("green"), "TRAINYARD_ATTEST": "true"},
        environment={"AWS_ENDPOINT_URL": bucket.endpoint},
    )
    assert played.green, played.log
    assert set(played.steps.values()) == {"success"}
    assert "Tell Slack that it failed" not in played.steps

    run = json.loads((played.run_directory / "run.json").read_text())
    assert (run["run_id"], run["seed"], run["outcome"]["steps"]) == ("gh-1", 7, 8)
    assert run["git"]["dirty"] is False
    keys = bucket.keys("green/")
    assert "green/manifests/run-1-manifest.json" in keys
    assert any(re.fullmatch(r"green/run-1/checkpoint-0*8/manifest\.json", key) for key in keys), keys

    assert proof(played) == {"trained": True, "network": True, "stored": True, "repeatable": True}
    assert "✅ Trained and proven" in played.summary
    assert "❌" not in played.summary
    assert len(played.messages) == 2
    told(played, "started")
    told(played, "proven")

    found = bucket.client().get_object(Bucket=bucket.name, Key="green/manifests/run-1-manifest.json")
    manifest = found["Body"].read()
    attested = f"run-1-manifest.json sha256:{sha256(manifest).hexdigest()}"
    assert (played.record / "attested").read_text().strip() == attested
    assert (played.record / "role").read_text().strip() == ROLE
    assert (played.record / "setup-python").read_text().strip() == "3.11"
    assert (played.record / "upload-artifact").read_text().split()[1] == "30"
    assert (played.record / "artifact" / "metrics.jsonl").is_file()
    assert list((played.record / "artifact" / "checkpoints").glob("step-*/manifest.json"))


def test_the_daily_run_is_red_when_the_bucket_is_changed_behind_its_back(stage: Any, bucket: Any) -> None:
    damage = threading.Thread(target=flip_a_byte_once_all_is_stored, args=(bucket, "damaged/"), daemon=True)
    damage.start()
    played = stage.play(
        "schedule",
        variables={"TRAINYARD_CONFIG": TINY, **store("damaged")},
        environment={"AWS_ENDPOINT_URL": bucket.endpoint},
    )
    damage.join(5)
    assert not damage.is_alive()
    assert played.exit_code == 1
    assert played.steps["Train"] == "success"
    assert played.steps["Store the artifacts"] == "success"
    assert played.steps["Prove the run"] == "failure", played.log
    assert proof(played) == {"trained": True, "network": True, "stored": False, "repeatable": True}
    assert "❌ Not proven: stored" in played.summary
    assert "stored" in told(played, "not proven")


def flip_a_byte_once_all_is_stored(bucket: Any, prefix: str) -> None:
    """Wait for the run's manifest, which is stored last, then change one byte of a checkpoint's file."""
    end = time.monotonic() + 200
    while not any(key.startswith(f"{prefix}manifests/") for key in bucket.keys(prefix)):
        if time.monotonic() > end:
            return
        time.sleep(0.05)
    key = next(key for key in bucket.keys(prefix) if key.endswith(".distcp"))
    client = bucket.client()
    content = bytearray(client.get_object(Bucket="ml-runs", Key=key)["Body"].read())
    content[len(content) // 2] ^= 1
    client.put_object(Bucket="ml-runs", Key=key, Body=bytes(content))


def test_a_loss_that_is_not_finite_makes_it_red(stage: Any, bucket: Any) -> None:
    played = stage.play(
        "workflow_dispatch",
        inputs={"config": TINY, "overrides": "training.learning_rate=1e30 training.warmup_steps=0"},
        variables=store("diverged"),
        environment={"AWS_ENDPOINT_URL": bucket.endpoint},
    )
    assert played.exit_code == 1
    assert played.steps["Train"] == "failure"
    assert "Store the artifacts" not in played.steps
    assert bucket.keys("diverged/") == []
    assert (outcome(played)["status"], outcome(played)["exit_code"]) == ("failed", 1)
    assert "finite" in outcome(played)["reason"]
    assert proof(played)["trained"] is False
    assert "❌ Not proven: trained" in played.summary
    assert "finite" in told(played, "failed")
    assert (played.record / "artifact" / "run.json").is_file()


def test_a_push_is_red_in_seconds_when_the_gpu_does_not_answer(stage: Any) -> None:
    played = stage.play("push")
    assert played.exit_code == 1
    assert played.steps["Check the environment"] == "failure"
    assert "nvidia-smi failed (exit code 9)" in played.log
    assert "fix: " in played.log
    ran = [name for name in played.steps if name not in UNTIL_TRAINING]
    assert ran == ["Tell Slack that it failed"]
    assert played.summary.startswith("### ❌ Not started: ")
    assert len(played.messages) == 1
    told(played, "failed")


def test_a_run_that_reaches_its_deadline_is_red_and_stored_and_the_next_attempt_ends_it(
    stage: Any, bucket: Any
) -> None:
    dispatch = {"config": TINY, "overrides": "training.max_steps=8", "resume": "none"}
    server = {"AWS_ENDPOINT_URL": bucket.endpoint}
    # Counted from the job's start, so that it has passed before training begins: one step, then the save.
    first = stage.play(
        "workflow_dispatch",
        inputs=dispatch,
        variables=store("stopped") | {"TRAINYARD_DEADLINE": "1s"},
        environment=server,
    )
    assert first.exit_code == 1
    assert first.steps["Train"] == "failure"
    assert first.steps["Store the artifacts"] == "success", first.log
    assert (outcome(first)["status"], outcome(first)["exit_code"]) == ("stopped", 75)
    assert proof(first) == {"trained": False, "network": True, "stored": True, "repeatable": True}
    assert "❌ Not proven: trained" in first.summary
    assert "the deadline is near" in first.summary
    assert "deadline is near" in told(first, "stopped")
    keys = bucket.keys("stopped/")
    assert "stopped/manifests/run-1-manifest.json" in keys
    assert any(re.fullmatch(r"stopped/run-1/checkpoint-0*1/manifest\.json", key) for key in keys), keys

    again = stage.play(
        "workflow_dispatch",
        inputs=dispatch,
        variables=store("stopped"),
        environment=server | {"GITHUB_RUN_ATTEMPT": "2"},
    )
    assert again.green, again.log
    assert again.run_directory == first.run_directory
    events = (again.run_directory / "events.jsonl").read_text().splitlines()
    assert [e["step"] for e in map(json.loads, events) if e["event"] == "resumed"] == [1]
    assert outcome(again)["steps"] == 8
    assert proof(again) == {"trained": True, "network": True, "stored": True, "repeatable": True}
    assert any(re.fullmatch(r"stopped/run-1/checkpoint-0*8/.*", key) for key in bucket.keys("stopped/"))


def test_an_upload_that_github_refuses_makes_it_red_and_the_run_is_stored_all_the_same(
    stage: Any, bucket: Any
) -> None:
    played = stage.play(
        "workflow_dispatch",
        inputs={"config": TINY, "overrides": "training.max_steps=8"},
        variables=store("refused"),
        environment={"AWS_ENDPOINT_URL": bucket.endpoint, "UPLOAD_REFUSED": "1"},
    )
    assert played.exit_code == 1
    red = [name for name, result in played.steps.items() if result == "failure"]
    assert red == ["Keep checkpoint, metrics and logs for 30 days"]
    assert proof(played) == {"trained": True, "network": True, "stored": True, "repeatable": True}
    assert "refused/manifests/run-1-manifest.json" in bucket.keys("refused/")


def test_a_second_attempt_goes_on_where_a_red_one_ended(stage: Any, bucket: Any) -> None:
    inputs = {"config": TINY, "overrides": "training.max_steps=8"}
    nobody = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    first = stage.play("workflow_dispatch", inputs=inputs, variables=store("again"), environment=nobody)
    assert first.exit_code == 1
    assert first.steps["Train"] == "success"
    assert first.steps["Store the artifacts"] == "failure"
    assert "❌ Not proven: stored" in first.summary
    digest = outcome(first)["state_sha256"]
    trained = (first.run_directory / "metrics.jsonl").read_bytes()

    second = stage.play(
        "workflow_dispatch",
        inputs=inputs,
        variables=store("again"),
        environment={"AWS_ENDPOINT_URL": bucket.endpoint},
    )
    assert second.green, second.log
    assert second.run_directory == first.run_directory
    assert outcome(second)["state_sha256"] == digest
    assert (second.run_directory / "metrics.jsonl").read_bytes() == trained
    assert "again/manifests/run-1-manifest.json" in bucket.keys("again/")
