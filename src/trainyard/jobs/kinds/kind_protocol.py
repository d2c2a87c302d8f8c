"""The protocol of a kind of job: a module that converts a plan to the objects to apply.

JobPlan ──rendered──> Manifests: the objects that the job needs, then the job itself
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
    """The object whose status is the job's status."""
    parts: tuple[Json, ...] = ()
    """Objects that the job needs. They are applied before it, then owned by it, and deleted with it."""
    shared: tuple[Json, ...] = ()
    """Objects that the job needs and that others may use too; they outlive the job."""

    @property
    def before_job(self) -> tuple[Json, ...]:
        """The objects that are applied before the job."""
        return (*self.shared, *self.parts)

    @property
    def clusters(self) -> tuple[Json, ...]:
        """The RayClusters that the job runs on, if it does not create them itself."""
        return tuple(body for body in self.before_job if body["kind"] == "RayCluster")

    @property
    def all(self) -> tuple[Json, ...]:
        return (*self.before_job, self.job)


class KindProtocol(Protocol):
    """A module of this folder."""

    NAME: str
    """As in `cluster.kind`."""
    FOLLOWED: str
    """The API kind of the object whose status is the job's: for a RayCluster, the RayJob that runs on it."""
    LONGEST_NAME: int
    """Longest name of a job in characters, so that names derived by the operator stay valid."""

    def problems(self, plan: JobPlan, /) -> Iterator[str]:
        """Yield the reasons why this kind cannot run the plan."""
        ...

    def rendered(self, plan: JobPlan, /) -> Manifests:
        """Return the objects for the plan."""
        ...
