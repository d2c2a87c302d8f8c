"""A kind of job that is one new file and one line of the registry is planned, sent, followed and cancelled.

A separate process adds the line before it imports anything else, as if the line were in the file.
The kind is the Job of Volcano, which this repository does not support.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.unit.gateways.kubernetes.memory_cluster import memory_cluster, write_kubeconfig
from tests.unit.jobs.plans import IMAGE, ROOT

NEW_KIND = '''
"""Job of Volcano, `batch.volcano.sh/v1alpha1`."""

from trainyard.cluster.needed_apis import Controller, NeededApi, choose_kind
from trainyard.jobs.job_kind import JobKind, Manifests
from trainyard.jobs.job_object import job_object, make_files_config_map
from trainyard.jobs.pod_template import pod_template
from trainyard.jobs.state.reading import NOT_ACTED, Phase, Reading, field_of

PHASES = {"Running": Phase.RUNNING, "Completed": Phase.SUCCEEDED, "Failed": Phase.FAILED}


def render(plan):
    tasks = [{"name": "worker", "replicas": plan.nodes, "template": pod_template(plan, "worker")}]
    spec = {"minAvailable": plan.nodes, "maxRetry": plan.restarts, "tasks": tasks}
    return Manifests(job_object(plan, "batch.volcano.sh/v1alpha1", "Job", spec), make_files_config_map(plan))


def read_status(observed):
    phase = field_of(observed.job, "status", "state", "phase")
    return Reading(PHASES.get(phase, Phase.NEW), f"Volcano states {phase}" if phase else NOT_ACTED)


KIND = JobKind(
    name="volcano",
    api_kind="Job",
    apis=(NeededApi("batch.volcano.sh", "v1alpha1", "jobs", "Volcano"),),
    controllers=(Controller("Volcano controller", ("volcano-controllers",)),),
    trial_spec=lambda template, _: {"tasks": [{"replicas": 1, "template": template}]},
    longest_name=50,
    render=render,
    read_status=read_status,
    pod_label="volcano.sh/job-name",
)
'''
PROGRAM = """
import contextlib
import io
import json
import sys

from trainyard.config.registries import JOB_KINDS, Choice

JOB_KINDS["volcano"] = Choice("Job of Volcano", "volcano_job")

from trainyard.jobs.job_spec import JobSpec
from trainyard.cluster.needed_apis import choose_kind
from trainyard.cluster.trial_objects import trial_job
from trainyard.cluster.cluster_query import needed_permissions
from trainyard.command import output
from trainyard.command.cluster_options import job_values
from trainyard.commands import job as job_command, job_deploy
from trainyard.config.cluster import ClusterConfig
from trainyard.config.schema import Config
from trainyard.jobs.kinds import KINDS
from trainyard.run.untrusted_files import read_yaml


def ran(command, *words):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command.main([*words, "--json"])
    return {"code": code, "data": json.loads(printed.getvalue())}


kubeconfig, config, image = sys.argv[1:]
cluster = ["--kubeconfig", kubeconfig]
words = ["--config", config, "--job-name", "llama", "--image-uri", image, "--instance-type", "p5.48xlarge"]
words += ["--set", "compute.strategy=ddp", "--set", "cluster.kind=volcano", "--volume", "fsx"]
plan = ran(job_deploy, *words, "--dry-run")
given = job_values(job_deploy.parse_args(words))
spec = JobSpec(**given).with_settings(ClusterConfig(kind="volcano"))
kind = choose_kind(spec.kind, tuple(KINDS.values()), {})

from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.cluster_connection import access_by_kubeconfig
from trainyard.jobs.job_kind import Manifests
from trainyard.jobs.job_submission import submit

from pathlib import Path

api = Api(access_by_kubeconfig(Path(kubeconfig), "", read=read_yaml))
*parts, job = plan["data"]["objects"]
submit(api, Manifests(job, tuple(parts)))
states = []
for phase in ("", "Running", "Completed"):
    api.merge(KINDS["volcano"].path("default", "llama"), {"status": {"state": {"phase": phase}}})
    states.append(ran(job_command, "status", "llama", "--kind", "volcano", *cluster)["data"]["status"])
api.merge(KINDS["volcano"].path("default", "llama"), {"status": {"state": {"phase": "Running"}}})
print(json.dumps({
    "schema": Config.model_json_schema()["$defs"]["ClusterConfig"]["properties"]["kind"]["enum"],
    "plan": plan["data"]["plan"]["kind"],
    "permissions": [p.resource for p in needed_permissions(spec, kind)][:2],
    "trial": trial_job(kind, spec)["apiVersion"],
    "states": states,
    "listed": [job["kind"] for job in ran(job_command, "ls", *cluster)["data"]["jobs"]],
    "cancelled": ran(job_command, "cancel", "llama", *cluster)["data"]["changes"],
    "deleted": ran(job_command, "delete", "llama", "--no-logs", *cluster)["data"]["changes"],
}))
"""


def test_a_kind_of_job_is_one_file_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "volcano_job.py").write_text(NEW_KIND)
    with memory_cluster() as cluster:
        cluster.served["/apis/batch.volcano.sh/v1alpha1"] = [("jobs", "Job")]
        kubeconfig = tmp_path / "kubeconfig"
        write_kubeconfig(kubeconfig, cluster.server, "default")
        words = [str(kubeconfig), str(ROOT / "configs" / "smoke.yaml"), IMAGE]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert cluster.names("jobs") == []
    found = json.loads(done.stdout)
    assert found["schema"][-1] == "volcano"
    assert found["plan"] == "volcano"
    assert found["permissions"] == ["jobs", "jobs"]
    assert found["trial"] == "batch.volcano.sh/v1alpha1"
    assert found["states"] == ["Pending", "Pending", "Succeeded"]
    assert found["listed"] == ["volcano"]
    assert found["cancelled"] == ["suspend jobs/llama"]
    assert found["deleted"] == ["delete jobs/llama", "delete configmaps/llama-files"]
