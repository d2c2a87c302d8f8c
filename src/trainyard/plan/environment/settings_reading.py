"""Find the variables in manifests and env files, with lines and the facts about their place.

text of a file ──by its content──> groups of settings that hold together
"""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from trainyard.errors import ConfigError
from trainyard.plan.environment.located_yaml import LocatedMapping, Text, all_mappings, read_documents
from trainyard.plan.environment.variable_rules import VariableScope
from trainyard.plan.instances import EFA, GPU, InstanceType, instance_called

_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_SCRIPT = re.compile(r"\A#!.*sh\b|^\s*export\s+\w+=", re.MULTILINE)
_COUNTS = ("replicas", "parallelism", "numOfHosts")
_YAML = re.compile(r"\s*(?:---|[{\[%]|-\s|[^\s:=]+\s*:(?:\s|$))")


@dataclass(frozen=True)
class Setting:
    """One variable."""

    name: str
    value: str
    line: int
    by_reference: bool = False
    """Whether the value is elsewhere, as in a Secret."""
    is_baked: bool = False
    """Whether an image keeps it, with the variables in its value expanded."""


@dataclass(frozen=True)
class SettingGroup:
    """Variables of one environment."""

    what: str
    """For people: `PyTorchJob train, container pytorch`; empty if the file has one environment."""
    settings: tuple[Setting, ...]
    place: VariableScope
    line: int = 1


@dataclass(frozen=True)
class EnvironmentFile:
    """The settings of one file."""

    name: str
    groups: tuple[SettingGroup, ...]
    documents: tuple[LocatedMapping, ...] = ()
    """The documents of a manifest."""


def read_environment_file(name: str, text: str, given: VariableScope) -> EnvironmentFile:
    """Return the settings of a file; facts in a manifest replace those in `given`. Raises ConfigError."""
    first = first_line(text)
    if not first or _ASSIGNMENT.fullmatch(first) or (_SCRIPT.search(text) and not _YAML.match(first)):
        return EnvironmentFile(name, (SettingGroup("", tuple(_assignments(text, name)), given),))
    flat = [item for one in read_documents(text, name) for item in (one.items_of("items") or [one])]
    groups = tuple(manifest_groups(flat, given))
    if not groups and not any(document.text("kind") for document in flat):
        raise ConfigError(f"{name}: not checked: no Dockerfile, no NAME=value lines, no Kubernetes object")
    return EnvironmentFile(name, groups, tuple(flat))


