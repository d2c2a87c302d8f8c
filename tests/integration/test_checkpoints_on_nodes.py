"""Checkpoints of five formats are found on a volume of a real cluster, copied out, cut off and continued.

Real kubelets and a real API server, from the kit in $TRAINYARD_CONTROL_PLANE; needs root.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration import checkpoint_shapes
from tests.integration.checkpoint_shapes import digests, plant_all
from tests.integration.control_plane import kit
from tests.integration.job_world import World, eventually

pytestmark = pytest.mark.slow
Json = dict[str, Any]
IMAGE = "example.com/training:1"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manage_checkpoints.py"
SPACE = "/api/v1/namespaces/default"
WRITES = "while :; do head -c 3000000 /dev/urandom > /ckpt/ours/checkpoints/new.tmp; sleep 0.2; done"
NEWEST = {
    "large/step-1": "dcp",
    "hf/checkpoint-200": "huggingface",
    "megatron/iter_0000200": "megatron",
    "ours/checkpoints/step-00000200": "trainyard",
    "titan/step-200": "dcp",
    "verl/global_step_200": "verl",
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    sys.path.insert(0, str(kit() / "node"))
    module = importlib.import_module("real_node")
    try:
        module.require()
    except module.Unavailable as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("nodes")
    with module.RealCluster(directory / "cluster", real_nodes=1) as cluster:
        cluster.load_image(IMAGE, layers=["/"])
        yield World(cluster, None, {})


@pytest.fixture(scope="module")
def volume(nodes: World) -> Path:
    folder: Path = Path(nodes.plane.add_volume("data", storage_class="fsx", size="1200Gi"))
    plant_all(folder, big=6 << 20)
    checkpoint_shapes.dcp(folder / "large" / "step-1", 240 << 20)
    return folder


def manage(nodes: World, *words: str, code: int = 0) -> str:
    line = [sys.executable, str(SCRIPT), *words, "--kubeconfig", str(nodes.plane.kubeconfig)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout


def size_of(folder: Path) -> int:
    """The bytes of the files that are in the folder, but for what is noted of them."""
    return sum(p.stat().st_size for p in folder.glob("*") if p.name != ".copied.jsonl")


def test_a_volume_is_made_read_and_copied_out_while_a_pod_writes(
    nodes: World, volume: Path, tmp_path: Path
) -> None:
    planned = manage(
        nodes, "create-volume", "--claim", "fsx", "--size", "1200Gi", "--storage-class", "fsx", "--dry-run"
    )
    assert "would be created" in planned
    with pytest.raises(RuntimeError):
        nodes.request("GET", f"{SPACE}/persistentvolumeclaims/fsx")
    for answer in ("created", "is there already"):
        made = manage(nodes, "create-volume", "--claim", "fsx", "--size", "1200Gi", "--storage-class", "fsx")
        assert answer in made
    manage(nodes, "create-volume", "--claim", "fsx", "--size", "9600Gi", "--storage-class", "fsx", code=2)

    # Without a pod: a helper reads, and is gone afterwards.
    refused = manage(nodes, "find", "--claim", "fsx", code=2)
    assert refused == ""
    found = json.loads(
        manage(nodes, "find", "--claim", "fsx", "--image", IMAGE, "--python", sys.executable, "--json")
    )
    assert {each["path"]: each["format"] for each in found["checkpoints"]} == NEWEST
    eventually(lambda: not nodes.request("GET", f"{SPACE}/pods")["items"], "the helper to go")
    listed = manage(nodes, "list", "--claim", "fsx", "--image", IMAGE, "--python", sys.executable)
    assert listed.count("partial") == 5

    writer = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer"},
        "spec": {
            "containers": [
                {
                    "name": "train",
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        "sh",
                        "-c",
                        WRITES,
                    ],
                    "volumeMounts": [{"name": "v", "mountPath": "/ckpt"}],
                }
            ],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "fsx"}}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    nodes.request("POST", f"{SPACE}/pods", writer)
    eventually(
        lambda: nodes.request("GET", f"{SPACE}/pods/writer")["status"].get("phase") == "Running", "the writer"
    )
    for path in NEWEST:
        where = ("--claim", "fsx") if path.startswith("verl") else ("--pod", "writer", "--path", "/ckpt")
        manage(
            nodes,
            "copy",
            *where,
            "--checkpoint",
            path,
            "--to",
            str(tmp_path / "out"),
            "--python",
            sys.executable,
        )
        name = path.rpartition("/")[2]
        assert digests(tmp_path / "out" / name) == digests(volume / path), path
    assert (tmp_path / "out" / checkpoint_shapes.TRACKER).read_text() == "200"

    # Cut off by a kill, and continued; then into a store.
    line = [sys.executable, str(SCRIPT), "copy", "--pod", "writer", "--path", "/ckpt/large", "--step", "1"]
    line += ["--to", str(tmp_path / "cut"), "--python", sys.executable]
    line += ["--kubeconfig", str(nodes.plane.kubeconfig)]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as first:
        partial = tmp_path / "cut" / ".step-1.partial"
        eventually(lambda: size_of(partial) > 20 << 20, "bytes")
        first.kill()
    assert not (tmp_path / "cut" / "step-1").exists()
    before = size_of(partial)
    shown = subprocess.run([*line, "--json"], capture_output=True, text=True, timeout=200, check=True)
    data = json.loads(shown.stdout)
    assert digests(tmp_path / "cut" / "step-1") == digests(volume / "large/step-1")
    assert data["fetched_bytes"] == data["bytes"] - before < data["bytes"]
    store = (tmp_path / "store").as_uri()
    for kept in (0, 4):
        words = ("--pod", "writer", "--path", "/ckpt/hf", "--to", store, "--python", sys.executable)
        data = json.loads(manage(nodes, "copy", *words, "--json"))
        assert data["kept_files"] in (0, kept)
    nodes.request("DELETE", f"{SPACE}/pods/writer")


def test_a_copy_goes_on_through_a_restart_of_the_api_server(
    nodes: World, volume: Path, tmp_path: Path
) -> None:
    line = [sys.executable, str(SCRIPT), "copy", "--claim", "fsx", "--image", IMAGE, "--path", "large"]
    line += ["--to", str(tmp_path), "--python", sys.executable, "--json"]
    line += ["--kubeconfig", str(nodes.plane.kubeconfig)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as copy:
        partial = tmp_path / ".step-1.partial"
        eventually(lambda: size_of(partial) > 20 << 20, "bytes")
        nodes.plane.restart("kube-apiserver")
        out, err = copy.communicate(timeout=300)
    assert copy.returncode == 0, err
    assert json.loads(out)["cuts"] > 0
    assert digests(tmp_path / "step-1") == digests(volume / "large" / "step-1")
