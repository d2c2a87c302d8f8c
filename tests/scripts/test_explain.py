"""The places where `trainyard explain` finds a failure, and what `trainyard network` finds in NCCL's logs."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Call
from tests.unit.gateways import test_github
from tests.unit.gateways.test_github import TOKEN, Server

from trainyard.commands import explain as explain_command
from trainyard.errors import ConfigError
from trainyard.proof import PARTS
from trainyard.run.directory import RunDirectory
from trainyard.run.judged_records import digests_now
from trainyard.run.run_lock import locked

server = test_github.server
LOST = "The self-hosted runner: gpu-7 lost communication with the server."
CANCELED = "2026-11-20T12:00:00.1234567Z ##[error]The operation was canceled.\n"


def explain(*words: str | Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert explain_command.main([*map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    names = "schema_version class cause responsible fix retryable other_node evidence level root"
    assert set(found) == set(names.split())
    return found


def make_run(folder: Path, recipe: str, outcome: dict[str, Any], log: str = "") -> Path:
    (folder / "logs").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run_id": "r1", "recipe": recipe, "outcome": outcome}))
    (folder / "logs" / "node-0.log").write_text(log)
    return folder


def test_a_run_is_explained_by_its_record_and_else_by_its_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = {"class": "nan", "fix": "Lower training.learning_rate", "set": {"training.learning_rate": 1e-5}}
    outcome = {"status": "failed", "exit_code": 1, "reason": "Step 5: the loss is not finite (nan)"}
    ours = make_run(tmp_path / "ours", "pretrain", {**outcome, "failure": failure})
    found = explain("--run-dir", ours, capsys=capsys)
    assert (found["class"], found["responsible"], found["retryable"]) == ("nan", "configuration", False)
    assert found["fix"].startswith("Lower training.learning_rate: ") and "learning_rate=1e-05" in found["fix"]

    outcome = {"status": "failed", "exit_code": 1, "reason": "the program ended with exit code 1"}
    other = make_run(
        tmp_path / "an other", "command", outcome, "OSError: [Errno 28] No space left on device\n"
    )
    found = explain(other, capsys=capsys)
    assert found["class"] == "disk-full" and "; then: " in found["fix"] and "an other" in found["fix"]

    with pytest.raises(ConfigError, match="not a run"):
        explain_command.main(["--run-dir", str(tmp_path)])


def test_a_run_that_trained_is_explained_by_its_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = {"status": "succeeded", "exit_code": 0, "finished": 5.0}
    run = make_run(tmp_path / "run", "pretraining", outcome, "OSError: [Errno 28] No space left on device\n")
    assert "trainyard prove" in explain("--run-dir", run, capsys=capsys)["fix"]
    parts = [{"name": name, "passed": name != "stored"} for name in PARTS]
    parts[3] |= {"evidence": "manifest: missing", "fix": "sync it"}
    (run / "report").mkdir()
    records = digests_now(RunDirectory(run))
    proof = {"proven": False, "parts": parts, "run_id": "r1", "finished": 5.0, "records": records}
    (run / "report" / "proof.json").write_text(json.dumps(proof))
    found = explain("--run-dir", run, capsys=capsys)
    assert (found["class"], found["fix"]) == ("not-proven", "sync it")
    assert found["cause"] == "stored: manifest: missing"


def test_a_run_that_was_cut_off_is_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", "pretraining", {}, "step 1\n")
    found = explain("--run-dir", run, capsys=capsys)
    assert found["class"] == "unknown" and "ended without an outcome" in found["cause"]
    assert "; then: " in found["fix"]
    with locked(run):
        assert "ended without an outcome" not in explain("--run-dir", run, capsys=capsys)["cause"]
    (run / "logs" / "node-0.log").write_text("OSError: [Errno 28] No space left on device\n")
    assert explain("--run-dir", run, capsys=capsys)["class"] == "disk-full"
    explain_command.main(["--log", str(run / "run.json")])
    assert "  retry: once, if steps were made" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("address", [False, True])
def test_a_workflow_run_is_explained_by_annotations_and_logs(
    address: bool, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("GITHUB_API_URL", server.url)
    jobs = [
        {"id": 1, "name": "plan", "conclusion": "success"},
        {"id": 2, "name": "train", "conclusion": "failure"},
    ]
    page = "per_page=100&page=1"
    server.say(f"GET /repos/o/r/actions/runs/4711/jobs?filter=latest&{page}", (200, {"jobs": jobs}))
    server.say(f"GET /repos/o/r/check-runs/2/annotations?{page}", (200, [{"message": LOST}]))
    server.say("GET /repos/o/r/actions/jobs/2/logs", (200, CANCELED.encode()))
    run = "https://github.com/o/r/actions/runs/4711/job/2" if address else "4711"
    found = explain("--github-run", run, capsys=capsys)
    assert (found["class"], found["responsible"], found["retryable"]) == ("node-lost", None, True)
    assert found["evidence"][0] == f"annotations of train:1: {LOST}"

    server.say(f"GET /repos/o/r/check-runs/2/annotations?{page}", (200, []))
    found = explain("--github-run", run, capsys=capsys)
    assert found["class"] == "unknown" and "annotations" in found["fix"], "the line says no cause"

    server.say("GET /repos/o/r/actions/jobs/2/logs", (404, {"message": "Not Found"}))
    assert "log could not be downloaded" in str(explain("--github-run", run, capsys=capsys)["evidence"])


def test_a_build_is_explained_by_its_phases_and_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        "batch_get_builds": {
            "builds": [
                {
                    "id": "p:1",
                    "buildStatus": "FAILED",
                    "logs": {"groupName": "g", "streamName": "s"},
                    "phases": [
                        {
                            "phaseType": "BUILD",
                            "phaseStatus": "FAILED",
                            "contexts": [
                                {"statusCode": "COMMAND_EXECUTION_ERROR", "message": "exit status 1"}
                            ],
                        }
                    ],
                }
            ]
        },
        "get_log_events": {
            "events": [{"message": "[Container] 2026/11/20 12:00:00 error: Hash mismatch for `numpy==2`"}]
        },
    }

    class Account:  # moto's builds have neither messages nor logs
        region = "us-east-1"

        def __init__(self, region: str) -> None: ...

        def call(self, service: str, operation: str, **words: object) -> object:
            return answers[operation]

    monkeypatch.setattr(explain_command, "AwsAccount", Account)
    found = explain("--build", "p:1", capsys=capsys)
    assert (found["class"], found["root"]) == ("unknown", "error: Hash mismatch for `numpy==2`")
    assert found["evidence"][-1] == "log of p:1: the beginning of this log is missing"


SOCKET = "NET/Socket/0"


def write_logs(folder: Path, by: str, *lines: str) -> list[Path]:
    """Write the logs of two processes on two machines that are joined by a network."""
    paths = []
    for rank in range(2):
        head = f"node-{rank}:7:9 [0] NCCL INFO "
        text = (
            *lines,
            f"comm 0x5 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            f"Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via {by}",
            f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via {by}",
        )
        paths.append(folder / f"rank {rank}.log")
        paths[-1].write_text("".join(f"{head}{line}\n" for line in text))
    return paths


def test_the_type_of_the_machines_decides_what_is_expected(called: Call, tmp_path: Path) -> None:
    logs = write_logs(tmp_path, "NET/Libfabric/0")
    for type_, code in (("p5.48xlarge", 1), ("ml.g6.8xlarge", 0)):
        done = called("network", "--log", *logs, "--instance-type", type_, "--num-nodes", "2", "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"]) == (code, "efa-no-gpudirect"), done.stderr
        assert (answer["ranks_seen"], answer["world_size"]) == (2, 2)
        assert any("NET/Libfabric/0" in line for line in answer["evidence"])


def test_a_fallback_is_explained_in_words(called: Call, tmp_path: Path) -> None:
    logs = write_logs(tmp_path, SOCKET, "NET/Plugin: Could not find: libnccl-net.so.")
    done = called("network", "--log", *logs, "--instance-type", "p5.48xlarge")
    assert done.returncode == 1
    first, *_, cause, fix = done.stdout.splitlines()
    assert first.startswith(
        "tcp-fallback: 4 channels: Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"
    )
    assert cause == "  cause: NCCL did not find the plugin of EFA (aws-ofi-nccl)"
    assert fix.startswith("  fix:   install aws-ofi-nccl in the image")


def test_what_cannot_be_read_is_exit_code_2(called: Call) -> None:
    for words, said in (
        ((), "--log"),
        (("--log", "none.log"), "none.log: missing"),
        (("--log", "x", "--instance-type", "p5.48xlage"), "did you mean p5.48xlarge?"),
        (("--log", "x", "--num-nodes", "0"), "--num-nodes"),
    ):
        done = called("network", *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
