"""Checkpoints are found in a pod and copied out: the program really runs, behind a server that breaks off."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration import checkpoint_shapes as shapes
from tests.unit.gateways.kubernetes.exec_server import ExecServer, exec_server
from tests.unit.jobs.plans import plan

from trainyard.errors import CheckpointError, ConfigError, ServiceError, ServiceTroubleError, WaitTimeoutError
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.job_reader import FoundJob
from trainyard.jobs.job_spec import Program
from trainyard.jobs.kinds import KINDS, find_kind
from trainyard.jobs.state.pod_facts import Place
from trainyard.jobs.volumes import checkpoint_copy, checkpoint_search
from trainyard.jobs.volumes.checkpoint_copy import CopyReport, copy_to_folder
from trainyard.jobs.volumes.checkpoint_search import (
    open_found_folder,
)
from trainyard.jobs.volumes.volume_source import VolumeSource
from trainyard.programs.checkpoints.checkpoint_formats import FoundCheckpoint, find_checkpoints

pytestmark = pytest.mark.process

Json = dict[str, Any]
SPACE = "/api/v1/namespaces/team"
BIG = 900_000


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    shapes.verl(tmp_path / "volume", 5, BIG)
    return tmp_path / "volume"


@pytest.fixture
def server(volume: Path) -> Iterator[ExecServer]:
    with exec_server(root=str(volume)) as server:
        yield server


def source(server: ExecServer, **more: Any) -> VolumeSource:
    return VolumeSource(Api(server.access()), Place("team", "pod"), "/volume", **more)


def newest(server: ExecServer) -> FoundCheckpoint:
    return find_checkpoints(source(server).listing())[-1]


def copied(server: ExecServer, to: Path, checkpoint: FoundCheckpoint | None = None) -> CopyReport:
    return copy_to_folder(source(server), checkpoint or newest(server), to, progress=lambda _count: None)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_search, "_PAUSE", 0.01)
    monkeypatch.setattr(checkpoint_copy, "PAUSES", (0.01, 0.01))


def test_a_copy_has_bytes_digests_and_tracker(server: ExecServer, volume: Path, tmp_path: Path) -> None:
    done = copied(server, tmp_path / "out")
    assert shapes.digests(tmp_path / "out" / "global_step_5") == shapes.digests(volume / "global_step_5")
    assert done.sha256 == shapes.digests(volume / "global_step_5") and len(done.sha256) == 8
    assert (done.cuts, done.kept_files) == (0, 0)
    assert (tmp_path / "out" / shapes.TRACKER).read_text() == "5"
    assert not list((tmp_path / "out").glob(".*"))
    again = copied(server, tmp_path / "out")
    assert (again.kept_files, again.fetched_bytes) == (8, 0)


def test_cuts_at_any_byte_are_gone_on_from(server: ExecServer, volume: Path, tmp_path: Path) -> None:
    checkpoint = newest(server)
    server.cuts = [1, 70_000, 5, 100_000, 200_000, 0, 3]
    done = copied(server, tmp_path / "out", checkpoint)
    assert done.cuts == 5, "two of the files were shorter than that"
    assert done.fetched_bytes == checkpoint.size, "no byte came twice"
    assert shapes.digests(tmp_path / "out" / "global_step_5") == shapes.digests(volume / "global_step_5")


def test_a_connection_that_stays_broken_ends_it_and_the_next_call_goes_on(
    server: ExecServer, volume: Path, tmp_path: Path
) -> None:
    checkpoint = newest(server)
    server.cuts = [100, 0, 0, 0]
    with pytest.raises(ServiceTroubleError):
        copied(server, tmp_path / "out", checkpoint)
    assert not (tmp_path / "out" / "global_step_5").exists()
    server.cuts = []
    done = copied(server, tmp_path / "out", checkpoint)
    assert done.fetched_bytes == checkpoint.size - 100
    assert shapes.digests(tmp_path / "out" / "global_step_5") == shapes.digests(volume / "global_step_5")


def test_bytes_that_are_changed_on_the_way_or_on_disk_are_fetched_anew(
    server: ExecServer, volume: Path, tmp_path: Path
) -> None:
    checkpoint = newest(server)
    server.mangles = [123]
    done = copied(server, tmp_path / "out", checkpoint)
    assert done.fetched_bytes > checkpoint.size
    whole = tmp_path / "out" / "global_step_5"
    assert shapes.digests(whole) == shapes.digests(volume / "global_step_5")
    victim = whole / "actor" / "model_world_size_2_rank_0.pt"
    victim.write_bytes(b"x" * victim.stat().st_size)
    copied(server, tmp_path / "out", checkpoint)
    assert shapes.digests(whole) == shapes.digests(volume / "global_step_5")
    server.mangles = [99, 99]
    shutil.rmtree(whole)
    with pytest.raises(CheckpointError, match="twice"):
        copied(server, tmp_path / "out", checkpoint)


def test_a_checkpoint_that_changes_or_goes_is_told(server: ExecServer, volume: Path, tmp_path: Path) -> None:
    checkpoint = newest(server)
    data = volume / "global_step_5" / "data.pt"
    data.write_bytes(data.read_bytes() + b"more")
    with pytest.raises(CheckpointError, match=r"data\.pt changed while it was copied"):
        copied(server, tmp_path / "out", checkpoint)
    data.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        copied(server, tmp_path / "out", checkpoint)


def test_a_file_other_than_our_manifests_is_refused(server: ExecServer, volume: Path, tmp_path: Path) -> None:
    folder = shapes.ours(volume / "run", 9)
    state = folder / "state.json"
    state.write_text(state.read_text().replace("9", "8"))
    checkpoint = next(c for c in find_checkpoints(source(server).listing()) if c.step == 9)
    assert checkpoint.is_complete, "its sizes are right"
    with pytest.raises(CheckpointError, match=r"state\.json: SHA-256 .* its manifest says"):
        copied(server, tmp_path / "out", checkpoint)
    assert not (tmp_path / "out" / "step-00000009").exists()


def test_a_disk_that_is_too_small_is_told_first(
    server: ExecServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = newest(server)
    monkeypatch.setattr(checkpoint_copy, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(ConfigError, match="GB are free"):
        copied(server, tmp_path / "out", checkpoint)


def test_an_older_copy_does_not_move_the_tracker_back(server: ExecServer, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / shapes.TRACKER).write_text("7")
    copied(server, tmp_path / "out")
    assert (tmp_path / "out" / shapes.TRACKER).read_text() == "7"


def test_a_pod_without_python_or_with_a_broken_one_is_told(server: ExecServer, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="cannot be run"):
        source(server, python="no-python").listing()
    with pytest.raises(ServiceError, match="failed"):
        source(server, python="false").listing()
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nkill -9 $$\n")
    dying.chmod(0o755)
    with pytest.raises(ServiceTroubleError, match="signal 9"):
        source(server, python=str(dying)).listing()


# The volume that has the checkpoints.


def running_pod(claim: str = "", mount: str = "/volume", **more: Any) -> Json:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    mounts = [{"name": "v", "mountPath": mount, **more}] if claim else []
    return {
        "metadata": {"name": "trainer", "namespace": "team"},
        "spec": {"volumes": volumes, "containers": [{"name": "train", "volumeMounts": mounts}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "train", "state": {"running": {}}}]},
    }


def pods(*found: Json) -> Json:
    return {"metadata": {"resourceVersion": "1"}, "items": list(found)}


def listed(server: ExecServer, *, image: str = "", seconds: float = 300.0, **where: Any) -> list[str]:
    api = Api(server.access())
    with open_found_folder(api, "team", image=image, seconds=seconds, **where) as there:
        return [each.path for each in find_checkpoints(there.listing())]


def test_a_pod_that_mounts_the_claim_is_used(server: ExecServer) -> None:
    server.objects |= {
        f"{SPACE}/persistentvolumeclaims/fsx": {"metadata": {"name": "fsx"}},
        f"{SPACE}/pods": pods(running_pod(), running_pod("fsx", subPath="x"), running_pod("fsx")),
    }
    assert listed(server, claim="fsx") == ["global_step_5"]
    assert server.asked[-1]["path"].endswith("/pods/trainer/exec")
    assert server.changes == []
    with pytest.raises(ConfigError, match="no PersistentVolumeClaim other in team"):
        listed(server, claim="other")


def test_a_pod_is_named_with_its_folder(server: ExecServer) -> None:
    server.objects[f"{SPACE}/pods/trainer"] = running_pod()
    assert listed(server, pod="trainer", path="/volume") == ["global_step_5"]
    with pytest.raises(ConfigError, match="there is no pod nobody"):
        listed(server, pod="nobody", path="/volume")
    server.objects[f"{SPACE}/pods/trainer"] = {"status": {"phase": "Pending"}}
    with pytest.raises(ConfigError, match="is Pending"):
        listed(server, pod="trainer", path="/volume")
    server.objects[f"{SPACE}/pods/trainer"] = running_pod()
    with pytest.raises(CheckpointError, match="there is no folder"):
        listed(server, pod="trainer", path="/volume/none")


def helped(server: ExecServer, statuses: list[Json], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pod mount the claim, and the helper pod have these statuses one after the other."""
    monkeypatch.setattr("secrets.token_hex", lambda _count: "0")
    left = iter(statuses)
    last: list[Json] = []

    def status() -> Json | None:
        last[:] = [next(left, last[0] if last else {})]
        return {"status": last[0]} if last[0] is not None else None

    old = {"metadata": {"name": "trainyard-look-old"}, "status": {"phase": "Failed"}}
    server.objects |= {
        f"{SPACE}/persistentvolumeclaims/fsx": {"metadata": {"name": "fsx"}},
        f"{SPACE}/pods": pods(old),
        f"{SPACE}/pods/trainyard-look-0": status,
    }


