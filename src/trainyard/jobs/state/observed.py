"""What a cluster shows of a job at one moment, and what was seen of it before.

`Observed` is one look. `History` remembers what a look no longer shows: pods that the operator has deleted
and made anew, and their ends. It grows by values, never in place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.jobs.state.job_kinds import KindOfJob
from trainyard.jobs.state.pod_facts import PodFacts

Json = Mapping[str, Any]
MOST_ENDED = 200
"""Failed pods that are remembered: the first ones, which say why, and the last ones."""


@dataclass(frozen=True)
class Observed:
    """One look at a job."""

    kind: KindOfJob
    namespace: str
    name: str
    job: Json | None
    """The object as the API gives it; None where there is none (any more)."""
    pods: tuple[PodFacts, ...] = ()
    owned: tuple[Json, ...] = ()
    """What stands between the job and its pods: JobSet, Job, RayCluster, and the Workload of Kueue."""
    events: tuple[Json, ...] = ()
    """Of the job, of its pods and of what it owns."""
    now: float = 0.0
    """Unix seconds, by the clock of the cluster."""
    deleted: bool = False
    """The job was seen to be deleted; `job` is what it was then."""

    def owned_of(self, api_kind: str) -> tuple[Json, ...]:
        return tuple(raw for raw in self.owned if raw.get("kind") == api_kind)


@dataclass(frozen=True)
class History:
    """What was seen of a job so far."""

    ran: bool = False
    """All of its pods ran at once at some time."""
    pods: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)
    """Place of a pod -> when pods were created there, and their uids, in this order."""
    container_restarts: Mapping[str, int] = field(default_factory=dict)
    """Uid -> how often its containers were started again in place."""
    ended: Mapping[str, PodFacts] = field(default_factory=dict)
    """Uid -> the last facts of a pod that ended with a failure."""

    def with_pods(self, pods: Iterable[PodFacts]) -> "History":
        """This history, and these pods."""
        places, restarts, ended = dict(self.pods), dict(self.container_restarts), dict(self.ended)
        for pod in pods:
            known, this = places.get(pod.place, ()), (pod.created, pod.uid)
            if not pod.helps and this not in known:
                places[pod.place] = tuple(sorted((*known, this)))
            if pod.restarts:
                restarts[pod.uid] = max(pod.restarts, restarts.get(pod.uid, 0))
            if pod.uid in ended or pod.phase == "Failed" or any(end.failed for end in pod.ends):
                ended[pod.uid] = _fuller(ended.get(pod.uid), pod)
        if len(ended) > MOST_ENDED:
            kept = [*list(ended)[: MOST_ENDED // 2], *list(ended)[-MOST_ENDED // 2 :]]
            ended = {uid: ended[uid] for uid in kept}
        return replace(self, pods=places, container_restarts=restarts, ended=ended)

    def restarts(self, wanted: int | None) -> int:
        """How many pods were made anew, and containers started again, of a job of `wanted` pods."""
        anew = sum(len(uids) - 1 for place, uids in self.pods.items() if place)
        loose = len(self.pods.get("", ()))
        placed = sum(1 for place in self.pods if place)
        if loose and wanted is not None:
            anew += max(0, loose - max(0, wanted - placed))
        return anew + sum(self.container_restarts.values())


def _fuller(before: PodFacts | None, pod: PodFacts) -> PodFacts:
    """The facts that say more: a pod that is deleted may lose the end of its containers."""
    return pod if before is None or pod.ends or not before.ends else replace(pod, ends=before.ends)
