"""Find why pods of a job are missing or do not run, and which of these troubles do not end by themselves.

Image pulls recover, volumes attach late, quota is returned, and nodes are added. So a trouble is a failure
only if trying again cannot help, or after it has lasted for `PATIENCE` seconds.

An operator with many pods may drop events (client-go sends 25 at once for an object); then a missing pod has
no reason until the next one, five minutes later.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainyard.cluster.resource_quantities import parse_quantity
from trainyard.jobs.job_object import KIND_LABEL
from trainyard.jobs.state.job_state import Waiting
from trainyard.jobs.state.pod_facts import describe_end
from trainyard.jobs.state.pod_failures import INIT_CONTAINER, explain_lines
from trainyard.jobs.state.reading import (
    Json,
    Phase,
    Reading,
    conditions,
    count,
    event_time,
    field_of,
    message_of,
    one_line,
    read_labels,
    time_of,
    true_conditions,
)
from trainyard.watch.failure_classes import FailureClass

if TYPE_CHECKING:
    from trainyard.jobs.job_kind import Observed
    from trainyard.jobs.state.pod_facts import History, PodFacts

PATIENCE = 900.0
"""Seconds that a pod may wait for something that can still recover; images of 20 GB take minutes."""
_SOON = 60.0
"""Seconds to wait for an object or a rule that somebody may be changing, and for sidecars to end."""
# Reason why Kueue evicted a Workload -> class. Old conditions stay with status False: only True ones count.
_EVICTIONS = {
    "Preempted": FailureClass.PREEMPTED,
    "PodsReadyTimeout": FailureClass.UNSCHEDULABLE,
    "NodeFailures": FailureClass.NODE_LOST,
}
_PULL = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
_NEVER = ("InvalidImageName", "ErrImageNeverPull")
_CREATE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError")
_FINAL_PULL = re.compile(
    r"not ?found|manifest unknown|does not exist|name .* invalid|invalid reference|no match for platform|"
    r"unauthorized|authorization failed|access denied|403 forbidden|no basic auth",
    re.I,
)
_PASSING_PULL = re.compile(
    r"5\d\d |timeout|timed out|connection re|TLS handshake|too many requests|temporar|i/o", re.I
)
_PULL_SECRETS = re.compile(r"image pull secrets \(([^)]+)\)")
_DISK = re.compile(r"no space left", re.I)
_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
_STARTED = ("Pulling", "Pulled", "Created", "Started")
"""Events of a pod whose volumes and sandbox are ready."""
_ABSENT = re.compile(r'(?:configmap|secret|persistentvolumeclaim) "[^"]+" not found')
_NO_PROGRAM = re.compile(
    r"executable file .*not found|exec: .*(?:no such file or directory|permission denied)|exec format error"
)
_FIX_OF_PROGRAM = "correct the image, cluster.pod.python or the command: the image has no such program"
_FIX_OF_USER = (
    "let the user of the pods execute it: set cluster.pod.run_as_user to 0 or null (only root may enter "
    "/root), or put the program elsewhere in the image"
)
_STARTS = 3
"""The number of starts without a program after which the image is wrong."""
_QUOTA = re.compile(r"exceeded quota: .*requested: (\S+), used: \S+, limited: (\S+)")
_FIX_OF_QUOTA = "wait until other jobs of the namespace end, or have the quota raised"
_FIX_OF_REQUEST = "request fewer nodes, or less for each; or have the quota raised"
_FIX_OF_INIT = "use --kind trainjob, whose operator adds no container of its own to the workers"
_FIX_OF_SIDECAR = "delete this job; make the sidecar an init container with restartPolicy Always, which ends"


def find_troubles(observed: "Observed", past: "History", reading: Reading) -> list[Waiting]:
    """Return the reasons why pods of this job are missing or do not run, the hopeless ones first.

    Nothing is hopeless for an elastic job of which enough pods run.
    """
    queue = _read_queue(observed)
    if reading.phase is Phase.SUSPENDED:
        return [queue] if queue is not None else []
    found = [t for t in (_start_trouble(observed), _refusal(observed, past, reading), queue) if t is not None]
    found += [t for pod in observed.pods if pod.live for t in _pod_troubles(pod, observed)]
    if reading.enough is not None and sum(pod.running for pod in observed.pods) >= reading.enough:
        found = [replace(t, hopeless=False) for t in found]
    return sorted(found, key=_order)


def _order(trouble: Waiting) -> tuple[Any, ...]:
    """Return the sort key: the hopeless ones first, sidecars of a pod that runs last."""
    pod = trouble.pod
    return not trouble.hopeless, *((pod.running, pod.rank is None, pod.rank, pod.name) if pod else ())


def _read_queue(observed: "Observed") -> Waiting | None:
    """Return why Kueue holds the job; one that it gave up waits until somebody activates its Workload."""
    for workload in observed.owned_of("Workload"):
        true = true_conditions(workload)
        evicted = true.get("Evicted", {})
        if "Finished" in true:
            continue
        if field_of(workload, "spec", "active") is False:
            why = message_of(evicted) or "its Workload was deactivated"
            requeued = re.search("re-?queu", why, re.IGNORECASE)
            failure_class = FailureClass.UNSCHEDULABLE if requeued else FailureClass.CANCELLED
            return Waiting(failure_class, f"Kueue has given it up: {why}", hopeless=True)
        if evicted:
            failure_class = _EVICTIONS.get(str(evicted.get("reason")), FailureClass.QUOTA)
            why = f"Kueue evicted it ({evicted.get('reason')}): {message_of(evicted)}"
            return Waiting(failure_class, why)
        if "Admitted" in true:
            return None
        why = message_of(conditions(workload).get("QuotaReserved") or {}) or "no reason is given yet"
        why = f"Kueue has not admitted it: {why}"
        if "QuotaReserved" in true:
            why = "Kueue has reserved quota and waits for its admission checks"
        return Waiting(FailureClass.QUOTA, why)
    return None


def _start_trouble(observed: "Observed") -> Waiting | None:
    """Return the reason why a pod is recreated repeatedly: its image lacks the program.

    The operator deletes such a pod within a second, so that only the events of its name show the cause.
    """
    created = time_of(((observed.job or {}).get("metadata") or {}).get("creationTimestamp")) or 0.0
    failed = [
        e
        for e in observed.events
        if e.get("reason") == "Failed" and _NO_PROGRAM.search(one_line(e.get("message")))
        if (event_time(e) or created) >= created
    ]
    for pod in (pod for pod in observed.pods if not pod.running and not pod.helps):
        if about := [e for e in failed if (e.get("involvedObject") or {}).get("name") == pod.name]:
            _, _, short = one_line(max(about, key=_last_seen).get("message")).rpartition(
                "error during container init: "
            )
            text = f"{pod.name} cannot start: {short}"
            fix = _FIX_OF_USER if "permission denied" in text else _FIX_OF_PROGRAM
            starts = sum(count(e.get("count"), 1) for e in about)
            is_wrong = starts >= _STARTS
            return Waiting(
                FailureClass.CONFIGURATION, text, node=pod.node, fix=fix, hopeless=is_wrong, pod=pod
            )
    return None


def _refusal(observed: "Observed", past: "History", reading: Reading) -> Waiting | None:
    """Return the newest refusal to create a pod that is missing; older ones than the newest pod are over."""
    present = sum(not pod.helps for pod in observed.pods)
    submits = observed.kind.on_ray and reading.phase is Phase.WAITING
    if present >= (reading.wanted or 1) and not submits:
        return None
    newest = max((created for pods in past.pods.values() for created, _ in pods), default=0.0)
    reasons = ("FailedCreate", "FailedToCreate", "TrainJobResourcesCreationFailed")
    refused = [
        e
        for e in observed.events
        if e.get("type") == "Warning" and str(e.get("reason")).startswith(reasons)
        if (e.get("involvedObject") or {}).get("kind") != "Pod" and (event_time(e) or newest) >= newest
    ]
    for event in sorted(refused, key=_last_seen, reverse=True):
        message = one_line(event.get("message"))
        begins = [time_of(e.get("firstTimestamp")) or event_time(e) or observed.now for e in refused]
        lasting = observed.now - min(begins) >= _SOON
        if "failed calling webhook" in message:
            return Waiting(FailureClass.SERVICE, message)
        if "exceeded quota" in message:
            # The pods of a job that we rendered request the same, except on Ray.
            alike = KIND_LABEL in read_labels(observed.job or {}) and not observed.kind.on_ray
            is_too_much = _exceeds_quota(message, reading.wanted or 1 if alike else 1)
            fix = _FIX_OF_REQUEST if is_too_much else _FIX_OF_QUOTA
            return Waiting(FailureClass.QUOTA, message, fix=fix, hopeless=is_too_much and lasting)
        if re.search(r"forbidden|invalid|denied|no matches for kind", message, re.I):
            is_init = f'"{INIT_CONTAINER}"' in message and f'"{observed.kind.container}"' not in message
            fix = _FIX_OF_INIT if is_init else ""
            return Waiting(FailureClass.CONFIGURATION, message, fix=fix, hopeless=lasting)
    return None


def _exceeds_quota(message: str, pods: int) -> bool:
    """Return whether a quota that refused one of `pods` equal pods can never hold them all."""
    found = _QUOTA.search(message)
    if found is None:
        return False
    requested, limited = (dict(re.findall(r"([\w./-]+)=([\w.]+)", text)) for text in found.groups())
    return any(
        parse_quantity(requested[n]) * pods > parse_quantity(limited[n]) for n in requested if n in limited
    )


def _pod_troubles(pod: "PodFacts", observed: "Observed") -> list[Waiting]:
    is_lost = pod.silent or (pod.phase == "Running" and pod.reason == "NodeLost")
    if pod.disruption == "DeletionByTaintManager" or is_lost:
        message = f"{pod.name}: its node {pod.node} does not answer"
        return [Waiting(FailureClass.NODE_LOST, message, node=pod.node, pod=pod)]
    if pod.deleting:
        return []
    if pod.unschedulable:
        hopeless = bool(_ABSENT.search(pod.unschedulable)) and _has_waited(pod, observed, _SOON)
        text = f"{pod.name}: {pod.unschedulable}"
        return [Waiting(FailureClass.UNSCHEDULABLE, text, hopeless=hopeless, pod=pod)]
    if pod.kept_by:
        return [_kept_trouble(pod, observed)]
    if pod.stopping:
        text = f"{describe_end(pod)}, and the sidecar {pod.stopping} has not stopped yet"
        return [Waiting(FailureClass.UNKNOWN, text, node=pod.node, pod=pod)]
    found = [_wait_trouble(pod, reason, message, observed) for reason, message in pod.waiting]
    found.append(_mount_trouble(pod, observed))
    for end in (end for end in pod.ends if end.beside and end.failed and not end.recovered):
        text = f"{pod.name}: the sidecar {end.container} ended with exit code {end.exit_code}"
        found.append(Waiting(FailureClass.UNKNOWN, text, pod=pod))
    # The program runs on without its sidecar.
    return [replace(t, hopeless=t.hopeless and not pod.running) for t in found if t is not None]


def _kept_trouble(pod: "PodFacts", observed: "Observed") -> Waiting:
    """Return that only sidecars of a pod live; without a failure, the other pods may still train."""
    end = next(end for end in pod.ends if not end.beside and not end.recovered)
    text = f"{describe_end(pod)}, and the sidecar {pod.kept_by} keeps the pod"
    others_train = any(p.live and not (p.kept_by or p.stopping or p.helps) for p in observed.pods)
    lasting = observed.now - (end.finished or observed.now) >= _SOON
    # KubeRay removes such a pod itself.
    hopeless = lasting and not observed.kind.on_ray and (end.failed or not others_train)
    fix = _FIX_OF_SIDECAR
    return Waiting(FailureClass.CONFIGURATION, text, node=pod.node, fix=fix, hopeless=hopeless, pod=pod)


def _has_waited(pod: "PodFacts", observed: "Observed", seconds: float) -> bool:
    return pod.changed > 0 and observed.now - pod.changed > seconds


def _mount_trouble(pod: "PodFacts", observed: "Observed") -> Waiting | None:
    """Return why the volumes or the sandbox of a pod are not ready; only its events say so."""
    about = [e for e in observed.events if _is_of(e, pod) and e.get("reason") in (*_MOUNT, *_STARTED)]
    last = max(about, key=_last_seen, default={})
    if pod.phase != "Pending" or last.get("reason") not in _MOUNT:
        return None
    message = one_line(last.get("message"))
    named = explain_lines([message], None)
    failure_class = named.klass if named else FailureClass.SERVICE
    hopeless = _has_waited(pod, observed, _SOON if _ABSENT.search(message) else PATIENCE)
    text = f"{pod.name}: {message}"
    return Waiting(failure_class, text, node=pod.node, hopeless=hopeless, pod=pod)


def _wait_trouble(pod: "PodFacts", reason: str, message: str, observed: "Observed") -> Waiting | None:
    text = f"{pod.name}: {reason}: {message}".rstrip(": ")
    if reason in _PULL:
        return _pull_trouble(pod, reason, message, observed)
    if reason in _NEVER:
        return Waiting(FailureClass.IMAGE_PULL, text, hopeless=True, pod=pod)
    if reason in _CREATE:
        limit = _SOON if reason == "CreateContainerConfigError" else PATIENCE
        hopeless = _has_waited(pod, observed, limit)
        return Waiting(FailureClass.CONFIGURATION, text, hopeless=hopeless, pod=pod)
    if reason == "CrashLoopBackOff":
        crashed = re.search(r"container=(\S+)", message)
        ends = [end for end in pod.ends if end.failed and (crashed is None or end.container == crashed[1])]
        code = f", which ended with exit code {ends[-1].exit_code}" if ends else ""
        # Operators count the restarts of containers only in pods that run, so not those of init containers.
        never_ran = pod.phase == "Pending" and observed.now - pod.created > PATIENCE
        hopeless = never_ran and pod.restarts >= _STARTS
        return Waiting(FailureClass.UNKNOWN, f"{text}{code}", node=pod.node, hopeless=hopeless, pod=pod)
    return None


def _pull_trouble(pod: "PodFacts", reason: str, message: str, observed: "Observed") -> Waiting:
    """Return an image pull that failed. Before Kubernetes 1.32 only the events say why it is tried again.

    Between two tries the reason is ErrImagePull once more; an event shows that it was tried before.
    """
    known = [(str(e.get("reason")), str(e.get("message"))) for e in observed.events if _is_of(e, pod)]
    tried = reason == "ImagePullBackOff" or any(r == "BackOff" and "pulling image" in m for r, m in known)
    if tried and not _FINAL_PULL.search(message):
        message = next((m for _, m in known if "Failed to pull image" in m), message)
    failure_class = FailureClass.DISK_FULL if _DISK.search(message) else FailureClass.IMAGE_PULL
    final = tried and bool(_FINAL_PULL.search(message)) and not _PASSING_PULL.search(message)
    text = f"{pod.name}: {reason}: {message}".rstrip(": ")
    hopeless = final or _has_waited(pod, observed, PATIENCE)
    lacking = (_PULL_SECRETS.search(m) for r, m in known if r == "FailedToRetrieveImagePullSecret")
    names = next((found[1] for found in lacking if found), "")
    fix = f"create the pull secret {names} in the namespace, or correct imagePullSecrets" if names else ""
    return Waiting(failure_class, text, fix=fix, hopeless=hopeless, pod=pod)


def _is_of(event: Json, pod: "PodFacts") -> bool:
    return (event.get("involvedObject") or {}).get("uid") == pod.uid


def _last_seen(event: Json) -> float:
    return event_time(event) or 0.0