def test_a_helper_is_made_and_always_removed(server: ExecServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}
    helped(server, [{}, waits, {"phase": "Running"}], monkeypatch)
    assert listed(server, claim="fsx", image="train:1") == ["global_step_5"]
    methods = [(method, path.rpartition("/")[2]) for method, path, _ in server.changes]
    assert methods == [("DELETE", "trainyard-look-old"), ("POST", "pods"), ("DELETE", "trainyard-look-0")]
    spec = server.changes[1][2]["spec"]
    assert spec["containers"][0]["volumeMounts"][0]["readOnly"] is True
    assert spec["activeDeadlineSeconds"] and not spec["automountServiceAccountToken"]


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, ServiceError, "cannot run.*Evicted"),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]},
            ServiceError,
            "cannot run.*ImagePullBackOff",
        ),
        ({"phase": "Pending"}, WaitTimeoutError, "did not start in 0 s: no node has accepted it"),
    ],
)
def test_a_helper_that_does_not_start_is_told_and_removed(
    server: ExecServer, monkeypatch: pytest.MonkeyPatch, status: Json, error: type[Exception], words: str
) -> None:
    helped(server, [status], monkeypatch)
    with pytest.raises(error, match=words):
        listed(server, claim="fsx", image="train:1", seconds=0.1)
    assert server.changes[-1][:2] == ("DELETE", f"{SPACE}/pods/trainyard-look-0")


