"""Pods of every kind: a fragment of a template reaches each, and by rule which exit codes are final."""

import json
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import config, instance_for, objects, plan, pod_specs, request, templates

from trainyard.errors import ConfigError
from trainyard.jobs.final_exit_codes import code_for_operator, restart_in_place
from trainyard.jobs.job_planning import plan_job, warnings_of
from trainyard.jobs.kinds import KINDS

FRAGMENT: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}},
    "spec": {
        "imagePullSecrets": [{"name": "regcred"}],
        "nodeSelector": {"pool": "vision"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
        "containers": [
            {"name": "main", "env": [{"name": "HF_HOME", "value": "/scratch/hf"}]},
            {"name": "beside"},
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "fast", "operator": "Exists"}]}]
                }
            },
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "rack", "labelSelector": {}}
                ]
            },
        },
    },
}


def with_fragment(fragment: Any = FRAGMENT, *settings: str, **changes: Any) -> list[dict[str, Any]]:
    given = f"cluster.pod.template={json.dumps(fragment)}"
    return objects(plan("compute.strategy=ddp", given, *settings, **changes))


@each_case("kind", KINDS)
def test_every_pod_of_every_kind_has_the_fragment(kind: str) -> None:
    found = with_fragment(
        kind=kind, instance_type=instance_for(kind, "p5.48xlarge"), nodes=2, zone="us-west-2a"
    )
    made = [each for body in found for each in templates(body)]
    assert len(made) == {"pytorchjob": 2, "trainjob": 1, "hyperpod": 1}.get(kind, 3)
    for template in made:
        spec = template["spec"]
        main, *others = spec["containers"]
        is_trainer = main["name"] != "ray-job-submitter"
        assert template["metadata"]["labels"]["team"] == "vision"
        assert template["metadata"]["labels"]["trainyard.dev/job"] == "llama"
        assert spec["imagePullSecrets"] == [{"name": "regcred"}] and spec["nodeSelector"]["pool"] == "vision"
        keys = [each["key"] for each in spec["tolerations"]]
        assert keys == ["nvidia.com/gpu", "vpc.amazonaws.com/efa", "dedicated"]
        assert [each["name"] for each in others] == (["beside"] if is_trainer else [])
        if is_trainer:
            require_main(main, spec["affinity"])


def require_main(main: dict[str, Any], affinity: dict[str, Any]) -> None:
    """The container that trains has its own variables and the fragment's, and the zone of EFA is kept."""
    names = [each["name"] for each in main["env"]]
    assert {"HF_HOME", "TRAINYARD_RUN_ID"} <= set(names) and names.count("HF_HOME") == 1
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    joined = [each["topologyKey"] for each in affinity["podAffinity"][required]]
    assert joined == ["topology.kubernetes.io/zone", "rack"]
    (term,) = affinity["nodeAffinity"][required]["nodeSelectorTerms"]
    assert [each["key"] for each in term["matchExpressions"]] == ["fast", "topology.kubernetes.io/zone"]


@each_case("kind", KINDS)
def test_every_object_has_the_labels_and_annotations_of_the_configuration(kind: str) -> None:
    notes = ("cluster.labels={cost: ml-7}", "cluster.annotations={owner: 'somebody@example.com'}")
    found = with_fragment({}, *notes, kind=kind, instance_type=instance_for(kind, "p5.48xlarge"), nodes=2)
    for body in found:
        assert body["metadata"]["labels"]["cost"] == "ml-7"
        assert body["metadata"]["annotations"]["owner"] == "somebody@example.com"
    assert all("cost" not in each["metadata"]["labels"] for body in found for each in templates(body))


