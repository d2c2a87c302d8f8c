"""Find why pods that have not ended do not run, and which of these troubles do not end by themselves.

Image pulls recover, volumes attach late, and nodes are added. So a trouble is a failure only if trying again
cannot help, or after it has lasted for `PATIENCE` seconds.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.jobs.state.job_state import Waiting
from trainyard.jobs.state.pod_facts import PodFacts, PodWaiting
from trainyard.jobs.state.reading import count, time_of
from trainyard.watch.failure_classes import FailureClass

Json = Mapping[str, Any]
PATIENCE = 900.0
"""Seconds that a pod may wait for something that can still recover; images of 20 GB take minutes."""
_SOON = 60.0
"""Seconds to wait for an object that somebody may be creating, such as a Secret."""
_PULL = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    )
)
_NEVER = frozenset(("InvalidImageName", "ErrImageNeverPull"))
_CREATE = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"))
_FINAL_PULL = re.compile(
    r"not ?found|manifest unknown|does not exist|name .* invalid|invalid reference|no match for platform|"
    r"unauthorized|authorization failed|access denied|403 forbidden|no basic auth",
    re.I,
)
_PASSING_PULL = re.compile(
    r"5\d\d |timeout|timed out|connection re|TLS handshake|too many requests|temporar|i/o", re.I
)
_DISK = re.compile(r"no space left", re.I)
_NO_PROGRAM = re.compile(
    r"executable file .*not found|exec: .*(?:no such file or directory|permission denied)|exec format error"
)
_FIX_OF_PROGRAM = "correct the image, cluster.pod.python or the command: the image has no such program"
_STARTS = 3
"""The number of starts without a program after which the image is wrong."""


@dataclass(frozen=True)
class Trouble:
    """The reason why a pod waits."""

    pod: PodFacts
    waiting: Waiting
    hopeless: bool
    """Waiting longer does not help."""


def troubles(pods: Iterable[PodFacts], *, now: float, events: Sequence[Json] = ()) -> list[Trouble]:
    """Return the reasons why these pods do not run, the hopeless ones first."""
    found = [t for pod in pods if pod.live for t in _pod_troubles(pod, now, events)]
    return sorted(found, key=lambda t: (not t.hopeless, t.pod.rank is None, t.pod.rank or 0, t.pod.name))


def trouble_of_starts(pods: Iterable[PodFacts], events: Sequence[Json], *, since: float) -> Trouble | None:
    """Return the reason why a pod is recreated repeatedly: its image lacks the program.

    The operator deletes such a pod within a second, so that only the events of its name show the cause.
    """
    for pod in (pod for pod in pods if not pod.running and not pod.helps):
        failed = [
            e for e in events if _lacks_program(e, pod.name) and (time_of(_moment(e)) or since) >= since
        ]
        if failed:
            message = " ".join(str(max(failed, key=_moment).get("message")).split())
            _, _, short = message.rpartition("error during container init: ")
            text = f"{pod.name} cannot start: {short}"
            waiting = Waiting(FailureClass.CONFIGURATION, text, node=pod.node, fix=_FIX_OF_PROGRAM)
            starts = sum(count(e.get("count"), 1) for e in failed)
            return Trouble(pod, waiting, hopeless=starts >= _STARTS)
    return None


def _lacks_program(event: Json, name: str) -> bool:
    is_about = (event.get("involvedObject") or {}).get("name") == name
    return (
        is_about and event.get("reason") == "Failed" and bool(_NO_PROGRAM.search(str(event.get("message"))))
    )


def trouble_of_events(events: Sequence[Json]) -> Waiting | None:
    """Return the newest refusal to create pods; None if there is none."""
    refused = [
        e for e in events if e.get("type") == "Warning" and str(e.get("reason")).startswith("FailedCreate")
    ]
    for event in sorted(refused, key=_moment, reverse=True):
        message = " ".join(str(event.get("message") or "").split())
        if re.search(r"exceeded quota", message):
            return Waiting(FailureClass.QUOTA, message)
        if re.search(r"forbidden|invalid|denied the request", message, re.I):
            return Waiting(FailureClass.CONFIGURATION, message)
    return None


def _pod_troubles(pod: PodFacts, now: float, events: Sequence[Json]) -> list[Trouble]:
    is_lost = pod.silent or (pod.phase == "Running" and pod.reason == "NodeLost")
    if pod.disruption == "DeletionByTaintManager" or is_lost:
        message = f"{pod.name}: its node {pod.node} does not answer"
        lost = Waiting(FailureClass.NODE_LOST, message, node=pod.node)
        return [Trouble(pod, lost, hopeless=False)]
    if pod.deleting:
        return []
    if pod.unschedulable:
        waiting = Waiting(FailureClass.UNSCHEDULABLE, f"{pod.name}: {pod.unschedulable}")
        return [Trouble(pod, waiting, hopeless=False)]
    waited = max(0.0, now - pod.changed) if pod.changed else 0.0
    return [t for w in pod.waiting if (t := _wait_trouble(pod, w, waited, events)) is not None]


def _wait_trouble(pod: PodFacts, found: PodWaiting, waited: float, events: Sequence[Json]) -> Trouble | None:
    message = f"{pod.name}: {found.reason}: {found.message}".rstrip(": ")
    if found.reason in _NEVER:
        return Trouble(pod, Waiting(FailureClass.IMAGE_PULL, message), hopeless=True)
    if found.reason in _PULL:
        return _pull_trouble(pod, found, waited, events)
    if found.reason in _CREATE:
        hopeless = waited > (_SOON if found.reason == "CreateContainerConfigError" else PATIENCE)
        return Trouble(pod, Waiting(FailureClass.CONFIGURATION, message), hopeless=hopeless)
    if found.reason == "CrashLoopBackOff":
        return Trouble(pod, Waiting(FailureClass.UNKNOWN, message), hopeless=False)
    return None


def _pull_trouble(pod: PodFacts, found: PodWaiting, waited: float, events: Sequence[Json]) -> Trouble:
    """Return an image pull that failed. Before Kubernetes 1.32 only the events say why it is tried again.

    Between two tries the reason is ErrImagePull once more; an event shows that it was tried before.
    """
    message = found.message
    tried = found.reason == "ImagePullBackOff" or any(
        _is_of(e, pod) and e.get("reason") == "BackOff" and "pulling image" in str(e.get("message"))
        for e in events
    )
    if tried and not _FINAL_PULL.search(message):
        message = next(
            (m for e in events if _is_of(e, pod) and "Failed to pull image" in (m := str(e.get("message")))),
            message,
        )
    failure_class = FailureClass.DISK_FULL if _DISK.search(message) else FailureClass.IMAGE_PULL
    final = bool(_FINAL_PULL.search(message)) and not _PASSING_PULL.search(message)
    text = f"{pod.name}: {found.reason}: {message}".rstrip(": ")
    return Trouble(pod, Waiting(failure_class, text), hopeless=(final and tried) or waited > PATIENCE)


def _is_of(event: Json, pod: PodFacts) -> bool:
    return (event.get("involvedObject") or {}).get("uid") == pod.uid


def _moment(event: Json) -> str:
    last = event.get("lastTimestamp") or event.get("eventTime")
    return str(last or (event.get("metadata") or {}).get("creationTimestamp") or "")
