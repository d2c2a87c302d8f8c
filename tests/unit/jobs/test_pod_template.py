"""A fragment of a pod template reaches every pod of every kind, and changes nothing that the plan needs."""

import json
from typing import Any

from tests.cases import each_case
from tests.unit.jobs.plans import config, instance_for, objects, plan, pod_specs, request, templates

from trainyard.errors import ConfigError
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