def main_with(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


OWNED: dict[str, dict[str, Any]] = {
    "program.command": main_with(command=["sh"]),
    "the words after --": main_with(args=["x"]),
    "--image-uri (cluster.image)": main_with(image="x:1"),
    "cluster.pod.directory": main_with(workingDir="/x"),
    "--gpu-per-node": main_with(resources={"limits": {"nvidia.com/gpu": 1}}),
    "initContainers[a].resources.limits.nvidia.com/gpu: set by --gpu-per-node": {
        "spec": {"initContainers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}
    },
    "compute.network": main_with(resources={"requests": {"vpc.amazonaws.com/efa": "1"}}),
    "cluster.pod.cpu and cluster.pod.memory": main_with(resources={"limits": {"memory": "1Gi"}}),
    "set by the plan of the job": main_with(env=[{"name": "TRAINYARD_RUN_ID", "value": "x"}]),
    "set by the operator of the job": main_with(env=[{"name": "RANK", "value": "0"}]),
    "set by the plan of the job, or by --env": main_with(env=[{"name": "TRAINYARD_STORE", "value": "x"}]),
    "set by --env too": main_with(env=[{"name": "GIVEN", "value": "x"}]),
    "cluster.volume.mount_path": main_with(volumeMounts=[{"name": "x", "mountPath": "/checkpoints/"}]),
    "set by cluster.pod.shared_memory; remove": main_with(
        volumeMounts=[{"name": "x", "mountPath": "/dev/shm"}]
    ),
    "a mount of the plan is there": main_with(volumeMounts=[{"name": "x", "mountPath": "/scratch"}]),
    "cluster.pod.shared_memory": {"spec": {"volumes": [{"name": "shared-memory", "emptyDir": {}}]}},
    "cluster.pod.grace_seconds": {"spec": {"terminationGracePeriodSeconds": 3}},
    "cluster.pod.restarts": {"spec": {"restartPolicy": "Always"}},
    "called main here": {"spec": {"containers": [{"name": "pytorch", "image": "x:1"}]}},
    "by which it finds the job's objects": {"metadata": {"labels": {"trainyard.dev/job": "x"}}},
    "from --queue": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "x"}}},
    "MY_API_KEY: a secret in plain text": main_with(env=[{"name": "MY_API_KEY", "value": "correct-7-horse"}]),
}


@each_case("key", OWNED)
def test_a_field_that_the_plan_owns_is_refused_with_its_key(key: str) -> None:
    given = f"cluster.pod.template={json.dumps(OWNED[key])}"
    try:
        wanted = request(environment={"GIVEN": "1"}, secret_environment="study")
        plan_job(config("compute.strategy=ddp", given), wanted)
    except ConfigError as error:
        line, count = str(error).splitlines()
        assert line.startswith(("cluster.pod.template", "MY_API_KEY")) and key in line, line
        assert count.startswith("1 error")
        return
    raise AssertionError(f"{OWNED[key]} was not refused")


def test_a_container_beside_the_one_that_trains_is_warned_of() -> None:
    """An init container with restartPolicy Always ends with the training; a container of the pod does not."""
    found = warnings_of(plan("compute.strategy=ddp", f"cluster.pod.template={json.dumps(FRAGMENT)}"))
    assert any("container beside: a pod runs until all" in line for line in found)
    alone = json.dumps(main_with(tty=False))
    told = warnings_of(plan("compute.strategy=ddp", f"cluster.pod.template={alone}"))
    assert not any("container" in line for line in told)


