"""The archive about a failed run: its files, and no secret in them."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
from tests.scripts import test_manage_training_job
from tests.scripts.test_manage_training_job import failed, show
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, PodLog

from trainyard.commands import debug_dump
from trainyard.errors import ConfigError

cluster = test_manage_training_job.cluster
kubeconfig = test_manage_training_job.kubeconfig
TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "a run"
    (run / "logs").mkdir(parents=True)
    outcome = {"status": "failed", "exit_code": 1, "reason": "the program ended with exit code 1"}
    (run / "run.json").write_text(json.dumps({"run_id": "r1", "recipe": "command", "outcome": outcome}))
    secrets = "{URL: 'pg://u:pw@h', MY_API_KEY: correct-horse}"
    (run / "config.yaml").write_text(f"recipe: command\nprogram: {{environment: {secrets}}}\n")
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
    texts = read_archive(file)
    assert {"run.json", "config.yaml", "explanation.json", "machine/versions.json"} <= set(texts)
    assert json.loads(texts["explanation.json"])["class"] == "disk-full"
    assert json.loads(texts["machine/environment.json"])["NCCL_DEBUG"] == "WARN"
    assert texts["logs/node-0.log"].startswith("(the first ") and "No space left" in texts["logs/node-0.log"]
    assert not any(TOKEN in text for text in texts.values())
    assert f"token ***{hashlib.sha256(TOKEN.encode()).hexdigest()[:8]}\n" in texts["logs/node-0.log"]
    assert "pg://u:***@h" in texts["config.yaml"] and "MY_API_KEY: ***" in texts["config.yaml"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        debug_dump.main([str(tmp_path)])
    with pytest.raises(ConfigError, match="is not a run directory"):
        debug_dump.main([str(tmp_path / "none")])


def read_archive(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }


def plant_job(cluster: MemoryCluster) -> str:
    """Plant a failed job whose pods hold secrets of no known form, in variables, annotations and logs."""
    raw, pods = failed()
    secret = "correct-horse-battery"
    for each in (raw, *pods):
        copy = json.dumps({"env": [{"name": "STUDY_PASSWORD", "value": secret}]})
        each["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = (
            copy
        )
    for each in pods:
        each["spec"]["nodeName"] = "gpu-7"
        each["spec"].setdefault("containers", [{"name": "pytorch"}])[0]["env"] = [
            {"name": "STUDY_PASSWORD", "value": secret},
            {"name": "ANYTHING_ELSE", "value": secret},
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "TORCH_AUTH_TOKEN", "value": secret},
        ]
    show(cluster, raw, pods)
    lines = (f"token {TOKEN}", f"my {secret}", "Killed")
    for name in cluster.logs:
        cluster.logs[name] = PodLog([*lines])
    cluster.objects["/version"] = {"gitVersion": "v1.33.1"}
    cluster.objects["/api/v1/nodes/gpu-7"] = {
        "metadata": {"name": "gpu-7", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
        "status": {"addresses": [{"address": "10.1.2.3"}], "conditions": [{"type": "Ready"}]},
    }
    return secret


def test_a_job_has_its_cluster_pods_logs_and_events_and_no_secret(
    cluster: MemoryCluster, kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = plant_job(cluster)
    monkeypatch.setenv("STUDY_PASSWORD", secret)
    monkeypatch.setenv("ANYTHING_AT_ALL", "of this machine")
    file = tmp_path / "dump.tar.gz"
    place = ["--kubeconfig", kubeconfig]
    assert debug_dump.main(["job", "--output", str(file), *place]) == 0
    texts = read_archive(file)
    assert {"status.json", "events.json", "job.json", "pods.json", "explanation.txt"} <= set(texts)
    assert json.loads(texts["explanation.json"])["class"] == "oom-host"
    facts = json.loads(texts["cluster.json"])
    assert facts["version"]["gitVersion"] == "v1.33.1"
    assert facts["nodes"]["gpu-7"]["labels"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    logs = [text for name, text in texts.items() if name.startswith("logs/")]
    assert logs and all(text for text in logs)
    shown = json.loads(texts["pods.json"])[0]["spec"]["containers"][0]["env"]
    assert [each["value"] for each in shown] == ["(left out)", "(left out)", "INFO", "(left out)"]
    assert not any(hidden in text for text in texts.values() for hidden in (secret, TOKEN, "of this machine"))
    assert json.loads(texts["machine/environment.json"])["ANYTHING_AT_ALL"] == "(left out)"


def test_what_the_cluster_refuses_is_named_and_the_rest_is_there(
    cluster: MemoryCluster, kubeconfig: str, tmp_path: Path
) -> None:
    plant_job(cluster)
    cluster.fault("GET", "/nodes/gpu-7", 403)
    file = tmp_path / "dump.tar.gz"
    assert debug_dump.main(["job", "--output", str(file), "--kubeconfig", kubeconfig]) == 0
    assert "refused" in json.loads(read_archive(file)["cluster.json"])["nodes"]["gpu-7"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("jo", "There is no job jo in team; did you mean job?"),
        ("quite-different", "There is no job quite-different in team; trainyard job ls lists all"),
        ("No_Name", "is not the name of an object in a cluster"),
    ],
)
def test_a_wrong_name_is_neither_a_run_nor_a_job(
    cluster: MemoryCluster, kubeconfig: str, name: str, why: str
) -> None:
    plant_job(cluster)
    with pytest.raises(ConfigError) as error:
        debug_dump.main([name, "--kubeconfig", kubeconfig])
    assert str(error.value).startswith(f"{name} is neither a run's directory nor a job that was found.\n")
    assert why in str(error.value)


def test_without_a_cluster_a_wrong_name_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a run's directory nor a job(.|\n)*no such kubeconfig"):
        debug_dump.main(["nope", "--kubeconfig", str(tmp_path / "none")])
