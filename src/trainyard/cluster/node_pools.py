"""Judge whether Karpenter can make nodes for a demand, as its NodePools say.

    NodePool + Demand ──requirements, taints, limits──> may make such a node, or not

A requirement on a label that is not known here counts as met: a NodePool either cannot make a node, or may
make one. Whether EC2 has one is not known. The built-in NodePools of EKS Auto Mode, for one, make
instances of the families C, M and R only.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping

from trainyard.cluster.demand import GPU, Demand, plain_type
from trainyard.cluster.snapshot import MissingData, Requirement, Scaler
from trainyard.plan.instances import CATALOGUE, instance_called

_TYPE = "node.kubernetes.io/instance-type"
_GROUPS = ("karpenter.k8s.aws", "eks.amazonaws.com")
"""Prefixes of the same labels, in Karpenter and in EKS Auto Mode."""


def pools_for(scalers: "tuple[Scaler, ...] | MissingData", demand: Demand) -> tuple[Scaler, ...]:
    """The NodePools that may make nodes for the demand; none where they could not be seen."""
    return (
        () if isinstance(scalers, MissingData) else tuple(pool for pool in scalers if _may_make(pool, demand))
    )


def _may_make(pool: Scaler, demand: Demand) -> bool:
    kept_away = any(t.blocks and t.key not in demand.tolerated for t in pool.taints)
    if not pool.grows or kept_away or 0 in pool.limits.values():
        return False
    return any(_allows(pool, labels) for labels in _candidates(demand))


def _candidates(demand: Demand) -> Iterable[Mapping[str, str]]:
    """The labels of each type of instance that the demand may mean, as far as they are known."""
    if demand.instance_type:
        return (karpenter_labels(plain_type(demand.instance_type)),)
    if demand.gpus_per_node == 0:
        return ({},)
    least = demand.gpus_per_node or 1
    return (karpenter_labels(instance.name) for instance in CATALOGUE if instance.gpus >= least)


def karpenter_labels(name: str) -> Mapping[str, str]:
    """The labels that Karpenter gives to an instance of this type, as far as they are known here."""
    family, _, size = name.partition(".")
    match = re.match(r"([a-z]+)(\d+)", family)
    known = instance_called(name)
    parts = {
        "instance-family": family,
        "instance-size": size,
        "instance-category": match[1] if match else "",
        "instance-generation": match[2] if match else "",
        "instance-gpu-count": str(known.gpus) if known else "",
        "instance-gpu-manufacturer": "nvidia" if known else "",
        "instance-cpu": str(known.vcpus) if known else "",
    }
    found = {f"{group}/{part}": value for group in _GROUPS for part, value in parts.items() if value}
    return {_TYPE: name, "kubernetes.io/os": "linux", **found}


def _allows(pool: Scaler, labels: Mapping[str, str]) -> bool:
    if not all(_is_met(requirement, labels) for requirement in pool.requirements):
        return False
    gpus = int(labels.get(f"{_GROUPS[0]}/instance-gpu-count", "0")) * 1000
    return GPU not in pool.limits or pool.made.get(GPU, 0) + gpus <= pool.limits[GPU]


def _is_met(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    if value is None:
        return True
    values = [plain_type(v) for v in requirement.values]
    if requirement.operator in ("In", "NotIn"):
        return (value in values) == (requirement.operator == "In")
    if requirement.operator in _COMPARED and value.isdigit() and len(values) == 1 and values[0].isdigit():
        return _COMPARED[requirement.operator](int(value), int(values[0]))
    return requirement.operator != "DoesNotExist"


_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "Gt": operator.gt,
    "Lt": operator.lt,
    "Gte": operator.ge,
    "Lte": operator.le,
}