def test_without_an_image_no_helper_is_made(server: ExecServer, monkeypatch: pytest.MonkeyPatch) -> None:
    helped(server, [], monkeypatch)
    with pytest.raises(ConfigError, match="--image"):
        listed(server, claim="fsx")
    assert server.changes == []


def sent_job(**changes: Any) -> Json:
    wanted = plan(mount_path="/volume", **changes)
    body: Json = KINDS["pytorchjob"].render(wanted).job
    return body


JOB = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/llama"


def found_job(raw: Json) -> FoundJob:
    return FoundJob(find_kind("pytorchjob"), "team", "llama", raw)


def test_a_job_is_known_by_its_plan(server: ExecServer, volume: Path) -> None:
    body = sent_job(claim="fsx")
    shapes.ours(volume / "team" / "llama", 40)
    shapes.ours(volume / "team" / "llama", 50, done=False)
    server.objects |= {
        JOB: body,
        f"{SPACE}/persistentvolumeclaims/fsx": {"metadata": {"name": "fsx"}},
        f"{SPACE}/pods": pods(running_pod("fsx")),
    }
    api = Api(server.access())
    assert checkpoint_search.newest_step_on_claim(api, found_job(body)) == 40
    assert "step-00000040" in listed(server, job="llama")[0]
    server.objects[f"{SPACE}/pods"] = pods()
    del server.objects[f"{SPACE}/persistentvolumeclaims/fsx"]
    assert checkpoint_search.newest_step_on_claim(api, found_job(body)) is None, "it cannot be known"
    without = sent_job(claim="")
    assert checkpoint_search.newest_step_on_claim(api, found_job(without)) is None
    server.objects[JOB] = without
    with pytest.raises(ConfigError, match="no claim for checkpoints"):
        listed(server, job="llama")
    foreign = {"metadata": {"name": "llama"}}
    assert checkpoint_search.newest_step_on_claim(api, found_job(foreign)) is None
    server.objects[JOB] = foreign
    with pytest.raises(ConfigError, match="was not sent by"):
        listed(server, job="llama", kind="pytorchjob")


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("python", "x.py", "--save", "/ckpt/megatron"), "megatron"),
        (("x", "trainer.default_local_dir=/ckpt/a/b"), "a/b"),
        (("x", "--output_dir=/ckpt/hf"), "hf"),
        (("x", "--save", "/elsewhere"), ""),
        (("x", "--save"), ""),
        (("x",), ""),
    ],
)
def test_the_folder_of_a_run_is_read_from_its_command(words: tuple[str, ...], folder: str) -> None:

    wanted = replace(plan(mount_path="/ckpt"), program=Program("own", words))
    assert checkpoint_search.job_checkpoint_folder(wanted) == folder
