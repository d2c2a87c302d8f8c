"""The definition of a check: a name, its subject, and a judgement over facts that are passed in.

A check yields outcomes. Anything that prevents the plan from running is an error; anything that may harm it
is a warning. A check that could not read its subject is skipped, with the reason. A check that finds nothing
wrong reports its evidence.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from trainyard.cluster.admission import Outlook
from trainyard.cluster.capacity import Capacity
from trainyard.cluster.fitness import Fitness, Obstacle
from trainyard.cluster.needed_apis import ServedKind
from trainyard.cluster.snapshot import MissingData, Snapshot

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

_NAMED = 3


class Severity(StrEnum):
    """The severity of an outcome; the values are the words that people and machines see."""

    ERROR = "error"
    WARNING = "warning"
    SKIPPED = "skipped"
    PASSED = "passed"


@dataclass(frozen=True)
class Outcome:
    """One statement of a check."""

    severity: Severity
    evidence: str
    remedy: str = ""
    could_not_read: bool = False
    """The check was skipped because it could not read its subject, so nothing is known."""

    @classmethod
    def error(cls, evidence: str, remedy: str) -> "Outcome":
        return cls(Severity.ERROR, evidence, remedy)

    @classmethod
    def warning(cls, evidence: str, remedy: str) -> "Outcome":
        return cls(Severity.WARNING, evidence, remedy)

    @classmethod
    def success(cls, evidence: str) -> "Outcome":
        return cls(Severity.PASSED, evidence)

    @classmethod
    def not_applicable(cls, reason: str) -> "Outcome":
        """Return the outcome of a check whose subject the plan does not need."""
        return cls(Severity.SKIPPED, reason)

    @classmethod
    def not_checked(cls, what: str) -> "Outcome":
        """Return the outcome of a check that does not judge its subject here."""
        return cls(Severity.SKIPPED, f"not checked: {what}")

    @classmethod
    def not_readable(cls, unseen: MissingData) -> "Outcome":
        """Return the outcome of a check that could not read its subject."""
        reason = unseen.reason if unseen.denied else f"could not be read: {unseen.reason}"
        remedy = "ask the owner of the cluster for the right to read it" if unseen.denied else "try again"
        return cls(Severity.SKIPPED, reason, remedy, could_not_read=True)


@dataclass(frozen=True)
class Facts:
    """Everything that the checks judge."""

    snapshot: Snapshot
    job: "JobSpec"
    kinds: tuple[ServedKind, ...]
    kind: ServedKind
    """The kind of the job; for auto the first that the cluster serves."""
    fits: tuple[Fitness, ...]
    capacity: Capacity
    outlook: Outlook

    @property
    def enough(self) -> bool:
        """Return whether there are enough fit nodes for the plan when nothing else runs on them.

        True also where it is not checked: GPUs are not counted, or Karpenter may add nodes.
        """
        is_unknown = self.snapshot.may_grow or self.capacity.uncounted
        return is_unknown or self.capacity.places_empty >= self.job.nodes

    @property
    def wants_gpus(self) -> bool:
        return self.job.gpus_per_node != 0

    def error_unless_enough(self, evidence: str, remedy: str) -> Outcome:
        """Return an error if too few fit nodes are left for the plan, else a warning."""
        return (Outcome.warning if self.enough else Outcome.error)(evidence, remedy)

    def judge_nodes(self, check: str) -> Iterator[Outcome]:
        """Yield the obstacles, then the doubts, of `check`; nodes with the same one share an outcome."""
        obstacles, doubts = dict[Obstacle, list[str]](), dict[Obstacle, list[str]]()
        for fitness in self.fits:
            for known, found in ((obstacles, fitness.obstacles), (doubts, fitness.doubts)):
                for one in found:
                    if one.check == check:
                        known.setdefault(one, []).append(fitness.node.name)
        for one, nodes in obstacles.items():
            yield self.error_unless_enough(f"{list_names(nodes)}: {one.text}", one.remedy)
        for one, nodes in doubts.items():
            yield Outcome.warning(f"{list_names(nodes)}: {one.text}", one.remedy)


@dataclass(frozen=True)
class Check:
    name: str
    subject: str
    judge: Callable[[Facts], Iterator[Outcome]]
    essential: bool = False
    """If this check could not read its subject, the cluster does not count as ready."""


def list_names(found: Iterable[str]) -> str:
    """Return the first names and the number of the others: `a, b, c and 5 more`."""
    listed = list(found)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
