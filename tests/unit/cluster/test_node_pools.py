"""Which NodePools may make nodes for a demand: each type of the catalogue, each form of a requirement."""

import pytest

from trainyard.cluster.api_objects import scaler_of
from trainyard.cluster.demand import Demand
from trainyard.cluster.node_pools import pools_for
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.instances import CATALOGUE, InstanceType

GPU = "nvidia.com/gpu"
TYPE = "node.kubernetes.io/instance-type"
GROUPS = ("karpenter.k8s.aws", "eks.amazonaws.com")
Requirement = tuple[str, str, tuple[str, ...]]


def makes(demand: Demand, *requirements: Requirement, **spec: object) -> bool:
    listed = [{"key": key, "operator": how, "values": list(values)} for key, how, values in requirements]
    made = {"requirements": listed, "taints": spec.pop("taints", [])}
    status = spec.pop("status", {})
    raw = {"metadata": {"name": "pool"}, "spec": {"template": {"spec": made}, **spec}, "status": status}
    return pools_for((scaler_of(raw),), demand) != ()


P5 = Demand(instance_type="p5.48xlarge")


@pytest.mark.parametrize("instance", CATALOGUE, ids=lambda instance: instance.name)
@pytest.mark.parametrize("group", GROUPS)
def test_requirements_on_the_parts_of_a_name(group: str, instance: InstanceType) -> None:
    name = instance.name
    family, _, size = name.partition(".")
    letters = "gr" if family.startswith("gr") else name[0]
    wanted = Demand(instance_type=name)
    for key, value in (
        (TYPE, name),
        (TYPE, f"ml.{name}"),
        (f"{group}/instance-family", family),
        (f"{group}/instance-size", size),
        (f"{group}/instance-category", letters),
        (f"{group}/instance-gpu-count", str(instance.gpus)),
    ):
        assert makes(wanted, (key, "In", ("other", value))), (key, value)
        assert not makes(wanted, (key, "In", ("other",))), key
        assert not makes(wanted, (key, "NotIn", (value,))), (key, value)
        assert makes(wanted, (key, "NotIn", ("other",))), key
        assert makes(wanted, (key, "Exists", ())), key
        assert not makes(wanted, (key, "DoesNotExist", ())), key


@pytest.mark.parametrize(
    ("how", "bound", "allowed"),
    [
        *(("Gt", "7", True), ("Gt", "8", False), ("Lt", "9", True), ("Lt", "8", False), ("Gt", "many", True)),
        *(("Gte", "8", True), ("Gte", "9", False), ("Lte", "8", True), ("Lte", "7", False)),
    ],
)
def test_numbers_are_compared(how: str, bound: str, allowed: bool) -> None:
    assert makes(P5, ("karpenter.k8s.aws/instance-gpu-count", how, (bound,))) == allowed


def test_what_is_not_known_here_does_not_count_against_a_pool() -> None:
    assert makes(P5, ("karpenter.k8s.aws/instance-gpu-name", "In", ("h100",)))
    assert makes(P5, ("topology.kubernetes.io/zone", "In", ("us-west-2a",)))
    assert makes(
        Demand(instance_type="p3dn.24xlarge"), ("eks.amazonaws.com/instance-gpu-count", "Gt", ("4",))
    )
    assert makes(P5)


@pytest.mark.parametrize("gpus", [None, 1, 8])
def test_pools_of_auto_mode_make_no_gpus(gpus: int | None) -> None:
    """Its built-in pools are for the families C, M and R; without a type, any type with GPUs is suitable."""
    demand = Demand(gpus_per_node=gpus)
    assert not makes(demand, ("eks.amazonaws.com/instance-category", "In", ("c", "m", "r")))
    assert makes(demand, ("eks.amazonaws.com/instance-category", "In", ("c", "g")))
    small = ("eks.amazonaws.com/instance-size", "In", ("xlarge",))
    assert makes(demand, small) == (gpus != 8)
    assert makes(Demand(gpus_per_node=0), ("eks.amazonaws.com/instance-category", "In", ("c", "m", "r")))


@pytest.mark.parametrize(
    ("limit", "made", "allowed"),
    [
        *(("64", "0", True), ("8", "0", True), ("7", "0", False), ("0", "0", False)),
        *(("64", "56", True), ("64", "57", False)),
    ],
)
def test_a_limit_of_gpus_counts_what_is_made(limit: str, made: str, allowed: bool) -> None:
    assert makes(P5, limits={GPU: limit}, status={"resources": {GPU: made}}) == allowed


def test_a_pool_that_is_closed_makes_nothing() -> None:
    assert not makes(P5, limits={"cpu": "0"})
    assert not makes(P5, replicas=4)
    assert not makes(P5, status={"conditions": [{"type": "Ready", "status": "False", "reason": "NodeClass"}]})
    assert makes(P5, status={"conditions": [{"type": "Ready", "status": "Unknown", "reason": "New"}]})
    assert pools_for(MissingData("not allowed", denied=True), P5) == ()


@pytest.mark.parametrize(
    ("key", "effect", "allowed"),
    [
        ("team", "NoSchedule", False),
        ("team", "NoExecute", False),
        ("team", "PreferNoSchedule", True),
        (GPU, "NoSchedule", True),
        ("tolerated", "NoSchedule", True),
    ],
)
def test_taints_of_a_pool_keep_the_job_away(key: str, effect: str, allowed: bool) -> None:
    demand = Demand(instance_type="p5.48xlarge", tolerations=("tolerated",))
    assert makes(demand, taints=[{"key": key, "effect": effect}]) == allowed
