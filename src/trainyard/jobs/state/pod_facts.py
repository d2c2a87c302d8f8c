"""Reduce a pod to the facts that a job's state needs: a few hundred bytes of 5 kB of status.

    raw pod --pod_facts--> PodFacts: phase, rank, restarts, what it waits for, how its containers ended

Init containers count where they fail or wait: a pod that waits for its master has not started.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.cluster.demand import EFA
from trainyard.jobs.pod_exit_codes import code_on_record
from trainyard.jobs.state.reading import read_labels, time_of

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import JobKind

Json = Mapping[str, Any]
LAST_LINES = 20
_MOST_LETTERS = 4000
_LOST_CONTAINER = "ContainerStatusUnknown"
"""The reason of a container that the kubelet cannot find any more; its exit code 137 is invented."""
_ENDING = ("Never", "OnFailure")
"""Restart policies under which a container that succeeded is not started again."""


@dataclass(frozen=True)
class ContainerEnd:
    """The end of a container, now or before it was restarted in place."""

    container: str
    exit_code: int | None
    """None if the node does not know."""
    reason: str
    message: str
    finished: float | None
    """Unix seconds."""
    recovered: bool = False
    """The container was restarted in place afterwards."""

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


@dataclass(frozen=True)
class PodWaiting:
    """The reason why a container does not run."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodFacts:
    """One pod at one moment."""

    name: str
    uid: str
    node: str
    rank: int | None
    """Rank among the job's pods; None if the pods of this kind have no order."""
    phase: str
    reason: str
    message: str
    created: float
    changed: float
    """The time of its last progress: it was created or scheduled, or one of its containers ended."""
    ready: bool
    deleting: bool
    restarts: int
    waiting: tuple[PodWaiting, ...]
    ends: tuple[ContainerEnd, ...]
    disruption: str
    """The reason of its condition DisruptionTarget; empty without."""
    unschedulable: str
    """The scheduler's reason why no node fits; empty if one does."""
    silent: bool = False
    """Its node does not answer: its last report was ready, and the control plane has marked it not ready."""
    disrupted_at: float | None = None
    helps: bool = False
    """It does not train: it submits a command to Ray, or prepares data."""
    efa: bool = False
    """It requests interfaces of the Elastic Fabric Adapter."""

    @property
    def live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    @property
    def running(self) -> bool:
        return self.phase == "Running" and self.ready and not self.deleting

    @property
    def place(self) -> str:
        """The identity that stays the same when the pod is created again."""
        return "" if self.rank is None else f"rank {self.rank}"


def pod_facts(raw: Json, kind: "JobKind") -> PodFacts:
    """Reduce a pod of a job of this kind to its facts."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    disruption = conditions.get("DisruptionTarget") or {}
    disrupted = disruption.get("status") == "True"
    scheduled = conditions.get("PodScheduled") or {}
    containers = list(_containers(status))
    ends = tuple(e for c in containers for e in _ends_of(c))
    ready = "Ready" not in conditions or conditions["Ready"].get("status") == "True"
    states = [
        c.get("ready") is True and "running" in (c.get("state") or {}) for c in _main_containers(status)
    ]
    created = time_of(meta.get("creationTimestamp")) or 0.0
    helps = kind.is_helper(read_labels(raw))
    return PodFacts(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        node=str(spec.get("nodeName") or ""),
        rank=None if helps else kind.rank_of(raw),
        phase=_phase_of(spec, status),
        reason=str(status.get("reason") or ""),
        message=_short(status.get("message")),
        created=created,
        changed=max(
            time_of(scheduled.get("lastTransitionTime")) or created, *(e.finished or 0.0 for e in ends), 0.0
        ),
        ready=ready,
        deleting=bool(meta.get("deletionTimestamp")),
        restarts=sum(int(c.get("restartCount") or 0) for c in containers),
        waiting=tuple(w for c in containers for w in _waiting_of(c)),
        ends=ends,
        disruption=str(disruption.get("reason") or "unknown") if disrupted else "",
        unschedulable=_unschedulable(scheduled),
        silent=not ready and bool(states) and all(states),
        disrupted_at=time_of(disruption.get("lastTransitionTime")) if disrupted else None,
        helps=helps,
        efa=any(
            EFA in ((container.get("resources") or {}).get("limits") or {})
            for container in spec.get("containers") or ()
        ),
    )


def _phase_of(spec: Json, status: Json) -> str:
    """The phase; `Succeeded` as soon as all containers have, before the kubelet has cleaned up and says so.

    Until then the pod is Running and not ready, and would look like one that is started again.
    """
    phase = str(status.get("phase") or "Pending")
    states = [c.get("state") or {} for c in _main_containers(status)]
    codes = [(state.get("terminated") or {}).get("exitCode") for state in states]
    over = bool(codes) and all(code == 0 for code in codes)
    return "Succeeded" if phase == "Running" and over and spec.get("restartPolicy") in _ENDING else phase


def _containers(status: Json) -> Iterator[Json]:
    yield from (c for c in status.get("initContainerStatuses") or () if isinstance(c, dict))
    yield from _main_containers(status)


def _main_containers(status: Json) -> Iterator[Json]:
    return (c for c in status.get("containerStatuses") or () if isinstance(c, dict))


def _ends_of(container: Json) -> Iterator[ContainerEnd]:
    state, last = container.get("state") or {}, container.get("lastState") or {}
    for found, recovered in ((state, False), (last, "running" in state)):
        ended = found.get("terminated")
        if ended is None:
            continue
        reason = str(ended.get("reason") or "")
        code, message = ended.get("exitCode"), _tail(ended.get("message"))
        known = code is not None and reason != _LOST_CONTAINER
        yield ContainerEnd(
            container=str(container.get("name", "")),
            exit_code=code_on_record(int(code), message) if known else None,
            reason=reason,
            message=message,
            finished=time_of(ended.get("finishedAt")),
            recovered=recovered,
        )


def _waiting_of(container: Json) -> Iterator[PodWaiting]:
    waiting = (container.get("state") or {}).get("waiting")
    if waiting:
        yield PodWaiting(str(waiting.get("reason") or ""), _short(waiting.get("message")))


def _unschedulable(scheduled: Json) -> str:
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return ""
    return _short(scheduled.get("message")) or "no node fits"


def _short(text: object) -> str:
    return " ".join(str(text or "").split())[:_MOST_LETTERS]


def _tail(text: object) -> str:
    """Return the last lines of the termination message that a container left."""
    lines = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line) for line in str(text or "").splitlines()]
    return "\n".join(line for line in lines if line.strip())[-_MOST_LETTERS:]