def first_line(text: str) -> str:
    """Return the first line that is no comment, by which the kind of a file is known."""
    return next((line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"), "")


def _assignments(text: str, name: str) -> Iterator[Setting]:
    """Yield the variables of NAME=value lines; the other lines of a script are its commands."""
    is_script = _SCRIPT.search(text)
    for number, line in enumerate(text.splitlines(), 1):
        if found := _ASSIGNMENT.fullmatch(line):
            yield Setting(found[1], _remove_quotes(found[2]), number)
        elif not is_script and line.strip() and not line.lstrip().startswith("#"):
            raise ConfigError(f"{name}:{number}: not NAME=value; a shell script begins with #!/bin/sh")


def _remove_quotes(text: str) -> str:
    try:
        parts = shlex.split(text, comments=True)
    except ValueError:
        return text.strip()
    return parts[0] if parts else ""


def manifest_groups(documents: list[LocatedMapping], given: VariableScope) -> Iterator[SettingGroup]:
    """Yield the variables of each container, and of ConfigMaps."""
    for document in documents:
        title = " ".join((document.text("kind"), document.mapping("metadata").text("name"))).strip()
        nodes = nodes_of(document) or given.nodes
        for pod in pod_specs(document):
            for container in (*pod.items_of("initContainers"), *pod.items_of("containers")):
                place = _place_of(pod, container, replace(given, nodes=nodes))
                if document.text("kind") == "MPIJob":  # mpirun starts the processes with variables of its own
                    place = replace(place, is_pod=False)
                what = f"{title}, container {container.text('name')}"
                yield SettingGroup(what, tuple(_container_settings(container)), place, container.line)
        trainer = document.mapping("spec", "trainer")
        if trainer:
            place = replace(_place_of(trainer, trainer, replace(given, nodes=nodes)), is_pod=False)
            yield SettingGroup(title, tuple(_container_settings(trainer)), place, trainer.line)
        data = document.mapping("data")
        if document.text("kind") == "ConfigMap":
            settings = [
                Setting(name, value, data.lines[name])
                for name, value in data.items()
                if isinstance(value, Text)
            ]
            yield SettingGroup(title, tuple(settings), given)


def pod_specs(value: Any) -> Iterator[Any]:
    """Yield the specifications of all pods below `value`, such as a document."""
    for mapping in all_mappings(value):
        if isinstance(mapping.get("containers"), list):
            yield mapping


def nodes_of(document: LocatedMapping) -> int | None:
    """Return the number of pods that train: with GPUs, if any have some; None if the document has none."""
    for place in ("trainer", "mlPolicy"):
        stated = document.mapping("spec", place).text("numNodes").number
        if stated is not None:
            return stated
    groups = [*pod_groups(document, lambda _, written: 1 if _count(written) is None else int(written))]
    trains = [count for count, template in groups if has_gpus(template)]
    return sum(trains or (count for count, _ in groups)) or None


def has_gpus(document: Any) -> bool:
    wanted = (
        each.mapping(key).text(GPU) for each in all_mappings(document) for key in ("limits", "requests")
    )
    return any(each and each.number != 0 for each in wanted)


def pod_groups(
    value: Any, number: Callable[[str, Any], int], above: tuple[dict[str, Any], ...] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the template of each group of pods below `value`; `number` reads a key's value.

    A JobSet multiplies its Jobs, and Ray the hosts of a replica. A `submitterPodTemplate` is no group.
    """
    if isinstance(value, list):
        for entry in value:
            yield from pod_groups(entry, number, above)
    elif isinstance(value, dict):
        template, above = value.get("template"), (*above, value)
        spec = template.get("spec") if isinstance(template, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            counts = ((key, one[key]) for one in above for key in _COUNTS if one.get(key) is not None)
            yield prod(number(*each) for each in counts), value["template"]
        for entry in value.values():
            yield from pod_groups(entry, number, above)


def _place_of(pod: LocatedMapping, container: LocatedMapping, given: VariableScope) -> VariableScope:
    resources = container.mapping("resources") or container.mapping("resourcesPerNode")
    limits = {**resources.mapping("requests"), **resources.mapping("limits")}
    gpus, efa = _count(limits.get(GPU)), _count(limits.get(EFA))
    if efa is None and gpus is not None:
        # Variables of EFA without a request for it: `job_manifest_rules` says to request it, so they stay.
        chosen, names = instance_of(pod), [str(entry.text("name")) for entry in container.items_of("env")]
        lacks = chosen and given.efa is None and chosen.gpus == gpus and (given.nodes or 1) > 1
        efa = chosen.efa if chosen and lacks and any(name.startswith("FI_") for name in names) else 0
    return replace(
        given,
        instance=instance_of(pod) or given.instance,
        efa=efa,
        gpus=gpus,
        host_network=pod.text("hostNetwork").is_true,
        is_pod="envFrom" not in container,
    )


def instance_of(pod: LocatedMapping) -> InstanceType | None:
    """Return the instance type that the pod selects; None if there is none or the catalogue lacks it."""
    selector = pod.mapping("nodeSelector")
    return instance_called(next((selector.text(name) for name in _LABELS if selector.text(name)), ""))


def _count(value: object) -> int | None:
    return value.number if isinstance(value, Text) else None


def _container_settings(container: LocatedMapping) -> Iterator[Setting]:
    for entry in container.items_of("env"):
        name, value = entry.text("name"), entry.text("value")
        if name:
            yield Setting(str(name), str(value), value.line or entry.line, "valueFrom" in entry)
