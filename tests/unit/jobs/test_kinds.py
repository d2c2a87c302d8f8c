"""Every kind of job renders its plan: by rule over kinds, strategies, instance types and nodes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
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
def test_processes_of_ray_on_all_nodes_keep_nccls_log_in_the_run_directory(
    kind: str, nodes: int, given: dict[str, str]
) -> None:
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
