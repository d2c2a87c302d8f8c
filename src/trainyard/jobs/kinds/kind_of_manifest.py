"""What every kind of job is to the rest: a module that turns a plan into the objects that are applied.

JobPlan ──rendered──> Manifests: what the job needs first, then the job itself
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.jobs.job_plan import JobPlan

Json = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The objects of a job, in the order in which they are applied."""

    job: Json
    """The object whose status is the job's."""
    parts: tuple[Json, ...] = ()
    """What the job needs. They are applied before it, and become its own: they are deleted with it."""
    shared: tuple[Json, ...] = ()
    """What it needs and others may use too: it outlives the job."""

    @property
    def before_job(self) -> tuple[Json, ...]:
        """What is applied before the job."""
        return (*self.shared, *self.parts)

    @property
    def clusters(self) -> tuple[Json, ...]:
        """The RayClusters that the job runs on, where it does not make them itself."""
        return tuple(body for body in self.before_job if body["kind"] == "RayCluster")

    @property
    def all(self) -> tuple[Json, ...]:
        return (*self.before_job, self.job)


class Kind(Protocol):
    """A module of this folder."""

    NAME: str
    """As in `cluster.kind`."""
    FOLLOWED: str
    """The kind of the object whose status is the job's: for a RayCluster, the RayJob that runs on it."""
    LONGEST_NAME: int
    """Characters of the job's name: what the operator derives from it must still be a name."""

    def problems(self, plan: JobPlan, /) -> Iterator[str]:
        """Why this kind cannot run the plan."""
        ...

    def rendered(self, plan: JobPlan, /) -> Manifests:
        """The objects."""
        ...
