"""Plans that cannot run are refused before they are sent: every rule alone, and all of them at once."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.plans import IMAGE, config, instance_for, objects, plan, request

from trainyard.errors import ConfigError
from trainyard.jobs import job_submission
from trainyard.jobs.job_object import PLAN
from trainyard.jobs.job_planning import name_from, plan_job, warnings_of
from trainyard.jobs.job_spec import JobSpec, spec_from_json
from trainyard.jobs.kinds import KINDS
from trainyard.plan.instances import NodeRoom

ROOM = NodeRoom(8, 180_000, 1_900_000, 31, 42242, instance_type="p5.48xlarge")


def refused(*overrides: str, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        plan(*overrides, **changes)
    *lines, last = str(raised.value).split("\n")
    assert last.endswith("Nothing was sent.")
    return lines


APART = ("checkpointing.shared=false", "artifacts.store=s3://runs")
WRONG: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    ((), {"name": "a" * 51}, "at most 50 characters"),
    ((), {"name": "a" * 48, "kind": "rayjob"}, "at most 47 characters"),
    ((), {"gpus_per_node": 9}, "--gpu-per-node: 9 is more than p5.48xlarge has"),
    (("cluster.pod.cpu=400",), {}, "cluster.pod.cpu: 400 is more"),
    (("cluster.pod.memory=3Ti",), {}, "cluster.pod.memory"),
    ((), {"nodes": 2, "claim": ""}, "2 nodes need a volume"),
    (APART[:1], {"nodes": 2, "claim": ""}, "loses it when the pod ends: set artifacts.store"),
    (APART, {"nodes": 2}, "the claim fsx is one folder for all 2 pods: omit --volume"),
    (
        ("checkpointing.shared=false", "artifacts.store=file:///data"),
        {"nodes": 2, "claim": ""},
        "artifacts.store: file:///data is a folder of the pod",
    ),
    ((), {"mount_path": "data"}, "does not begin with /"),
    (("artifacts.store=file:///data",), {}, "artifacts.store: file:///data is a folder of the pod"),
    (("compute.network=efa",), {"nodes": 2, "gpus_per_node": 0}, "--gpu-per-node is 0"),
    ((), {"environment": {"NCCL_NET": "Socket"}, "nodes": 2}, "requests EFA but trains over TCP"),
    (("compute.strategy=single",), {"nodes": 2}, "compute.strategy is single"),
    (("compute.strategy=fsdp", "compute.tensor_parallel=2"), {"gpus_per_node": 7}, "does not divide the 7"),
    (("training.batch_size=65536",), {}, "does not fit: a GPU needs"),
    ((), {"kind": "hyperpod"}, "p5.48xlarge is not an instance type of HyperPod"),
    *(
        ((), {"kind": kind, "ray_cluster": "shared"}, "use --kind raycluster")
        for kind in ("rayjob", "pytorchjob", "trainjob")
    ),
    (
        (),
        {"kind": "hyperpod", "instance_type": "ml.p5.48xlarge", "ray_cluster": "shared"},
        "--kind hyperpod runs on no RayCluster",
    ),
    ((), {"kind": "rayjob", "command": ("python", "a.py", "--x", "a b")}, "'a b': Ray hands a command"),
    ((), {"kind": "raycluster", "command": ("sh", "-c", "a&&b")}, "'a&&b': Ray hands a command"),
    *(
        ((), {"environment": {name: "value"}}, f"--env {name}: ")
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD")
    ),
    ((), {"kind": "raycluster", "ray_cluster": "llama"}, "deleting it would delete the cluster"),
    (("cluster.pod.directory=/my code",), {"kind": "rayjob", "command": ("a b",)}, "Ray hands a command"),
]


@each_case(("overrides", "changes", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_what_cannot_run_is_refused(overrides: tuple[str, ...], changes: dict[str, Any], words: str) -> None:
    settings = overrides if any("strategy" in o for o in overrides) else ("compute.strategy=ddp", *overrides)
    lines = refused(*settings, **changes)
    assert len(lines) == 1, lines
    assert words in lines[0]


def test_pods_that_keep_parts_need_no_volume_and_have_all_their_problems_named_at_once() -> None:
    made = plan("compute.strategy=ddp", *APART, nodes=2, claim="")
    assert warnings_of(made) == []
    assert made.program.command[made.program.command.index("--run-dir") + 1] == "/scratch/team/llama"
    assert len(refused("compute.strategy=ddp", APART[0], nodes=2)) == 2
    alone = plan("compute.strategy=ddp", *APART, claim="")
    assert "no volume" in warnings_of(alone)[0], "the parts of one node are all of it, and it is not followed"


def test_the_nodes_of_the_cluster_decide_over_the_catalogue() -> None:
    made = plan_job(config("compute.strategy=ddp"), request(nodes=2, room=ROOM))
    assert (made.resources.efa, made.resources.hugepages_mib) == (31, 5120)
    assert made.resources.cpu_millis == 180_000
    assert made.resources.memory_mib == 1_900_000
    half = plan_job(config("compute.strategy=ddp"), request(nodes=2, room=ROOM, gpus_per_node=4))
    assert (half.resources.gpus, half.resources.efa) == (4, 16)
    assert half.resources.cpu_millis == 90_000
    hyperpod = replace(ROOM, instance_type="ml.p5.48xlarge", on_hyperpod=True)
    assert plan_job(config("compute.strategy=ddp"), request(room=hyperpod)).instance_type == "ml.p5.48xlarge"


@pytest.mark.parametrize(
    ("asked", "instance", "nodes", "settled"),
    [
        ("auto", "p5.48xlarge", 2, "efa"),
        ("auto", "g5.xlarge", 2, "tcp"),
        ("auto", "p5.48xlarge", 1, "tcp"),
        ("tcp", "p5.48xlarge", 2, "tcp"),
        ("efa", "p5.48xlarge", 2, "efa"),
    ],
)
def test_the_network_of_the_pods_is_on_record(asked: str, instance: str, nodes: int, settled: str) -> None:
    made = plan("compute.strategy=ddp", f"compute.network={asked}", instance_type=instance, nodes=nodes)
    assert f"network: {settled}\n" in made.program.files["config.yaml"]
    assert made.network == asked
    if nodes > 1:
        assert bool(made.resources.efa) == (settled == "efa")
        assert made.environment["NCCL_NET"] == ("AWS Libfabric" if settled == "efa" else "Socket")


def test_warnings_are_for_what_may_not_be_meant() -> None:
    assert warnings_of(plan()) == []
    (tag,) = warnings_of(plan(image="a/b:1"))
    assert "its digest" in tag
    (volume,) = warnings_of(plan(claim=""))
    assert "no volume" in volume


@pytest.mark.parametrize(
    ("text", "name"),
    [("Smoke Llama", "smoke-llama"), ("7b", "job-7b"), ("", "job"), ("é", "job"), ("a" * 60, "a" * 40)],
)
def test_a_name_is_made_from_that_of_the_model(text: str, name: str) -> None:
    assert name_from(text) == name


def is_deployed(find: Any, made: JobSpec) -> bool:
    return job_submission.is_deployed(find, made, KINDS[made.kind].render(made))


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_the_same_plan_is_taken_up_and_another_one_left_alone(kind: str) -> None:
    instance = "ml.p5.48xlarge" if kind == "hyperpod" else "p5.48xlarge"
    made = plan(kind=kind, nodes=2, instance_type=instance)
    there = {(body["kind"], body["metadata"]["name"]): body for body in KINDS[kind].render(made).all}

    def find(body: Any) -> Any:
        return there.get((body["kind"], body["metadata"]["name"]))

    assert is_deployed(find, made)
    assert not is_deployed(lambda _: None, made)
    elsewhere = replace(made, provenance={**made.provenance, "commit": "d" * 40})
    assert is_deployed(find, elsewhere)
    fewer = replace(made, resources=replace(made.resources, memory_mib=1))
    assert is_deployed(find, fewer)
    other = replace(made, nodes=3, image="a/b:2")
    with pytest.raises(ConfigError, match=r"another plan \(image, nodes\)"):
        is_deployed(find, other)
    files = {name: f"{text}# changed" for name, text in made.program.files.items()}
    with pytest.raises(ConfigError, match=r"another plan \(program\.files\)"):
        is_deployed(find, replace(made, program=replace(made.program, files=files)))


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema": 2}', '{"schema": 1}'])
def test_a_job_of_somebody_else_is_left_alone(text: str | None) -> None:
    made = plan()
    body = objects(made)[-1]
    annotations = {} if text is None else {PLAN: text}
    found = {**body, "metadata": {**body["metadata"], "annotations": annotations}}
    with pytest.raises(ConfigError, match="already exists"):
        is_deployed(lambda _: found, made)


def name_and_kind(body: Any) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


@each_case("kind", KINDS)
@each_case("taken", ["PyTorchJob", "TrainJob", "RayJob", "RayCluster", "HyperPodPyTorchJob"])
def test_a_name_that_another_job_has_is_left_alone(kind: str, taken: str) -> None:
    made = plan(kind=kind, nodes=2, instance_type=instance_for(kind, "p5.48xlarge"))
    foreign = {"kind": taken, "metadata": {"name": made.name}}
    with pytest.raises(ConfigError, match=f"{taken} {made.name} (in team )?already exists"):
        is_deployed(lambda body: foreign if name_and_kind(body) == (taken, made.name) else None, made)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_another_job_is_left_alone(kind: str) -> None:
    made = plan(kind=kind, nodes=2, instance_type=instance_for(kind, "p5.48xlarge"))
    parts = [part for part in KINDS[kind].render(made).parts if part["kind"] != "RayCluster"]
    for part in parts:
        labels = {**part["metadata"]["labels"], "trainyard.dev/kind": "other"}
        for changed in ({}, labels):
            found = {**part, "metadata": {**part["metadata"], "labels": changed}}
            with pytest.raises(ConfigError, match="is not a part of this job"):
                is_deployed(lambda body, p=part, f=found: f if body == p else None, made)
    assert not is_deployed(lambda body: body if body in parts else None, made)


def own_cluster(change: Callable[[Any], object] = lambda spec: None, *, scales: bool = False) -> Any:
    """A RayCluster that somebody made: a head without GPUs, and 2 workers with 8."""
    (rendered,) = KINDS["raycluster"].render(plan(kind="raycluster", nodes=3)).parts
    spec = json.loads(json.dumps(rendered["spec"]))
    del spec["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]
    if scales:
        spec["enableInTreeAutoscaling"] = True
        spec["workerGroupSpecs"][0] |= {"replicas": 0, "minReplicas": 0}
    change(spec)
    cluster = {"kind": "RayCluster", "metadata": {"name": "mine"}, "spec": spec}
    return lambda body: cluster if name_and_kind(body) == ("RayCluster", "mine") else None


def group_of(spec: Any) -> Any:
    return spec["workerGroupSpecs"][0]


def worker_of(spec: Any) -> Any:
    return group_of(spec)["template"]["spec"]


def container_of(spec: Any) -> Any:
    return worker_of(spec)["containers"][0]


MISFITS: dict[str, Callable[[Any], object]] = {
    "it has 1 pod with 8 GPUs, and --num-nodes is 2": lambda s: group_of(s).update(replicas=1, maxReplicas=1),
    "it has 0 pods with 8 GPUs": lambda s: container_of(s).pop("resources"),
    "it has 0 pods with 8 GPUs, and": lambda s: group_of(s).update(suspend=True),
    "does not mount the claim fsx at /checkpoints": lambda s: container_of(s).pop("volumeMounts"),
    "one of its pods does not mount the claim": lambda s: worker_of(s).pop("volumes"),
    "its pods run the image b.io:5000/ray:2": lambda s: container_of(s).update(image="b.io:5000/ray:2"),
}


@pytest.mark.parametrize("scales", [False, True])
def test_a_ray_cluster_of_the_user_is_used_if_its_pods_can_run_the_job(scales: bool) -> None:
    made = plan(kind="raycluster", nodes=2, ray_cluster="mine")
    manifests = KINDS["raycluster"].render(made)

    assert not manifests.before_job

    def require(find: Callable[[Any], Any]) -> None:
        job_submission.require_ray_cluster(find, made, manifests)

    def with_job(find: Callable[[Any], Any], body: Any) -> Any:
        return body if body["kind"] == "RayJob" else find(body)

    moved = IMAGE.partition("@")[0] + ":2026"
    for fits in (lambda _: None, lambda s: worker_of(s)["containers"][0].update(image=moved)):
        require(own_cluster(fits, scales=scales))
    with pytest.raises(ConfigError, match="there is none"):
        require(lambda _: None)
    for words, change in MISFITS.items():
        find = own_cluster(change, scales=scales)
        with pytest.raises(ConfigError) as raised:
            require(find)
        assert words in str(raised.value)
        require(partial(with_job, find))  # a job that exists is followed, whatever became of its cluster


@pytest.mark.parametrize("value", [None, [], {}, {"schema": 0}, {"schema": 1, "name": "a"}, "x"])
def test_a_plan_that_cannot_be_read_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"schema 1 is expected|is missing"):
        spec_from_json(value)
