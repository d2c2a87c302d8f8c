"""Reduce a pod to the facts that a job's state needs: a few hundred bytes of 5 kB of status.

    raw pod --pod_facts--> PodFacts: phase, rank, restarts, what it waits for, how its containers ended

The container that trains decides: its end is the pod's end, and the pod runs while it does. A sidecar is only
a reason. Init containers count where they fail or wait: a pod that waits for its master has not started.

`History` remembers what the cluster no longer shows: pods that the operator deleted and created again, and
how they ended. Every change returns a new value.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from trainyard.jobs.state.reading import Json, annotations_of, field_of, one_line, read_labels, time_of
from trainyard.plan.instances import EFA

LAST_LINES = 20
_MOST_LETTERS = 4000
_LOST_CONTAINER = "ContainerStatusUnknown"
"""The reason of a container that the kubelet cannot find any more; its exit code 137 is invented."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def completion_index(pod: Json) -> int | None:
    """Return the rank of a pod of an indexed Job; None if it has none."""
    return whole_number(read_labels(pod).get(COMPLETION_INDEX) or annotations_of(pod).get(COMPLETION_INDEX))


def whole_number(text: object) -> int | None:
    """Return the number that a label holds; None for anything else."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else None


@dataclass(frozen=True)
class Place:
    """A container in which a command can run."""

    namespace: str
    pod: str
    container: str = ""
    """Empty means the only container, or the pod's default."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" + (f"/{self.container}" if self.container else "")


@dataclass(frozen=True, kw_only=True)
class PodReading:
    """How the pods of a kind of job are read."""

    container: str = ""
    """The container that trains; in a pod that has none of this name, it is the first."""
    rank_of: Callable[[Json], int | None] = completion_index
    """The rank of a pod that trains; None if the pods of this kind have no order."""
    is_helper: Callable[[Json], bool] = lambda _labels: False
    """True for the labels of a pod that does not train: it submits a command, or prepares data."""


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
    beside: bool = False
    """It is a sidecar: neither the container that trains nor one that ends before it starts."""

    @property
    def failed(self) -> bool:
        return self.exit_code != 0


def describe_end(pod: "PodFacts") -> str:
    """Return how a container of the pod ended, the one that trains if it did; empty if none has."""
    own = [end for end in pod.ends if not end.beside and not end.recovered]
    end = next((end for end in own if end.failed), own[0] if own else None)
    return f"{pod.name}: container {end.container} ended with exit code {end.exit_code}" if end else ""


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
    waiting: tuple[tuple[str, str], ...]
    """Reason and message of each container that does not run."""
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
    kept_by: str = ""
    """The sidecars that have not ended although the container that trains has; the pod does not end."""
    starting: str = ""
    """The init container that has not ended or started, for which its other containers wait."""
    stopping: str = ""
    """The sidecars among the init containers that the kubelet still has to stop; then the pod ends."""
    efa: bool = False
    """It requests interfaces of the Elastic Fabric Adapter."""

    @property
    def live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed") or bool(self.kept_by or self.stopping)

    @property
    def running(self) -> bool:
        return self.phase == "Running" and self.ready and not self.deleting

    @property
    def place(self) -> str:
        """The identity that stays the same when the pod is created again."""
        return "" if self.rank is None else f"rank {self.rank}"


