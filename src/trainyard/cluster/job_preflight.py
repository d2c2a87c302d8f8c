"""The check before a job is sent: what the configuration may create is created, then the cluster is judged.

look ──judge──> lacks its claim or queue? ──apply──> look again ──> verdict, facts for the plan
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.fix import Step, Supplies, plan_fix
from trainyard.cluster.images import pinned
from trainyard.cluster.pod_room import room_for
from trainyard.cluster.verdict import Verdict, judge, verdict_record
from trainyard.errors import ExitCode
from trainyard.plan.node_room import NodeRoom

Json = dict[str, Any]
_OF_A_JOB = ("storage", "queue")
"""Checks whose remedies belong to a job; what is installed in a cluster is for `manage_cluster.py fix`."""


@dataclass(frozen=True)
class Preflight:
    """What was found."""

    look: ClusterQuery
    verdict: Verdict
    exit_code: ExitCode
    """Of a job that would be sent now, without the errors of accepted checks."""

    @property
    def kind(self) -> str:
        return self.verdict.facts.kind.name

    @property
    def room(self) -> NodeRoom | None:
        """What a pod can have on every node that it may come to; None where no node is fit."""
        return room_for(self.verdict.facts.snapshot, self.look.demand)

    @property
    def image(self) -> str:
        """By the digest that its registry has for it, where that is known."""
        return pinned(self.look.demand.image, self.verdict.facts.snapshot.image)

    @property
    def record(self) -> Json:
        return {**verdict_record(self.verdict), **self.look.record(self.verdict.facts.snapshot)}


def preflight(
    look: ClusterQuery,
    supplies: Supplies,
    accepted: Collection[str],
    *,
    find_digest: Callable[..., str | None],
    apply: Callable[[Step], object] | None,
) -> Preflight:
    """Look at the cluster; `apply` creates what a step adds, None creates nothing.

    Raises ConfigError for an accepted check that is none, ServiceError when the cluster cannot be asked.
    """
    verdict = judge(look.snapshot(find_digest), look.demand)
    lacking = _lacking(plan_fix(verdict, supplies))
    if lacking and apply is not None:
        for step in lacking:
            apply(step)
        verdict = judge(look.snapshot(find_digest), look.demand)
    return Preflight(look, verdict, verdict.exit_code_without(accepted))


def _lacking(steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if step.automatic and step.check in _OF_A_JOB]
