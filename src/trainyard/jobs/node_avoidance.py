"""Keep the pods of a job off nodes that failed, by changing every pod template in an object.

A node is identified by its own name (`metadata.name`), because its host name label may differ. A lost node is
only avoided if another one is free: it may come back healthy, and it has a taint of its own. A node whose
hardware failed, or that was lost twice, is excluded.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from trainyard.watch.retry_decision import AvoidedNode

Json = Mapping[str, Any]
_FIELD = "metadata.name"
_WEIGHT = 100


def avoiding(body: Json, nodes: Iterable[AvoidedNode]) -> dict[str, Any]:
    """A copy of the object whose pods avoid these nodes; equal to the object if they already do."""
    found = deepcopy(dict(body))
    for spec in _pod_specs(found):
        for node in nodes:
            _avoid(spec, node)
    return found


def _pod_specs(value: Any) -> Iterable[dict[str, Any]]:
    """Every pod specification below `value`: in all kinds of jobs a mapping with a list of containers."""
    if isinstance(value, list):
        for entry in value:
            yield from _pod_specs(entry)
    elif isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        for entry in value.values():
            yield from _pod_specs(entry)


def _avoid(spec: dict[str, Any], node: AvoidedNode) -> None:
    requirement = {"key": _FIELD, "operator": "NotIn", "values": [node.name]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    if not node.strictly:
        preferred = affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", [])
        term = {"weight": _WEIGHT, "preference": {"matchFields": [requirement]}}
        if term not in preferred:
            preferred.append(term)
        return
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:  # a pod may run where any of the terms holds
        fields = term.setdefault("matchFields", [])
        if requirement not in fields:
            fields.append(requirement)
