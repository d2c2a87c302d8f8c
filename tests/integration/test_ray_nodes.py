"""A command on each node of a real Ray cluster; $RAY_PYTHON names a Python with ray and this package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.test_launchers import free_port
from tests.unit.jobs.plans import objects, request
from tests.unit.jobs.recipe_orders import recipe_config

from trainyard.jobs.job_planning import plan_job

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
    line = [sys.executable, "-m", "trainyard", "step", "ray", "--num-nodes", "2"]
    line += ["--nproc-per-node", "3", "--"]
    given = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run([*line, *command], env=given, capture_output=True, text=True)
    ran.append([done.returncode, done.stdout, done.stderr])
print(json.dumps(ran))
cluster.shutdown()
"""


DRIVER = """
import json, os, ray

# As verl does: a variable that the driver has is not set for the actors again.
own = {name: "WARN" for name in ("NCCL_DEBUG", "VLLM_LOGGING_LEVEL") if name not in os.environ}
ray.init(runtime_env={"env_vars": own})

@ray.remote(num_cpus=2)
class Actor:
    def log(self):
        return [os.environ.get(name, "") for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")]

    def node(self):
        return ray.get_runtime_context().get_node_id()

actors = [Actor.remote() for _ in range(2)]
nodes = ray.get([actor.node.remote() for actor in actors])
print("FOUND", json.dumps([ray.get([actor.log.remote() for actor in actors]), len(set(nodes))]))
"""
JOB = """
import json, sys, time
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

head = dict(num_cpus=2, include_dashboard=True, dashboard_port=int(sys.argv[2]))
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2)
client = JobSubmissionClient(f"http://127.0.0.1:{sys.argv[2]}")
job = client.submit_job(entrypoint=f"{sys.executable} driver.py", runtime_env=json.loads(sys.argv[1]))
deadline = time.monotonic() + 150
while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline:
    time.sleep(1)
print(client.get_job_logs(job))
cluster.shutdown()
"""


def test_actors_on_both_nodes_get_the_variables_of_the_job(tmp_path: Path) -> None:
    """The RayJob's variables reach the actors of a driver that sets its own, as verl's does."""
    python = os.environ.get("RAY_PYTHON")
    if not python:
        pytest.skip("needs Ray: set RAY_PYTHON to a Python that has ray[default]")
    job = objects(plan_job(recipe_config("verl"), request(kind="rayjob", nodes=2)))[-1]
    given = json.loads(job["spec"]["runtimeEnvYAML"])
    (tmp_path / "driver.py").write_text(DRIVER)
    line = [python, "-c", JOB, json.dumps({"env_vars": given["env_vars"]}), str(free_port())]
    quiet = {**os.environ, "RAY_DISABLE_USAGE_STATS": "1"}
    done = subprocess.run(line, cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=240)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    logs, nodes = json.loads(found[0].removeprefix("FOUND "))
    assert nodes == 2
    assert logs == [["INFO", "/checkpoints/team/llama/logs/nccl-node-0-%h-%p.log"]] * 2


def test_each_node_gets_its_rank_and_a_failure_ends_the_others(tmp_path: Path) -> None:
    python = os.environ.get("RAY_PYTHON")
    if not python:
        pytest.skip("needs Ray: set RAY_PYTHON to a Python that has ray and this package")
    said = '"$PET_NODE_RANK/$PET_NNODES x$PET_NPROC_PER_NODE $RANK"'
    told = f"echo {said} >> {tmp_path}/told; cat {tmp_path}/in/file"
    commands = [["sh", "-c", told], ["sh", "-c", 'test "$PET_NODE_RANK" = 1 && exit 7; sleep 600']]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAY_DISABLE_USAGE_STATS": "1"}
    environment["TRAINYARD_FILES"] = json.dumps({f"{tmp_path}/in/file": "brought along"})
    line = [python, "-c", CLUSTER, json.dumps(commands)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    good, bad = json.loads(done.stdout.splitlines()[-1])
    assert good[0] == 0, good
    assert sorted((tmp_path / "told").read_text().splitlines()) == ["0/2 x3 ", "1/2 x3 "]
    assert good[1].count("brought along") == 2
    assert bad[0] == 7, bad
    assert "node 1 ended with exit code 7" in bad[2]


def test_without_ray_the_driver_says_so(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "trainyard", "step", "ray", "--", "true"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Ray is not installed" in done.stderr
