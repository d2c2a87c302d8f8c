"""The observations of a job: what a cluster shows now, and what was seen before.

`Observed` is one observation. `History` remembers what the cluster no longer shows: pods that the operator
deleted and created again, and how they ended. Every change returns a new value.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.jobs.state.pod_facts import PodFacts

Json = Mapping[str, Any]
MOST_ENDED = 200
"""The number of failed pods to remember: the first ones, which show the cause, and the last ones."""


@dataclass(frozen=True)
class History:
    """The earlier observations of a job."""

    ran: bool = False
    """At some time all of its pods ran at once."""
    pods: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)
    """Place of a pod -> creation times and uids of the pods there, in order."""
    container_restarts: Mapping[str, int] = field(default_factory=dict)
    """Uid -> how many times its containers were restarted in place."""
    ended: Mapping[str, PodFacts] = field(default_factory=dict)
    """Uid -> the last facts of a pod that ended with a failure."""

    def with_pods(self, pods: Iterable[PodFacts]) -> "History":
        """Return this history with these pods added."""
        places, restarts, ended = dict(self.pods), dict(self.container_restarts), dict(self.ended)
        for pod in pods:
            known, this = places.get(pod.place, ()), (pod.created, pod.uid)
            if not pod.helps and this not in known:
                places[pod.place] = tuple(sorted((*known, this)))
            if pod.restarts:
                restarts[pod.uid] = max(pod.restarts, restarts.get(pod.uid, 0))
            if pod.uid in ended or pod.phase == "Failed" or any(end.failed for end in pod.ends):
                before = ended.get(pod.uid)  # a deleted pod may lose the end of its containers
                ends = before.ends if before is not None and not pod.ends else pod.ends
                ended[pod.uid] = replace(pod, ends=ends)
        if len(ended) > MOST_ENDED:
            kept = [*list(ended)[: MOST_ENDED // 2], *list(ended)[-MOST_ENDED // 2 :]]
            ended = {uid: ended[uid] for uid in kept}
        return replace(self, pods=places, container_restarts=restarts, ended=ended)

    def restarts(self, wanted: int | None) -> int:
        """Return the number of pods created again and containers restarted, for a job of `wanted` pods."""
        anew = sum(len(uids) - 1 for place, uids in self.pods.items() if place)
        loose = len(self.pods.get("", ()))
        placed = sum(1 for place in self.pods if place)
        if loose and wanted is not None:
            anew += max(0, loose - max(0, wanted - placed))
        return anew + sum(self.container_restarts.values())
