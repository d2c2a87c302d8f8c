"""Every kind of job renders its plan, by rule; a kind that is one new file and one line is complete."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.unit.gateways.kubernetes.memory_cluster import memory_cluster, write_kubeconfig
from tests.unit.jobs.plans import (
    EACH_SHAPE,
    IMAGE,
    ROOT,
    STRATEGIES,
    config,
    containers,
    instance_for,
    objects,
    plan,
    pod_specs,
    request,
)
from tests.unit.jobs.recipe_orders import recipe_config

from trainyard.config.section import Section
from trainyard.jobs.job_object import PLAN
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec, spec_from_json
from trainyard.jobs.kinds import KINDS
from trainyard.plan.instances import CATALOGUE

GOLDEN = ROOT / "tests" / "golden" / "jobs"
TYPES = [instance.name for instance in EACH_SHAPE]


def planned(kind: str, strategy: str, instance: str, nodes: int) -> JobSpec:
    gpus = next(known.gpus for known in CATALOGUE if known.name == instance)
    tensor = ("compute.replicas=2",) if strategy == "hsdp" and gpus * nodes > 1 else ()
    wanted = request(kind=kind, instance_type=instance_for(kind, instance), nodes=nodes)
    return plan_job(config(*STRATEGIES[strategy], *tensor), wanted)


@each_case("kind", KINDS)
@each_case("instance", TYPES)
def test_pods_have_what_their_instance_type_has(kind: str, instance: str) -> None:
    known = next(one for one in CATALOGUE if one.name == instance)
    for nodes in (1, 128):
        made = planned(kind, "ddp", instance, nodes)
        bodies = objects(made)
        noted = bodies[-1]["metadata"]["annotations"][PLAN]
        assert len(bodies[-1]["metadata"]["annotations"]["trainyard.dev/config-sha256"]) == 64
        assert spec_from_json(json.loads(noted)).to_json() == made.record()
        texts = (json.dumps(text)[1:-1] for text in made.program.files.values())
        assert [text for text in texts if text in noted] == [], "files are in the ConfigMap only"
        found = [container for body in bodies for container in containers(body)]
        assert found
        for container in found:
            limits = container["resources"]["limits"]
            assert container["resources"]["requests"] == limits
            assert limits["nvidia.com/gpu"] == str(known.gpus)
            assert limits.get("vpc.amazonaws.com/efa", "0") == str(known.efa if nodes > 1 else 0)
            names = {entry["name"]: entry.get("value") for entry in container["env"]}
            guard = "AWS Libfabric" if known.efa else "Socket"
            assert names.get("NCCL_NET") == (guard if nodes > 1 else None)
            assert not [name for name in names if name.startswith("FI_")]


@each_case("kind", KINDS)
@each_case(
    ("nodes", "claim", "shared", "groups"),
    [
        (1, "", False, True),
        (1, "ebs", False, True),
        (1, "fsx", True, False),
        (4, "fsx", False, False),
        (4, "fsx", True, False),
    ],
)
def test_files_of_others_on_a_shared_volume_stay_theirs(
    kind: str, nodes: int, claim: str, shared: bool, groups: bool
) -> None:
    """With fsGroup Kubernetes gives every file of the volume to the group of the job."""
    given = {"nodes": nodes, "claim": claim, "shared_claim": shared}
    made = plan(kind=kind, instance_type=instance_for(kind, "p5.48xlarge"), **given)
    for spec in (spec for body in objects(made) for spec in pod_specs(body)):
        submits = spec["containers"][0]["name"] == "ray-job-submitter"
        assert ("fsGroup" in spec["securityContext"]) is (groups and not submits)
        assert ("fsGroupChangePolicy" in spec["securityContext"]) is (groups and not submits)


def test_a_job_on_a_ray_cluster_that_is_there_carries_its_own_files_and_variables() -> None:
    (job,) = objects(plan(kind="raycluster", nodes=2, name="one", ray_cluster="mine"))
    assert job["kind"] == "RayJob" and job["spec"]["clusterSelector"] == {"ray.io/cluster": "mine"}
    variables = json.loads(job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert variables["TRAINYARD_RUN_ID"] == "one"
    assert list(json.loads(variables["TRAINYARD_FILES"])) == ["/scratch/one-files/config.yaml"]
    assert "/scratch/one-files/config.yaml" in job["spec"]["entrypoint"]


def variables_of_actors(made: JobSpec) -> dict[str, str]:
    runtime = json.loads(objects(made)[-1]["spec"].get("runtimeEnvYAML", "{}"))
    return dict(runtime.get("env_vars", {}))


@each_case("given", [{}, {"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/tmp/nccl.%h"}])
@each_case("nodes", [1, 2])
@each_case("kind", ["rayjob", "raycluster"])
def test_ray_keeps_nccls_logs_in_the_run_directory(kind: str, nodes: int, given: dict[str, str]) -> None:
    made = plan_job(recipe_config("verl"), request(kind=kind, nodes=nodes, environment=given))
    variables = variables_of_actors(made)
    log = {name: value for name, value in variables.items() if name.startswith("NCCL_")}
    kept = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/checkpoints/team/llama/logs/nccl-node-0-%h-%p.log"}
    assert log == (kept if nodes > 1 and not given else {})
    assert spec_from_json(made.to_json()) == made
    each = plan_job(recipe_config("megatron"), request(kind=kind, nodes=nodes, environment=given))
    variables = variables_of_actors(each)
    assert not any(name.startswith("NCCL_") for name in variables), "run_program sets it on each node"


@pytest.mark.parametrize(
    ("namespace", "instance", "retry", "resumed"),
    [
        ("hyperpod-ns-team", "ml.p5.48xlarge", 2, True),
        ("kubeflow", "ml.p5.48xlarge", 2, True),
        ("team", "ml.p5.48xlarge", 2, False),
        ("kubeflow", "p5.48xlarge", 2, False),
        ("kubeflow", "ml.p5.48xlarge", 0, False),
    ],
)
def test_hyperpod_resumes_only_what_it_can(namespace: str, instance: str, retry: int, resumed: bool) -> None:
    made = plan(nodes=2, namespace=namespace, instance_type=instance, auto_retry=retry)
    body = objects(made)[-1]
    annotations = body["metadata"]["annotations"]
    assert ("sagemaker.amazonaws.com/enable-job-auto-resume" in annotations) is resumed
    policy = body["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"]
    assert (policy == "OnFailure") is resumed, "auto-resume needs it"
    selector = body["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["nodeSelector"]
    health = selector.get("sagemaker.amazonaws.com/node-health-status")
    assert health == ("Schedulable" if instance.startswith("ml.") else None)


def test_the_end_of_a_pod_leaves_time_for_a_save() -> None:
    for seconds in (30, 300, 3600):
        made = plan("compute.strategy=ddp", f"cluster.pod.grace_seconds={seconds}")
        spec = pod_specs(objects(made)[-1])[0]
        variables = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
        command = spec["containers"][0]["command"]
        trainer = int(command[command.index("--grace") + 1].removesuffix("s"))
        assert 0 < trainer < int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < seconds
        assert spec["terminationGracePeriodSeconds"] == seconds


QUEUED = {"queue": "research", "nodes": 2}
COMMON: list[tuple[str, dict[str, Any]]] = [
    ("pytorchjob-1-g6e.xlarge", {"instance_type": "g6e.xlarge", "nodes": 1}),
    ("pytorchjob-4-p5.48xlarge", {"nodes": 4, "queue": "research"}),
    ("trainjob-2-p4d.24xlarge", {"kind": "trainjob", "instance_type": "p4d.24xlarge", **QUEUED}),
    ("rayjob-2-g5.8xlarge", {"kind": "rayjob", "instance_type": "g5.8xlarge", **QUEUED}),
    ("raycluster-2-g5.8xlarge", {"kind": "raycluster", "instance_type": "g5.8xlarge", **QUEUED}),
    (
        "hyperpod-16-ml.p5en.48xlarge",
        {
            "kind": "hyperpod",
            "instance_type": "ml.p5en.48xlarge",
            "nodes": 16,
            "queue": "research",
            "settings": ("cluster.pod.node_selector={team: '', group: workers}",),
        },
    ),
    (
        "pytorchjob-2-own-command",
        {"nodes": 2, "command": ("torchrun", "train.py", "--steps", "10"), "token_secret": "hf"},
    ),
    (
        "trainjob-2-own-folders",
        {
            "kind": "trainjob",
            "nodes": 2,
            "claim": "",
            "settings": ("checkpointing.shared=false", "artifacts.store=s3://runs"),
        },
    ),
]


@each_case(("name", "changes"), COMMON, ids=[name for name, _ in COMMON])
def test_common_jobs_stay_as_they_are(name: str, changes: dict[str, Any]) -> None:
    """TRAINYARD_WRITE_GOLDEN=1 rewrites the files, which leave out the plan and the configuration."""
    rest = {key: value for key, value in changes.items() if key != "settings"}
    bodies = objects(plan("compute.strategy=ddp", *changes.get("settings", ()), **rest))
    for body in bodies:
        annotations = body["metadata"].get("annotations", {})
        for key in (PLAN, "trainyard.dev/config-sha256"):
            annotations.pop(key, None)
        if body["kind"] == "ConfigMap":
            body["data"] = dict.fromkeys(body["data"], "…")
        body.get("spec", {}).pop("runtimeEnvYAML", None)
    text = yaml.safe_dump_all(bodies, sort_keys=False, allow_unicode=True, width=110)
    path = Path(GOLDEN / f"{name}.yaml")
    if os.environ.get("TRAINYARD_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_a_plan_holds_no_section_and_no_path_of_this_machine() -> None:
    made = plan(nodes=2)
    assert str(ROOT) not in json.dumps(made.to_json())
    assert not any(isinstance(value, Section) for value in vars(made).values())
    assert made.image == IMAGE


# The Job of Volcano, which this repository does not support. A separate process adds its line before it
# imports anything else, as if the line were in the file.
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