def pod_facts(raw: Json, kind: PodReading) -> PodFacts:
    """Reduce a pod of a job of this kind to its facts."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    disruption = conditions.get("DisruptionTarget") or {}
    disrupted = disruption.get("status") == "True"
    scheduled = conditions.get("PodScheduled") or {}
    main, inits, beside = _containers(spec, status, kind.container)
    own = [main, *(c for c in inits if c not in beside)]
    ends = [e for c in own for e in _ends_of(c)] + [e for c in beside for e in _ends_of(c, beside=True)]
    ready = "Ready" not in conditions or conditions["Ready"].get("status") == "True"
    states = [c.get("ready") is True and "running" in _state_of(c) for c in (main, *beside)]
    phase = _phase_of(spec, status, main)
    is_over = phase in ("Succeeded", "Failed") and phase != status.get("phase")
    living = [c for c in beside if "terminated" not in _state_of(c)] if is_over else []
    # The kubelet stops sidecars among the init containers itself, within the grace period of the pod.
    stays, stops = ([c for c in living if (c in inits) is ends_itself] for ends_itself in (False, True))
    created = time_of(meta.get("creationTimestamp")) or 0.0
    helps = kind.is_helper(read_labels(raw))
    return PodFacts(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        node=str(spec.get("nodeName") or ""),
        rank=None if helps else kind.rank_of(raw),
        phase=phase,
        reason=str(status.get("reason") or ""),
        message=_short(status.get("message")),
        created=created,
        changed=max(
            time_of(scheduled.get("lastTransitionTime")) or created,
            *(e.finished or 0.0 for e in ends if not e.beside),
            0.0,
        ),
        ready=ready or (states[0] and not all(states)),
        deleting=bool(meta.get("deletionTimestamp")),
        restarts=sum(int(c.get("restartCount") or 0) for c in own),
        waiting=tuple(
            (str(waiting.get("reason") or ""), _short(waiting.get("message")))
            for container in (*own, *beside)
            if (waiting := _state_of(container).get("waiting"))
        ),
        ends=tuple(ends),
        disruption=str(disruption.get("reason") or "unknown") if disrupted else "",
        unschedulable=_unschedulable(scheduled),
        silent=not ready and all(states),
        disrupted_at=time_of(disruption.get("lastTransitionTime")) if disrupted else None,
        helps=helps,
        kept_by=", ".join(str(c.get("name")) for c in stays),
        starting=_starting(inits, beside) if phase == "Pending" else "",
        stopping="" if stays else ", ".join(str(c.get("name")) for c in stops),
        efa=any(EFA in (field_of(c, "resources", "limits") or {}) for c in spec.get("containers") or ()),
    )


def _containers(spec: Json, status: Json, trains: str) -> tuple[Json, list[Json], list[Json]]:
    """Return the statuses of the container that trains, of the init containers, and of the sidecars.

    The first is called `trains`, else it is the first of the pod; the kubelet sorts statuses by name. Init
    containers that stay are sidecars too.
    """
    entries: list[Json] = [c for c in status.get("containerStatuses") or () if isinstance(c, dict)]
    names = [c.get("name") for c in spec.get("containers") or entries]
    name = trains if trains in names else next(iter(names), "")
    main: Json = next((c for c in entries if c.get("name") == name), {})
    stay = [c.get("name") for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    inits: list[Json] = [c for c in status.get("initContainerStatuses") or () if isinstance(c, dict)]
    return main, inits, [*(c for c in inits if c.get("name") in stay), *(c for c in entries if c is not main)]


def _phase_of(spec: Json, status: Json, main: Json) -> str:
    """Return the phase of the container that trains.

    The kubelet says Pending until all containers have started, and Running until all have ended and it has
    cleaned up; such a pod is not ready, and would look like one that is started again.
    """
    phase, state = str(status.get("phase") or "Pending"), _state_of(main)
    if phase not in ("Pending", "Running"):
        return phase
    code = (state.get("terminated") or {}).get("exitCode")
    if code == 0 and spec.get("restartPolicy") in ("Never", "OnFailure"):
        return "Succeeded"
    if code is not None and spec.get("restartPolicy") == "Never":
        return "Failed"
    return "Running" if "running" in state else phase


def _starting(inits: list[Json], beside: list[Json]) -> str:
    """Return which init container runs, and the others wait for it; empty if none does."""
    for container in inits:
        is_sidecar, name = container in beside, str(container.get("name"))
        if "running" in _state_of(container) and not (is_sidecar and container.get("started", True)):
            return (
                f"its sidecar {name} has not started yet" if is_sidecar else f"its init container {name} runs"
            )
    return ""


def _state_of(container: Json) -> Json:
    found: Json = container.get("state") or {}
    return found


def _ends_of(container: Json, *, beside: bool = False) -> Iterator[ContainerEnd]:
    state, last = _state_of(container), container.get("lastState") or {}
    for found, recovered in ((state, False), (last, "running" in state)):
        ended = found.get("terminated")
        if ended is None:
            continue
        reason = str(ended.get("reason") or "")
        code, message = ended.get("exitCode"), _tail(ended.get("message"))
        known = code is not None and reason != _LOST_CONTAINER
        yield ContainerEnd(
            container=str(container.get("name", "")),
            exit_code=int(code) if known else None,
            reason=reason,
            message=message,
            finished=time_of(ended.get("finishedAt")),
            recovered=recovered,
            beside=beside,
        )


def _unschedulable(scheduled: Json) -> str:
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return ""
    return _short(scheduled.get("message")) or "no node fits"


def _short(text: object) -> str:
    return one_line(text)[:_MOST_LETTERS]


def _tail(text: object) -> str:
    """Return the last lines of the termination message that a container left."""
    lines = [re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", line) for line in str(text or "").splitlines()]
    return "\n".join(line for line in lines if line.strip())[-_MOST_LETTERS:]


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

    def with_pods(self, pods: Iterable[PodFacts], *, ran: bool = False) -> "History":
        """Return this history with these pods added; `ran` says whether all of the job's pods run now."""
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
        return History(self.ran or ran, places, restarts, ended)

    def restarts(self, wanted: int | None) -> int:
        """Return the number of pods created again and containers restarted, for a job of `wanted` pods."""
        anew = sum(len(uids) - 1 for place, uids in self.pods.items() if place)
        loose = len(self.pods.get("", ()))
        placed = sum(1 for place in self.pods if place)
        if loose and wanted is not None:
            anew += max(0, loose - max(0, wanted - placed))
        return anew + sum(self.container_restarts.values())
