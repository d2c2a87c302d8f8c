"""A large cluster: 2,000 nodes and 20,000 pods take less than 500 MiB, and are counted right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cluster.generated import NAMESPACES, NODES, PODS, State, node, pod, put
from tests.unit.cluster.judging import SCRIPT
from tests.unit.cluster.recorded import serving

MOST_MIB = 500
LAUNCHER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(status)
"""
"""Linux counts the starting process to the peak of a new one; this small process starts the script."""
NODE_COUNT, POD_COUNT = 2000, 20000


def large() -> State:
    """Nodes as large as real ones, with their images, and pods with the environment of a training job."""
    state: State = {}
    images = [{"names": [f"registry.example/image-{n}@sha256:{n:064}"], "sizeBytes": n} for n in range(50)]
    environment = [{"name": f"NCCL_SETTING_{n}", "value": "a value of some length"} for n in range(40)]
    for number in range(NODE_COUNT):
        body = node(f"gpu-{number}", "p5.48xlarge")
        body["status"]["images"] = images
        put(state, NODES, body)
    for number in range(POD_COUNT):
        body = pod(f"job-{number % 100}-{number}", f"gpu-{number % 1000}", gpus=1 if number < 4000 else 0)
        body["spec"]["containers"][0]["env"] = environment
        put(state, PODS, body)
    put(state, NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    return state


@pytest.mark.slow
def test_a_large_cluster_fits_into_memory(tmp_path: Path) -> None:
    with serving(large()) as recorded:
        line = [sys.executable, str(SCRIPT), "capacity", "--json", "--num-nodes", "1000"]
        options = ["--kubeconfig", str(recorded.kubeconfig(tmp_path))]
        ran = subprocess.run(
            [sys.executable, "-c", LAUNCHER, *line, *options], capture_output=True, text=True, check=False
        )
        pages = [request for request in recorded.requests if request.startswith("GET /api/v1/pods")]
    data = json.loads(ran.stdout)
    assert (data["gpus"], data["gpus_free"]) == (8 * NODE_COUNT, 8 * NODE_COUNT - 4000)
    assert (data["fits"], data["places_free"]) == ("now", 1000)
    assert len(pages) == POD_COUNT // 500
    unit = 2**20 if sys.platform == "darwin" else 2**10
    assert int(ran.stderr.split()[-1]) / unit < MOST_MIB
