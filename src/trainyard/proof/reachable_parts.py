"""The parts of the proof that a planned run cannot reach, however well it goes.

Only a plan decides here; facts that the run itself shows, such as its loss or the state of its repository,
count as good. `tests/unit/proof/test_reachable_parts.py` compares the answers with `proof.prove`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from trainyard.proof import PARTS

_EXPLAINED = "docs/jobs.md#what-the-pods-run says why"


@dataclass(frozen=True)
class PlannedRun:
    """The facts of a plan that decide which parts of the proof can hold."""

    nodes: int
    processes: int
    """Processes per node."""
    network: str
    """`compute.network` as the run's own configuration will have it."""
    store: str = ""
    """Empty: the run is not stored."""
    is_recorded: bool = True
    """Whether a run directory is kept; there is none for a command of the user's own."""
    keeps_network_log: bool = True
    """Whether every process keeps NCCL's log; a run on CPUs and the driver of Ray have none."""


@dataclass(frozen=True)
class UnreachablePart:
    """A part of the proof that will not hold, however well the run goes."""

    name: str
    why: str
    fix: str
    """The change with which it can hold, or where the reason is explained."""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def unreachable_parts(run: PlannedRun) -> tuple[UnreachablePart, ...]:
    """Return the parts that would not hold on the best possible records of `run`, in order."""
    return tuple(_find_unreachable(run))


def _find_unreachable(run: PlannedRun) -> Iterator[UnreachablePart]:
    if not run.is_recorded:
        why = "no run directory is kept for a command of your own"
        yield from (UnreachablePart(name, why, _EXPLAINED) for name in PARTS)
        return
    if run.nodes > 1 and run.network != "tcp" and not run.keeps_network_log:
        size = run.nodes * run.processes
        why = f"{size:,} processes, but nothing shows which network joined them"
        fix = "compute.network=tcp trains over TCP, which is slower and can be proven"
        yield UnreachablePart("network", why, fix)
    if not run.store:
        yield UnreachablePart("stored", "no store was named", "name a store with artifacts.store")
