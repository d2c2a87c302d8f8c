"""A kind of job: one value with everything that Trainyard knows about it.

    JobSpec ──render──> Manifests          Observed ──read_status──> Reading

`kinds/` has one module per kind, `config.registries` their list. What a cluster must have for a kind is in
its base class, which the checks of a cluster read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.cluster.needed_apis import ServedKind
from trainyard.errors import ConfigError
from trainyard.jobs.job_object import JOB_LABEL, KIND_LABEL
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.state.pod_facts import PodFacts, PodReading
from trainyard.jobs.state.reading import Json, Reading, name_of, read_labels


@dataclass(frozen=True)
class Manifests:
    """The objects of a job, in the order in which they are applied."""

    job: dict[str, Any]
    """The object whose status is the job's status."""
    parts: tuple[dict[str, Any], ...] = ()
    """Objects that the job needs. They are applied before it, then owned by it, and deleted with it."""
    shared: tuple[dict[str, Any], ...] = ()
    """Objects that the job needs and that others may use too; they outlive the job."""

    @property
    def before_job(self) -> tuple[dict[str, Any], ...]:
        """The objects that are applied before the job."""
        return (*self.shared, *self.parts)

    @property
    def all(self) -> tuple[dict[str, Any], ...]:
        return (*self.before_job, self.job)


@dataclass(frozen=True)
class OwnedObjects:
    """Objects that the operator creates between a job and its pods, and from which the status is read too."""

    root: str
    """Their group and version."""
    resource: str
    api_kind: str
    name_in: Callable[[Json], str] | None = None
    """Reads the name of a single object from the job; empty while there is none."""
    selector_in: Callable[[Json], str] | None = None
    """Makes the label selector of several objects from the job."""
    in_queue: bool = False
    """Kueue may have a Workload for each of them."""


def refuse_to_make(plan: JobSpec) -> Manifests:
    """Raise ConfigError: jobs of the kind are only followed."""
    raise ConfigError(f"--kind {plan.kind}: no such job is made here; send a manifest of one with --manifest")


@dataclass(frozen=True, kw_only=True)
class JobKind(ServedKind, PodReading):
    """A kind of job."""

    longest_name: int
    """Longest name of a job in characters, so that names derived by the operator stay valid."""
    find_problems: Callable[[JobSpec], Iterator[str]] = lambda _plan: iter(())
    """Yields the reasons why this kind cannot run a plan."""
    render: Callable[[JobSpec], Manifests] = refuse_to_make
    """Returns the objects for a plan without problems."""
    read_status: Callable[["Observed"], Reading]
    """Returns the common form of the job's status."""
    pod_label: str
    """The operator's label that holds the job's name on its pods."""
    pod_owner: Callable[[Json], str] = name_of
    """The value of that label, from the job."""
    owned: tuple[OwnedObjects, ...] = ()
    submitted_as: str = ""
    """The kind of the object whose status is the job's, if it is another one: the RayJob on a RayCluster."""
    suspend: tuple[str, ...] = ("spec", "suspend")
    """The path of the field that stops the pods and keeps the object; empty if none is known."""
    why_not_suspended: Callable[[Json], str] = lambda _job: ""
    """The reason why a job cannot be suspended; empty if it can."""
    why_not_sent: Callable[[Json], str] = lambda _job: ""
    """The reason why a job of somebody's manifest cannot be followed; empty if it can."""
    why_not_renamed: Callable[[Json], str] = lambda _job: ""
    """The reason why a copy of the job under another name would not work; empty if it would."""
    of_one_run: tuple[tuple[str, ...], ...] = ()
    """Paths of fields with facts of one run, which a copy of the job must not have."""
    on_ray: bool = False
    """A command runs once, on the head of a RayCluster, whose pods run before the command does."""
    agent: str = ""
    """The program that must start the workers instead of torchrun, because the operator talks to it."""
    first_pod_decides: bool = False
    """The job succeeds with the pod of rank 0, whatever the others do later."""

    @property
    def followed(self) -> str:
        """The kind of the object whose status is the job's."""
        return self.submitted_as or self.name

    @property
    def labelled_as(self) -> str:
        """The kinds that label its objects; the pods of a RayJob may be those of a RayCluster."""
        return "rayjob,raycluster" if self.on_ray else self.name

    def path(self, namespace: str, name: str = "") -> str:
        """Return the API path of these jobs in a namespace (empty: in all), or of one job."""
        space = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.api.group_version}{space}/{self.api.resource}" + (f"/{name}" if name else "")

    def suspension(self, job: Json) -> dict[str, Any]:
        """The patch that stops the pods of a job. Raises ConfigError for a job that can only be deleted."""
        why = self.why_not_suspended(job) if self.suspend else f"a {self.api_kind} cannot be suspended"
        if why:
            raise ConfigError(
                f"{name_of(job)} cannot be cancelled: {why}. End it with delete, which saves its logs"
            )
        patch: Any = True
        for name in reversed(self.suspend):
            patch = {name: patch}
        return dict(patch)

    def pod_selector(self, job: Json) -> str:
        """Return the label selector of the job's pods: our label if we made the job, else the operator's."""
        labels = read_labels(job)
        own = labels.get(JOB_LABEL) if KIND_LABEL in labels else None
        # A job of another kind may have the same name.
        ours = f"{JOB_LABEL}={own},{KIND_LABEL} in ({self.labelled_as})"
        return ours if own else f"{self.pod_label}={self.pod_owner(job)}"


@dataclass(frozen=True)
class Observed:
    """One observation of a job."""

    kind: JobKind
    namespace: str
    name: str
    job: Json | None
    """The object from the API; None if it does not exist (any more)."""
    pods: tuple[PodFacts, ...] = ()
    owned: tuple[Json, ...] = ()
    """The objects between the job and its pods: JobSet, Job, RayCluster, and Kueue's Workload."""
    events: tuple[Json, ...] = ()
    """Events of the job, of its pods and of the objects that it owns."""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Node -> zone, for the nodes of pods that EFA joins."""
    now: float = 0.0
    """Unix seconds by the cluster's clock."""
    deleted: bool = False
    """The job was seen to be deleted; `job` is its last state."""

    def owned_of(self, api_kind: str) -> tuple[Json, ...]:
        return tuple(raw for raw in self.owned if raw.get("kind") == api_kind)
