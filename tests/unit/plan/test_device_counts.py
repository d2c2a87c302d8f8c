"""Fewer, as many and more devices than a type has, for every shape of instances: plan, manifest, cluster."""

from typing import Any

from tests.cases import each_case
from tests.unit.jobs.plans import EACH_SHAPE, config, request

from trainyard.cluster.checks import efa, gpu
from trainyard.cluster.snapshot import Condition, MissingData, Node, Snapshot
from trainyard.cluster.verdict import facts_of
from trainyard.errors import ConfigError
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.plan.finding import Severity
from trainyard.plan.instances import EFA, GPU, InstanceType, NodeRoom, room_of_type

WITH_EFA = [instance for instance in EACH_SHAPE if instance.efa]
TINY = ("compute.strategy=ddp", "training.batch_size=1", "training.gradient_accumulation_steps=1")


def problems(instance: InstanceType, *overrides: str, room: dict[str, int], **changes: Any) -> list[str]:
    """The reasons why a job on nodes that were seen to have `room` is refused."""
    known = room_of_type(instance.name)
    assert known is not None
    seen = NodeRoom(**{**known.__dict__, **room})
    asked = request(instance_type=instance.name, nodes=2, room=seen, **changes)
    try:
        plan_job(config(*TINY, *overrides), asked)
    except ConfigError as error:
        return str(error).split("\n")[:-1]
    return []


@each_case("instance", EACH_SHAPE)
def test_a_plan_asks_for_no_more_gpus_than_the_type_has(instance: InstanceType) -> None:
    most = instance.gpus
    for wanted in {1, most}:
        assert problems(instance, room={}, gpus_per_node=wanted) == []
    for offered in (most, most + 1, 2 * most):  # such as shares of GPUs that a plugin counts as GPUs
        (line,) = problems(instance, room={"gpus": offered}, gpus_per_node=most + 1)
        assert line.startswith("--gpu-per-node: ")
        assert f"more than {instance.name} has for a pod, {most}" in line
    (line,) = problems(instance, room={"gpus": 2 * most})
    assert line.startswith("--gpu-per-node: ")


@each_case("instance", EACH_SHAPE)
def test_a_plan_uses_the_efa_of_its_type_where_the_nodes_offer_it(instance: InstanceType) -> None:
    for offered in {0, 1, instance.efa, instance.efa + 1}:
        found = problems(instance, room={"efa": offered})
        assert [("not every node offers the EFA" in line) for line in found] == [True] * (
            not offered and instance.efa > 0
        )
        assert problems(instance, "compute.network=tcp", room={"efa": offered}) == []


def severities(check: Any, instance: InstanceType, *rooms: dict[str, int]) -> set[Severity]:
    """The severities of a check of nodes of the type, for a job on two of them."""
    none: Any = MissingData("not looked at")
    nodes = []
    for number, room in enumerate(rooms):
        counts = {GPU: instance.gpus, EFA: instance.efa, **room}
        amounts = {name: count * 1000 for name, count in counts.items()}
        labels = {"node.kubernetes.io/instance-type": instance.name}
        nodes.append(
            Node(
                name=f"n{number}",
                labels=labels,
                annotations={},
                taints=(),
                cordoned=False,
                capacity=amounts,
                allocatable=amounts,
                conditions=(Condition("Ready", "True"),),
                os_image="",
            )
        )
    fields = dict.fromkeys(Snapshot.__dataclass_fields__, none)
    snapshot = Snapshot(**{**fields, "nodes": tuple(nodes), "pods": (), "resources": {}})
    facts = facts_of(snapshot, JobSpec(nodes=2, instance_type=instance.name), tuple(KINDS.values()))
    return {outcome.severity for outcome in check.judge(facts)}


@each_case("instance", EACH_SHAPE)
def test_a_cluster_whose_nodes_offer_other_numbers_of_gpus_is_not_ready(instance: InstanceType) -> None:
    for offered in {instance.gpus - 1, instance.gpus, instance.gpus + 1, 2 * instance.gpus}:
        found = severities(gpu, instance, *[{GPU: offered}] * 2)
        assert found == {Severity.PASSED if offered == instance.gpus else Severity.ERROR}


@each_case("instance", WITH_EFA)
def test_a_cluster_whose_nodes_offer_more_efa_is_not_ready(instance: InstanceType) -> None:
    for more in (1, 2, instance.efa):
        much = {EFA: instance.efa + more}
        assert Severity.ERROR in severities(efa, instance, much, much)
        # Where enough other nodes are right, the job can run on these.
        assert severities(efa, instance, {}, {}, much) == {Severity.WARNING}
    assert severities(efa, instance, {}, {}) == {Severity.PASSED}