def test_fields_that_are_not_owned_may_be_set() -> None:
    found = with_fragment(
        main_with(
            resources={"limits": {"ephemeral-storage": "9Gi"}},
            env=[
                {"name": "HOME", "value": "/home/me"},
                {"name": "MY_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}},
            ],
            securityContext={"capabilities": {"add": ["IPC_LOCK"]}},
            volumeMounts=[{"name": "data", "mountPath": "/checkpoints/data"}],
        )
    )
    (spec,) = (each for body in found for each in pod_specs(body))
    main = spec["containers"][0]
    assert main["resources"]["limits"]["ephemeral-storage"] == "9Gi" and main["resources"]["limits"]["cpu"]
    assert main["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert {"name": "HOME", "value": "/home/me"} in main["env"]


# By the rules in the source of the operators:
# training operator 1.9   Never restarts nothing; OnFailure everything (pkg/controller.v1/common/pod.go)
# Job and JobSet          podFailurePolicy with FailJob, then FailJobSet; else maxRestarts
# KubeRay 1.6             backoffLimit restarts a failed command whatever its exit code is
CODES = range(1, 256)
FINAL = {2, 3, 6}
"""Wrong configuration; a bug; not proven."""


def restarts_by_pytorch(job: dict[str, Any], code: int) -> bool:
    master = job["spec"]["pytorchReplicaSpecs"]["Master"]
    command = master["template"]["spec"]["containers"][0]["command"]
    if master["restartPolicy"] in ("Never", "ExitCode"):
        is_created_again = master["restartPolicy"] == "ExitCode" and code_for_operator(code) > 127
        return restarts_in_place(command, code) or is_created_again
    assert master["restartPolicy"] == "OnFailure"
    return True


def restarts_by_jobset(runtime: dict[str, Any], code: int) -> bool:
    jobs = runtime["spec"]["template"]["spec"]
    (job,) = jobs["replicatedJobs"]
    rules = job["template"]["spec"].get("podFailurePolicy", {}).get("rules", [])
    ends_job = any(rule["action"] == "FailJob" and code in rule["onExitCodes"]["values"] for rule in rules)
    ends_set = ["PodFailurePolicy"] in [r["onJobFailureReasons"] for r in jobs["failurePolicy"]["rules"]]
    return not (ends_job and ends_set) and jobs["failurePolicy"]["maxRestarts"] > 0


def restarts_by_ray(job: dict[str, Any], code: int) -> bool:
    if job["spec"].get("backoffLimit", 0):
        return True
    return restarts_in_place(job["spec"]["entrypoint"].split(), code)


def restarts_in_place(words: list[str], code: int) -> bool:
    restarts = int(words[words.index("--restarts") + 1]) if "--restarts" in words else 0
    ran: list[int] = []

    def run() -> int:
        ran.append(code)
        return code

    assert restart_in_place(run, restarts, lambda _: None) == code
    assert len(ran) in (1, restarts + 1)
    return len(ran) > 1


def restarted(bodies: list[dict[str, Any]], code: int) -> bool:
    by_kind = {body["kind"]: body for body in bodies}
    if "PyTorchJob" in by_kind:
        return restarts_by_pytorch(by_kind["PyTorchJob"], code)
    if "TrainingRuntime" in by_kind:
        return restarts_by_jobset(by_kind["TrainingRuntime"], code)
    return restarts_by_ray(by_kind["RayJob"], code)


@each_case("kind", [kind for kind in KINDS if kind != "hyperpod"])
@each_case("nodes", [1, 4])
@each_case("claim", ["fsx", ""])
def test_exit_codes_that_no_restart_helps_are_final_everywhere(kind: str, nodes: int, claim: str) -> None:
    """The operator of HyperPodPyTorchJob is not published, so nothing is claimed of it."""
    apart = () if claim else ("checkpointing.shared=false", "artifacts.store=s3://runs/phase2")
    if apart and KINDS[kind].on_ray and nodes > 1:
        return  # Ray's nodes share a volume
    made = plan(
        "compute.strategy=ddp",
        *apart,
        kind=kind,
        nodes=nodes,
        claim=claim,
        instance_type=instance_for(kind, "p5.48xlarge"),
    )
    bodies = objects(made)
    assert {code for code in CODES if not restarted(bodies, code)} == FINAL
    once = objects(plan("compute.strategy=ddp", "cluster.pod.restarts=0", kind=kind, nodes=nodes))
    assert not any(restarted(once, code) for code in CODES)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "rayjob"])
def test_the_exit_codes_of_a_command_of_ones_own_mean_nothing_to_us(kind: str) -> None:
    bodies = objects(plan(kind=kind, nodes=1, command=("python", "train.py")))
    assert all(restarted(bodies, code) for code in CODES)


def test_what_was_asked_to_end_is_not_started_again_in_place() -> None:
    codes = iter([1, 75, 1])
    said: list[str] = []
    assert restart_in_place(lambda: next(codes), 5, said.append, last=(75,)) == 75
    assert said == ["ended with exit code 1; restart 1 of 5"]
