"""The APIs and controllers that a cluster must have for a kind of job.

`jobs.kinds` states them for each kind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NeededApi:
    """A kind of object that the cluster must serve."""

    group: str
    version: str
    resource: str
    installs: str
    """The software that installs it."""
    add_on: str = ""
    """The name of the add-on of EKS that installs it, if one does."""

    @property
    def name(self) -> str:
        return f"{self.resource}.{self.group}"

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"


@dataclass(frozen=True)
class Controller:
    """The controller that acts on the objects; without it nothing happens to them.

    Names and labels are those of the released manifests and charts.
    """

    name: str
    """Name for people."""
    deployments: tuple[str, ...]
    """Names of the Deployment by the ways to install it; a part of a longer name counts too."""
    labels: tuple[str, ...] = ()
    """Values of its label `control-plane`."""
    others: tuple[str, ...] = ()
    """Parts of the names of other controllers whose names also contain one of `deployments`."""


@dataclass(frozen=True, kw_only=True)
class ServedKind:
    """A kind of job, as far as a cluster has to support it."""

    name: str
    """As in `cluster.kind`."""
    api_kind: str
    apis: tuple[NeededApi, ...]
    """The kind itself first, then the kinds that it consists of."""
    controllers: tuple[Controller, ...]
    trial_spec: Callable[[dict[str, Any], str], dict[str, Any]]
    """The smallest `spec` that its schema and webhooks accept, from a pod template and the runtime's name."""
    parts: tuple[tuple[str, str], ...] = ()
    """Group and version, and resource, of the objects that are created with it, besides a ConfigMap."""
    has_webhook: bool = True
    """Its controller has a webhook, so that a dry run shows whether it runs."""
    has_dry_run: bool = True
    """A dry run that is refused shows that a job would be refused."""
    needs_runtime: bool = False
    """It refers to a TrainingRuntime, without which it cannot be created, not even as a dry run."""
    adds_container: bool = False
    """Its operator adds a container to the pods after the first that the level `restricted` refuses."""

    @property
    def api(self) -> NeededApi:
        return self.apis[0]


def serves(api: NeededApi, resources: Mapping[str, tuple[str, ...]]) -> bool:
    return api.resource in resources.get(api.group_version, ())


def choose_kind(
    name: str, kinds: Sequence[ServedKind], resources: Mapping[str, tuple[str, ...]]
) -> ServedKind:
    """Return the kind of this name; for auto, or none, the first that is served, else the first of all."""
    is_open = name in ("", "auto")
    assert is_open or name in [kind.name for kind in kinds]
    for kind in kinds:
        if name == kind.name or (is_open and serves(kind.api, resources)):
            return kind
    return kinds[0]
