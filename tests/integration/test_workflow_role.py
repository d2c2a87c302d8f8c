"""A workflow's role on a real STS and S3 server, which checks GitHub's token and ends sessions after 30 s."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from tests import warm_start
from tests.github_identity import github_identity

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.command import handler
from trainyard.commands import doctor, step_action
from trainyard.commands.run import RunRequest
from trainyard.errors import ConfigError, PermissionRefusedError
from trainyard.gateways.kubernetes.cluster_access import read_access
from trainyard.pipeline import Pipeline
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import write_outcome

MakeRun = Callable[..., RunDirectory]
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
TRAINING_SECONDS = 35


@pytest.fixture
def in_step(monkeypatch: pytest.MonkeyPatch, role_store: Any) -> Callable[..., dict[str, str]]:
    """Sets the environment of a step that has the role and no keys, and returns it."""

    def enter(**more: str) -> dict[str, str]:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in role_store.variables(**more).items():
            monkeypatch.setenv(name, value)
        return dict(os.environ)

    return enter


def open_bucket(url: str) -> Any:
    return open_store(url, encryption="none", call_seconds=5)


def test_the_access_of_a_step_decides_what_it_may_do(
    role_store: Any, in_step: Callable[..., dict[str, str]]
) -> None:
    url = f"s3://{role_store.endpoint.new_bucket()}/runs"
    in_step(TRAINYARD_AWS_ACCESS="write")
    assert open_bucket(url).put_new("run-1/checkpoint-5/weights", b"1", metadata={})
    for access, may_read, may_write in (("read", True, False), ("check", False, False)):
        in_step(TRAINYARD_AWS_ACCESS=access)
        store = open_bucket(url)
        assert list(store.folders()) == ["run-1"]
        if may_read:
            assert store.read_object("run-1/checkpoint-5/weights") == b"1"
        else:
            with pytest.raises(PermissionRefusedError):
                store.read_object("run-1/checkpoint-5/weights")
        assert not may_write
        with pytest.raises(PermissionRefusedError):
            store.put_new("run-1/checkpoint-5/other", b"2", metadata={})


@pytest.mark.parametrize("access", ["check", "write"])
def test_the_check_before_a_run_assumes_the_role_by_itself(
    access: str, role_store: Any, in_step: Callable[..., dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{role_store.endpoint.new_bucket()}/runs"
    in_step(TRAINYARD_AWS_ACCESS=access)
    code = handler.exit_code_of(lambda: doctor.main(["--store", url, "--json"]))
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"]) == (0, "ok")
    assert found["findings"][0]["found"].endswith("role/trainyard-ci can be assumed")


def test_the_check_reports_a_role_that_does_not_trust_the_job(
    role_store: Any,
    in_step: Callable[..., dict[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"s3://{role_store.endpoint.new_bucket()}/runs"
    monkeypatch.setitem(role_store.identity.claims, "sub", "repo:me/lab:ref:refs/heads/feature")
    in_step()
    code = handler.exit_code_of(lambda: doctor.main(["--store", url, "--json"]))
    findings = {found["check"]: found for found in json.loads(capsys.readouterr().out)["findings"]}
    assert code == 1
    assert set(findings) == {"role"}
    assert "sub with the token's: repo:me/lab:ref:refs/heads/feature." in findings["role"]["found"]
    assert url in findings["role"]["fix"]


OF_PIPELINE = (
    *("SLACK_BOT_TOKEN", "SLACK_WEBHOOK_URL", "ACTIONS_ID_TOKEN_REQUEST_URL"),
    *("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "TRAINYARD_SIGNING_KEY", "TRAINYARD_SIGNING_KEY_PASSWORD"),
)
SHOW = """
import json, os
open("seen", "w").write(json.dumps(dict(os.environ)))
print({"step": 1, "loss": 1.0})
"""


def environment_of_program(
    entry: str, folder: Path, variables: dict[str, str], changes: str
) -> dict[str, str]:
    """Return what a program sees that the action, or the step of the workflow, starts."""
    config = {"recipe": "command", "program": {"command": [sys.executable, "show.py"]}}
    (folder / "show.py").write_text(SHOW)
    (folder / "trainyard.yaml").write_text(json.dumps(config))
    where = {"run_dir": f"runs/{time.monotonic()}", "store": (folder / "store").as_uri()}
    where["run_number"] = "auto"
    plan: dict[str, Any] = {**where, "config": "trainyard.yaml", "overrides": changes, "deadline": "1h"}
    plan |= {"resume": "none", "fetch": "false", "job_minutes": 60, "title": "7", "most_segments": "1"}
    plan |= {"run_id": Path(where["run_dir"]).name, "target": "gpu-runner", "segment": "1"}
    plan |= {"thread": "", "reason": "", "expected": "{}"}
    inputs = {"CONFIG": plan["config"], "CHANGES": changes}
    inputs |= {name.upper(): value for name, value in where.items()}
    inputs = inputs if entry == "action" else {"TRAINYARD_PLAN": json.dumps(plan)}
    hidden = ("GITHUB_", "SLACK_", "TRAINYARD_", "AWS_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    line = [sys.executable, "-m", "trainyard", "step", "action"]
    done = warm_start.run(line, env={**kept, **variables, **inputs}, cwd=folder, timeout=300)
    assert (folder / "seen").exists(), done.stderr
    found: dict[str, str] = json.loads((folder / "seen").read_text())
    (folder / "seen").unlink()
    return found


@pytest.mark.parametrize("entry", ["action", "step of the workflow"])
def test_the_program_gets_a_secret_of_the_pipeline_only_if_it_is_named(entry: str, tmp_path: Path) -> None:
    """Real processes, because each hands its environment on to the next."""
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"of the pipeline")
    )
    wrong = []
    with github_identity() as identity:
        ours = dict.fromkeys(OF_PIPELINE, "of the pipeline") | identity.variables()
        ours["TRAINYARD_SIGNING_KEY"] = key.decode()
        # In a workflow no step that runs a program has the role.
        names = [*OF_PIPELINE, *(("TRAINYARD_AWS_ROLE", *KEYS) if entry == "action" else ())]
        given = ours | dict.fromkeys(KEYS, "of the machine")
        for way, named in (("default", []), ("program.environment", names), ("TRAINYARD_PASS", names[::2])):
            own = dict.fromkeys(named, "its own") if way == "program.environment" else {}
            changes = f"program.environment={json.dumps(own)}"
            variables = given | ({way: ", ".join(named)} if way == "TRAINYARD_PASS" else {})
            found = environment_of_program(entry, tmp_path, variables, changes)
            for name in {*names, *KEYS}:
                machine = "of the machine" if name in KEYS else None
                passed = own.get(name, ours.get(name, "of the role")) if name in named else machine
                value = found.get(name)
                if value != passed and not (passed == "of the role" and value and value != machine):
                    wrong.append(f"{way}: {name} is {value}")
    assert wrong == []


def test_the_program_of_the_action_has_credentials_that_open_the_store_if_they_are_named(
    role_store: Any, in_step: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, found = role_store.endpoint.new_bucket(), list[RunRequest]()

    @contextmanager
    def pipeline_to_run(request: RunRequest) -> Iterator[Pipeline]:
        variables = dict(os.environ)
        keys = {name.lower(): variables[name] for name in variables if name in KEYS}
        client = boto3.client("s3", region_name=variables["AWS_REGION"], **keys)
        client.put_object(Bucket=bucket, Key="by-the-program", Body=b"1")
        found.append(request)
        yield Pipeline(run_dir=Path("x"), config=Path("x"), store="")

    in_step(TRAINYARD_AWS_REGION="us-west-2", TRAINYARD_PASS=" ".join((*KEYS, "AWS_REGION")))
    for name in (*KEYS, "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "")  # so that it is restored
    monkeypatch.setattr(step_action, "pipeline_to_run", pipeline_to_run)
    monkeypatch.setattr(step_action, "run_pipeline", lambda *_, **__: 0)
    for name, value in {"COMMAND": "python train.py", "RUN_DIR": "x", "DEADLINE": "8h"}.items():
        monkeypatch.setenv(name, value)
    assert step_action.main([]) == 0
    words = ["python", "train.py"]
    assert found == [RunRequest(command=words, changes=[], run_dir=Path("x"), deadline=28_800.0)]
    with pytest.raises(ConfigError, match="deadline: 'soon' is not a duration such as 8h"):
        step_action.request_of({"COMMAND": "python train.py", "DEADLINE": "soon"})


def test_a_program_of_a_kubeconfig_has_credentials_of_the_role(
    in_step: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    in_step()
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho "{\\"status\\": {\\"token\\": \\"$AWS_ACCESS_KEY_ID\\"}}"\n')
    plugin.chmod(0o755)
    access = read_access(
        {
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"exec": {"command": str(plugin)}}}],
        },
        path=tmp_path / "config",
        context="c",
    )
    assert access.credentials.token is not None
    assert access.credentials.token().startswith("ASIA")


@pytest.mark.slow
def test_each_checkpoint_is_stored_while_a_run_outlives_its_credentials(
    role_store: Any, in_step: Callable[..., dict[str, str]], make_run: MakeRun, tmp_path: Path
) -> None:
    url = f"s3://{role_store.endpoint.new_bucket()}/runs"
    directory, environment = make_run(steps=(10,)), in_step()
    before = role_store.identity.calls.count("oidc")
    command = [sys.executable, "-m", "trainyard", "store", "sync", "--follow", "--store", url]
    started, step, stored = time.monotonic(), 10, list[float]()
    with (tmp_path / "follower.log").open("wb") as log:
        command += ["--run-number", "7", "--run-dir", str(directory.path), "--encryption", "none"]
        follower = warm_start.Popen(command, env=environment, stderr=log, stdout=log)
        try:
            while (now := time.monotonic() - started) < TRAINING_SECONDS or (now < 600 and not stored[-1]):
                time.sleep(8)
                step += 10
                make_run(steps=(step,))
                assert follower.poll() is None
                stored.append(len(list_steps(role_store, url)))
            write_outcome(directory.run_file, {"status": "succeeded", "exit_code": 0, "steps": step})
            assert follower.wait(120) == 0, (tmp_path / "follower.log").read_text()
        finally:
            follower.kill()
            follower.wait()
    assert stored[-1] > 0, "checkpoints arrived during training"
    in_step(TRAINYARD_AWS_ACCESS="read")
    assert verify_run(open_bucket(url), 7, depth=Depth.FULL).problems == ()
    assert role_store.identity.calls.count("oidc") - before >= 2, "the role was assumed again"


def list_steps(role_store: Any, url: str) -> set[str]:
    """The checkpoints in the store, as a client with keys of its own sees them."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = role_store.endpoint.client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/run-7/")
    return {entry["Key"].split("/")[2] for entry in found.get("Contents", ()) if "checkpoint" in entry["Key"]}
