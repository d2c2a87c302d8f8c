"""Checkpoints of five formats are found on a volume of a real cluster, copied out, cut off and resumed.

They are copied to a folder and to a real S3 server, through the API server, while a pod writes beside them.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.checkpoint_shapes import TRACKER, dcp, digests, plant_all
from tests.integration.nodes.conftest import IMAGE, SPACE, Nodes
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
COMMAND = "job checkpoints"
NEWEST = {
    "large/step-1": "dcp",
    "hf/checkpoint-200": "huggingface",
    "megatron/iter_0000200": "megatron",
    "ours/checkpoints/step-00000200": "trainyard",
    "titan/step-200": "dcp",
    "verl/global_step_200": "verl",
}
"""The newest complete checkpoint of each run, and its format."""
BESIDE = "ours/checkpoints verl megatron titan hf large"
WRITES = f"""while :; do
  for run in {BESIDE}; do head -c 500000 /dev/urandom > /ckpt/$run/new.tmp; done; sleep 0.2
done"""
FROM = {"claim": ("--claim", "fsx"), "pod": ("--pod", "writer", "--path", "/ckpt")}


@pytest.fixture(scope="module")
def volume(nodes: Nodes) -> Path:
    folder = Path(nodes.plane.add_volume("data", storage_class="fsx", size="1200Gi"))
    plant_all(folder, big=6 << 20)
    dcp(folder / "large" / "step-1", 240 << 20)
    return folder


@pytest.fixture(scope="module")
def claim(nodes: Nodes, volume: Path) -> None:
    nodes.manage(*CREATE, name=COMMAND)


@pytest.fixture(scope="module")
def writer(nodes: Nodes, claim: None) -> Iterator[None]:
    """A pod that keeps writing into the folder of every run."""
    container = {
        "name": "train",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", WRITES],
        "volumeMounts": [{"name": "v", "mountPath": "/ckpt"}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "fsx"}}],
        "terminationGracePeriodSeconds": 0,
    }
    nodes.request("POST", f"{SPACE}/pods", {"metadata": {"name": "writer"}, "spec": spec})
    path = f"{SPACE}/pods/writer"
    wait_for(lambda: nodes.request("GET", path)["status"].get("phase") == "Running", "the writer")
    yield
    nodes.request("DELETE", path)


CREATE = ("create-volume", "--claim", "fsx", "--size", "1200Gi", "--storage-class", "fsx")


def copy_line(nodes: Nodes, *words: str) -> list[str]:
    where = ("--python", sys.executable, "--kubeconfig", str(nodes.plane.kubeconfig), "--json")
    return [sys.executable, "-m", "trainyard", *COMMAND.split(), "copy", *words, *where]


def copied(nodes: Nodes, *words: str) -> Any:
    """Copy, and return the printed JSON."""
    done = subprocess.run(copy_line(nodes, *words), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_small_pod_finds_them_all_and_goes(nodes: Nodes, volume: Path) -> None:
    nodes.claim("alone", volume)  # no pod mounts it, also where the writer runs
    alone = ("--claim", "alone")
    assert nodes.manage("find", *alone, name=COMMAND, code=2) == "", "no image to read it with"
    helped = (*alone, "--image", IMAGE, "--python", sys.executable)
    found = json.loads(nodes.manage("find", *helped, "--json", name=COMMAND))
    assert {each["path"]: each["format"] for each in found["checkpoints"]} == NEWEST
    helpers = f"{SPACE}/pods?labelSelector=trainyard.dev%2Fhelper"
    wait_for(lambda: not nodes.request("GET", helpers)["items"], "the helper to go")
    assert nodes.manage("list", *helped, name=COMMAND).count("partial") == 5


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize("path", NEWEST)
def test_each_format_is_copied_out_while_a_pod_writes_beside_it(
    path: str, nodes: Nodes, volume: Path, tmp_path: Path
) -> None:
    source = FROM["claim" if "verl" in path else "pod"]
    data = copied(nodes, *source, "--checkpoint", path, "--to", str(tmp_path))
    name = path.rpartition("/")[2]
    expected = {f"{name}/{file}": sha256 for file, sha256 in digests(volume / path).items()}
    there = digests(tmp_path)
    assert {file: sha256 for file, sha256 in there.items() if file.startswith(f"{name}/")} == expected
    assert data["sha256"] == digests(volume / path)
    beside = {TRACKER} if NEWEST[path] in ("verl", "megatron") else set()
    assert set(there) - set(expected) == beside
    again = copied(nodes, *source, "--checkpoint", path, "--to", str(tmp_path))
    assert (again["fetched_bytes"], again["kept_files"]) == (0, len(expected))


@pytest.mark.usefixtures("writer")
def test_a_copy_that_is_killed_goes_on_where_it_was(nodes: Nodes, volume: Path, tmp_path: Path) -> None:
    words = ("--pod", "writer", "--path", "/ckpt/large", "--step", "1", "--to", str(tmp_path))
    with subprocess.Popen(
        copy_line(nodes, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        wait_for(lambda: size_of(tmp_path) > 20 << 20, "bytes")
        first.kill()
    assert not (tmp_path / "step-1").exists(), "it was killed in time"
    kept = size_of(tmp_path)
    data = copied(nodes, *words)
    assert data["sha256"] == digests(volume / "large/step-1")
    there = {file.removeprefix("step-1/"): sha256 for file, sha256 in digests(tmp_path).items()}
    assert data["sha256"].items() <= there.items()
    assert data["fetched_bytes"] == data["bytes"] - kept < data["bytes"]


@pytest.mark.usefixtures("claim")
def test_a_copy_goes_on_through_a_restart_of_the_api_server(
    nodes: Nodes, volume: Path, tmp_path: Path
) -> None:
    line = copy_line(nodes, "--claim", "fsx", "--image", IMAGE, "--path", "large", "--to", str(tmp_path))
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as copy:
        wait_for(lambda: size_of(tmp_path / ".step-1.partial") > 20 << 20, "bytes")
        nodes.plane.restart("kube-apiserver")
        out, err = copy.communicate(timeout=300)
    assert copy.returncode == 0, err
    assert json.loads(out)["cuts"] > 0
    assert digests(tmp_path / "step-1") == digests(volume / "large" / "step-1")
