"""Objects as the API and the released operators write them, made from a few words."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainyard.jobs.job_kind import Observed
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.pod_facts import PodFacts, pod_facts

Json = dict[str, Any]
NOW = 1_795_000_000.0
_uids = itertools.count()


def our_labels(name: str = "llama", kind: str = "pytorchjob") -> dict[str, str]:
    """The labels of the objects of a job that we sent."""
    marks = {"app.kubernetes.io/managed-by": "trainyard"}
    return {**marks, "trainyard.dev/job": name, "trainyard.dev/kind": kind}


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: str, status: str = "True", reason: str = "", message: str = "", *, at: float = NOW
) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason or kind,
        "message": message or f"{kind} is {status}.",
        "lastTransitionTime": moment(at),
    }


def terminated(code: int, reason: str = "", *, at: float = NOW, message: str = "") -> Json:
    reason = reason or ("Completed" if code == 0 else "Error")
    finished = "0001-01-01T00:00:00Z" if reason == "ContainerStatusUnknown" else moment(at)
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": finished, "message": message}}


def pod(
    name: str = "job-worker-0",
    phase: str = "Running",
    *,
    rank: int | None = 0,
    state: Json | None = None,
    last: Json | None = None,
    restarts: int = 0,
    ready: bool | None = None,
    node: str = "gpu-0",
    uid: str = "",
    deleting: bool = False,
    silent: bool = False,
    reason: str = "",
    message: str = "",
    disruption: str = "",
    unschedulable: str = "",
    age: float = 60,
    labels: Mapping[str, str] | None = None,
) -> Json:
    """A pod with one container."""
    running = phase == "Running"
    is_ready = (running if ready is None else ready) and not silent
    conditions = [condition("Ready", "True" if is_ready else "False")]
    if unschedulable:
        conditions.append(condition("PodScheduled", "False", "Unschedulable", unschedulable))
        node = ""
    elif node:
        conditions.append(condition("PodScheduled", at=NOW - age))
    if disruption:
        conditions.append(condition("DisruptionTarget", reason=disruption))
    index = {} if rank is None else {"batch.kubernetes.io/job-completion-index": str(rank)}
    meta: Json = {
        "name": name,
        "uid": uid or f"uid-{next(_uids)}",
        "creationTimestamp": moment(NOW - age),
        "labels": {**index, **(labels or {})},
    }
    if deleting:
        meta["deletionTimestamp"] = moment(NOW)
    container: Json = {
        "name": "pytorch",
        "ready": running if ready is None else ready,
        "restartCount": restarts,
        "state": state or ({"running": {"startedAt": moment(NOW)}} if running else {}),
        "lastState": last or {},
    }
    status = {
        "phase": phase,
        "reason": reason,
        "message": message,
        "conditions": conditions,
        "containerStatuses": [container] if node else [],
    }
    return {"metadata": meta, "spec": {"nodeName": node}, "status": status}


def waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int = 1, *, at: float = NOW, reason: str = "", text: str = "", **more: Any) -> Json:
    """A pod whose only container ended."""
    phase = "Succeeded" if code == 0 else "Failed"
    return pod(phase=phase, state=terminated(code, reason, at=at, message=text), **more)


def job(kind: str, *, nodes: int = 2, spec: Json | None = None, **status: Any) -> Json:
    """A job of `nodes` pods with this status."""
    specs: dict[str, Json] = {
        "pytorchjob": {
            "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": nodes - 1}},
            "runPolicy": {},
        },
        "hyperpod": {"replicaSpecs": [{"name": "pods", "replicas": nodes}], "runPolicy": {}},
        "trainjob": {"trainer": {"numNodes": nodes}},
        "rayjob": {"rayClusterSpec": ray_spec(nodes)},
        "raycluster": ray_spec(nodes),
    }
    meta: Json = {
        "name": "job",
        "namespace": "team",
        "uid": "job-uid",
        "labels": {"trainyard.dev/job": "job"},
    }
    meta["labels"]["trainyard.dev/kind"] = kind
    return {
        "apiVersion": "x/v1",
        "kind": find_kind(kind).api_kind,
        "metadata": meta,
        "spec": {**specs[kind], **(spec or {})},
        "status": status,
    }


def ray_spec(nodes: int) -> Json:
    return {"headGroupSpec": {}, "workerGroupSpecs": [{"groupName": "w", "replicas": nodes - 1}]}


def seen(
    kind: str,
    raw: Json | None,
    pods: Sequence[Json] = (),
    *,
    owned: Sequence[Json] = (),
    events: Sequence[Json] = (),
    deleted: bool = False,
) -> Observed:
    return Observed(
        find_kind(kind),
        "team",
        "job",
        raw,
        facts(pods, kind),
        tuple(owned),
        tuple(events),
        now=NOW,
        deleted=deleted,
    )


def facts(pods: Sequence[Json], kind: str = "pytorchjob") -> tuple[PodFacts, ...]:
    return tuple(pod_facts(raw, find_kind(kind)) for raw in pods)


def running(nodes: int = 2, **more: Any) -> list[Json]:
    return [pod(f"job-{n}", rank=n, node=f"gpu-{n}", **more) for n in range(nodes)]


def workload(*conditions: Json, active: bool = True) -> Json:
    return {
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"active": active},
        "status": {"conditions": list(conditions)},
    }


def event(
    reason: str, message: str = "", *, kind: str = "Normal", involved: Json | None = None, count: int = 1
) -> Json:
    return {
        "reason": reason,
        "message": message,
        "type": kind,
        "involvedObject": involved or {"kind": "PyTorchJob", "name": "job"},
        "count": count,
        "lastTimestamp": moment(NOW),
    }
