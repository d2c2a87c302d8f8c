"""The definition of a check: a name, its subject, and a judgement over facts that are passed in.

A check yields findings. Anything that prevents the plan from running is an error; anything that may harm it
is a warning. A check that could not read its subject is skipped, with the reason. A check that finds nothing
wrong reports its evidence.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.cluster.admission import Outlook
from trainyard.cluster.capacity import Capacity
from trainyard.cluster.fitness import Fitness
from trainyard.cluster.needed_apis import ServedKind
from trainyard.cluster.snapshot import Snapshot
from trainyard.plan.finding import Finding

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

_NAMED = 3


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

    def error_unless_enough(self, evidence: str, fix: str) -> Finding:
        """Return an error if too few fit nodes are left for the plan, else a warning."""
        return (Finding.warning if self.enough else Finding.error)(evidence, fix)

    def judge_nodes(self, check: str) -> Iterator[Finding]:
        """Yield the obstacles, then the doubts, of `check`; nodes with the same one share a finding."""
        obstacles, doubts = dict[Finding, list[str]](), dict[Finding, list[str]]()
        for fitness in self.fits:
            for known, found in ((obstacles, fitness.obstacles), (doubts, fitness.doubts)):
                for one in found:
                    if one.subject == check:
                        known.setdefault(one, []).append(fitness.node.name)
        for one, nodes in obstacles.items():
            yield self.error_unless_enough(f"{list_names(nodes)}: {one.evidence}", one.fix)
        for one, nodes in doubts.items():
            yield Finding.warning(f"{list_names(nodes)}: {one.evidence}", one.fix)


@dataclass(frozen=True)
class Check:
    name: str
    subject: str
    judge: Callable[[Facts], Iterator[Finding]]
    essential: bool = False
    """If this check could not read its subject, the cluster does not count as ready."""


def list_names(found: Iterable[str]) -> str:
    """Return the first names and the number of the others: `a, b, c and 5 more`."""
    listed = list(found)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
