"""Merge the fragment `cluster.pod.template` into the template of a pod.

The API server merges patches by the names of entries only into objects of its own, not into custom resources
such as a PyTorchJob. So it is done here by the same keys, which the table of `config.pod_schema` has. Lists
without such a key are replaced, except those whose entries do not depend on each other: they are joined.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.config.pod_schema import ROOT, pod_fields, split_list

Json = dict[str, Any]
MAIN = "main"
"""The name of the container that trains in a fragment; each kind of job has its own."""
_JOINED = ("Toleration", "PodAffinityTerm", "WeightedPodAffinityTerm", "PreferredSchedulingTerm")
_REPLACED = ("EnvVar", "Volume")
"""Types of which one field excludes the others, such as `value` and `valueFrom`."""
_OF_PROGRAM = ("containers", "initContainers", "volumes")


def merge_fragment(template: Json, fragment: Mapping[str, Any], container: str) -> Json:
    """Return the template with the fragment, in which `main` is the name of `container`.

    Without a container the pod runs no training: it gets no further containers and volumes.
    """
    spec = dict(fragment.get("spec") or {})
    if container and "containers" in spec:
        entries = spec["containers"] or ()
        spec["containers"] = [{**e, "name": container} if e["name"] == MAIN else e for e in entries]
    elif not container:
        spec = {key: value for key, value in spec.items() if key not in _OF_PROGRAM}
    merged: Json = _merge(ROOT, template, {**fragment, "spec": spec})
    return merged


def _merge(kind: str, below: Any, above: Any) -> Any:
    """Return `below` with the value `above` of the type `kind`; nulls of mappings remove a field."""
    fields = pod_fields()
    if listed := split_list(kind):
        return _merge_lists(*listed, below or [], above)
    if not isinstance(above, dict):
        return above
    merged = dict(below or {})
    for key, value in above.items():
        if value is None:
            merged.pop(key, None)
        else:
            inner = fields[kind][key] if kind in fields else kind.removesuffix("{}")
            merged[key] = _merge(inner, merged.get(key), value)
    return merged


def _merge_lists(inner: str, key: str, below: list[Any], above: list[Any]) -> list[Any]:
    if not key:
        return [*(below if inner in _JOINED else ()), *(_merge(inner, None, each) for each in above)]
    merged = {each[key]: each for each in below}
    for each in above:
        before = None if inner in _REPLACED else merged.get(each[key])
        merged[each[key]] = _merge(inner, before, each)
    return list(merged.values())
