"""A command on each node of a real Ray cluster; $RAY_PYTHON names a Python with ray and this package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
CLUSTER = """
import json, os, subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster()
for _ in range(2):
    cluster.add_node(num_cpus=2, include_dashboard=False)
ran = []
for command in json.loads(sys.argv[1]):
    line = [sys.executable, "scripts/run_on_ray.py", "--num-nodes", "2", "--nproc-per-node", "3", "--"]
    given = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run([*line, *command], env=given, capture_output=True, text=True)
    ran.append([done.returncode, done.stdout, done.stderr])
print(json.dumps(ran))
cluster.shutdown()
"""


def test_each_node_gets_its_rank_and_a_failure_ends_the_others(tmp_path: Path) -> None:
    python = os.environ.get("RAY_PYTHON")
    if not python:
        pytest.skip("needs Ray: set RAY_PYTHON to a Python that has ray and this package")
    said = '"$PET_NODE_RANK/$PET_NNODES x$PET_NPROC_PER_NODE $RANK"'
    told = f"echo {said} >> {tmp_path}/told; cat {tmp_path}/in/file"
    commands = [["sh", "-c", told], ["sh", "-c", 'test "$PET_NODE_RANK" = 1 && exit 7; sleep 600']]
    environment = {
        **os.environ,
        "TRAINYARD_FILES": json.dumps({f"{tmp_path}/in/file": "brought along"}),
        "PYTHONPATH": str(ROOT / "src"),
        "RAY_DISABLE_USAGE_STATS": "1",
    }
    done = subprocess.run(
        [python, "-c", CLUSTER, json.dumps(commands)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    good, bad = json.loads(done.stdout.splitlines()[-1])
    assert good[0] == 0, good
    assert sorted((tmp_path / "told").read_text().splitlines()) == ["0/2 x3 ", "1/2 x3 "]
    assert good[1].count("brought along") == 2
    assert bad[0] == 7, bad
    assert "node 1 ended with exit code 7" in bad[2]


def test_without_ray_the_driver_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_on_ray.py"), "--", "true"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Ray is not installed" in done.stderr
