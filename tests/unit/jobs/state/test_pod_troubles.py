# ruff: noqa: E501 - a case of the table is one line
"""Each reason for which pods of a job are missing or do not run x {none, some, all} of its pods.

The state names the reason within a minute, and what cannot recover ends the wait. One loop over one table.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.unit.jobs.state.shapes import (
    NOW,
    condition,
    ended,
    event,
    job,
    moment,
    pod,
    seen,
    terminated,
    waiting,
)

from trainyard.jobs.state.job_state import JobState, State
from trainyard.jobs.state.pod_troubles import PATIENCE
from trainyard.jobs.state.state_machine import judge_job
from trainyard.report.jobs.job_text import next_job_command

Json = dict[str, Any]
Shown = tuple[list[Json], list[Json]]
"""Pods and events."""
WANTED = 3
SOON = 40.0
"""Seconds after which a state must have its reason; less than the minute in which nothing is hopeless."""
STATUS: dict[str, Json] = {
    "pytorchjob": {"conditions": [condition("Created"), condition("Running")]},
    "hyperpod": {"conditions": [condition("Created"), condition("Running")]},
    "trainjob": {"jobsStatus": [{"name": "node", "active": 1}]},
    "raycluster": {"state": "ready", "conditions": [condition("HeadPodReady")]},
}
REFUSES = {
    "pytorchjob": ("FailedCreatePod", {"kind": "PyTorchJob", "name": "job"}),
    "hyperpod": ("FailedCreatePod", {"kind": "HyperPodPyTorchJob", "name": "job"}),
    "trainjob": ("FailedCreate", {"kind": "Job", "name": "job-node-0"}),
    "raycluster": ("FailedToCreateWorkerPod", {"kind": "RayCluster", "name": "job"}),
}
CONTAINERS = {"pytorchjob": "pytorch", "hyperpod": "pytorch", "trainjob": "node", "raycluster": "ray-worker"}
FORBIDDEN = 'Error creating: pods "job-1" is forbidden: '
QUOTA = (
    FORBIDDEN
    + "exceeded quota: gpus, requested: requests.nvidia.com/gpu={}, used: requests.nvidia.com/gpu=8, "
)
INIT = (
    'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "init-pytorch" must '
    'set securityContext.allowPrivilegeEscalation=false), runAsNonRoot != true (pod or container "init-pytorch" '
    "must set securityContext.runAsNonRoot=true)"
)


def trains(
    rank: int, kind: str, age: float, *, state: Json | None = None, beside: Json | None = None
) -> Json:
    """A pod of this rank; `beside` is the state of its sidecar, whose name sorts first."""
    raw = pod(
        f"job-{rank}", rank=rank, uid=f"pod-{rank}", node=f"gpu-{rank}", age=age, labels=ranks(rank, kind)
    )
    main = raw["status"]["containerStatuses"][0]
    main["name"] = CONTAINERS[kind]
    raw["spec"] |= {"restartPolicy": "Never", "containers": [{"name": CONTAINERS[kind]}]}
    if state is not None:
        main |= {"state": state, "ready": "running" in state}
    if beside is not None:
        raw["spec"]["containers"].append({"name": "a-proxy"})
        entry = {"name": "a-proxy", "ready": "running" in beside, "restartCount": 0, "state": beside}
        raw["status"]["containerStatuses"].insert(0, entry)
    ready = all(entry["ready"] for entry in raw["status"]["containerStatuses"])
    raw["status"]["conditions"][0]["status"] = "True" if ready else "False"
    if "waiting" in (state or {}):
        raw["status"]["phase"] = "Pending"
    return raw


def ranks(rank: int, kind: str) -> dict[str, str]:
    return {"ray.io/node-type": "worker" if rank else "head"} if kind == "raycluster" else {}


def refused(message: str, reason: str = "") -> Callable[[str, int, float], Shown]:
    """Some pods could not be created; where all exist, the refusal is older than the last pod."""

    def show(kind: str, hit: int, age: float) -> Shown:
        usual, about = REFUSES[kind]
        at = NOW - age - (0 if hit else 5)
        entry = event(reason or usual, message, kind="Warning", involved=about, count=9)
        entry |= {"firstTimestamp": moment(at), "lastTimestamp": moment(NOW if hit else at)}
        return [trains(rank, kind, age) for rank in range(WANTED - hit)], [entry]

    return show


def each(entries: Json | None = None, **states: Json) -> Callable[[str, int, float], Shown]:
    """The last pods of the job have these states of their containers, and this event."""

    def show(kind: str, hit: int, age: float) -> Shown:
        given = {
            name: {
                k: {**v, "finishedAt": moment(NOW - age)} if k == "terminated" else v
                for k, v in state.items()
            }
            for name, state in states.items()
        }
        pods = [trains(rank, kind, age) for rank in range(WANTED - hit)]
        pods += [trains(rank, kind, age, **given) for rank in range(WANTED - hit, WANTED)]
        about = (
            [{**entries, "involvedObject": {"kind": "Pod", "uid": f"pod-{r}"}} for r in range(WANTED)]
            if entries
            else []
        )
        return pods, about[WANTED - hit :]

    return show


def unschedulable(message: str) -> Callable[[str, int, float], Shown]:
    def show(kind: str, hit: int, age: float) -> Shown:
        pods = [trains(rank, kind, age) for rank in range(WANTED - hit)]
        for rank in range(WANTED - hit, WANTED):
            raw = pod(f"job-{rank}", "Pending", rank=rank, unschedulable=message, labels=ranks(rank, kind))
            raw["status"]["conditions"][1]["lastTransitionTime"] = moment(NOW - age)
            pods.append(raw)
        return pods, []

    return show


def mount(message: str, reason: str = "FailedMount") -> Callable[[str, int, float], Shown]:
    return each(event(reason, message, kind="Warning"), state=waiting("ContainerCreating"))


RUNS: Json = {"running": {}}


@dataclass(frozen=True)
class Case:
    show: Callable[[str, int, float], Shown]
    klass: str
    words: str
    ends_after: float | None = None
    """Seconds after which waiting is useless; None if it may recover."""
    fix: str = ""
    kinds: tuple[str, ...] = tuple(STATUS)
    keeps_training: bool = False
    """The program runs on, so the state is Running."""


OWN = ("pytorchjob", "hyperpod", "trainjob")
CASES = {
    "quota used by others": Case(refused(QUOTA.format(8) + "limited: requests.nvidia.com/gpu=32"), "quota", "exceeded quota", fix="wait until"),
    "quota too small for one pod": Case(refused(QUOTA.format(8) + "limited: requests.nvidia.com/gpu=4"), "quota", "exceeded quota", 60, "request fewer"),
    "quota too small for the job": Case(refused(QUOTA.format(8) + "limited: requests.nvidia.com/gpu=16"), "quota", "exceeded quota", 60, "request fewer", OWN),
    "policy": Case(refused(FORBIDDEN + 'violates PodSecurity "restricted:latest": runAsNonRoot'), "configuration", "PodSecurity", 60),
    "policy, the operator's container": Case(refused(FORBIDDEN + INIT), "configuration", "init-pytorch", 60, "--kind trainjob", ("pytorchjob",)),
    "no such kind": Case(refused('no matches for kind "PodGroup"', "TrainJobResourcesCreationFailed"), "configuration", "PodGroup", 60, kinds=("trainjob",)),
    "webhook": Case(refused('Error creating: admission webhook "v.example.com" denied the request: no'), "configuration", "v.example.com", 60),
    "admission policy": Case(refused(FORBIDDEN + "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"), "configuration", "'p'", 60),
    "webhook away": Case(refused('Internal error occurred: failed calling webhook "v.example.com": connection refused'), "service", "v.example.com"),
    "image": Case(each(state=waiting("ImagePullBackOff", "a/b:1: not found")), "image-pull", "a/b:1", 0, "push"),
    "image later": Case(each(state=waiting("ImagePullBackOff", "503 Service Unavailable")), "image-pull", "503", PATIENCE),
    "mount of a secret": Case(mount('MountVolume.SetUp failed for volume "v" : secret "s3" not found'), "configuration", '"s3"', 60),
    "mount": Case(mount('MountVolume.SetUp failed for volume "v" : mount failed: exit status 32'), "service", "exit status 32", PATIENCE),
    "attach": Case(mount('Multi-Attach error for volume "v"', "FailedAttachVolume"), "service", "Multi-Attach", PATIENCE),
    "sandbox": Case(mount('no runtime for "nvidia" is configured', "FailedCreatePodSandBox"), "configuration", "nvidia", PATIENCE),
    "schedule": Case(unschedulable("0/4 nodes are available: 4 Insufficient nvidia.com/gpu."), "unschedulable", "Insufficient", fix="nodes"),
    "schedule, no claim": Case(unschedulable('persistentvolumeclaim "data" not found'), "unschedulable", '"data"', 60),
    "main failed, sidecar alive": Case(each(state=terminated(1), beside=RUNS), "unknown", "exit code 1", 60, kinds=OWN),
    "main failed, sidecar alive, on ray": Case(each(state=terminated(1), beside=RUNS), "configuration", "exit code 1", kinds=("raycluster",)),
    "sidecar dead": Case(each(beside=terminated(137)), "unknown", "a-proxy ended with exit code 137", keeps_training=True),
    "sidecar without image": Case(each(beside=waiting("ImagePullBackOff", "c/d:1: not found")), "image-pull", "c/d:1", keeps_training=True),
}  # fmt: skip


def problems(name: str, case: Case, kind: str, hit: int, age: float) -> list[str]:
    """What is wrong with the state of a job of which `hit` pods have had this trouble for `age` seconds."""
    pods, events = case.show(kind, hit, age)
    state = judge_job(seen(kind, job(kind, nodes=WANTED, **STATUS[kind]), pods, events=events))
    found = state.failure or state.waiting
    is_over = case.ends_after is not None and age > case.ends_after
    wrong = []
    if not hit:
        is_well = state.state is State.RUNNING and not found and case.words not in state.reason
        return [] if is_well else [f"{name}, {kind}, no pod: {state.state} {state.reason}"]
    if case.words not in f"{state.reason} {' '.join(state.failure.evidence) if state.failure else ''}":
        wrong.append("no reason")
    if state.ended is not is_over:
        wrong.append("ends the wait" if state.ended else "is waited for")
    if case.keeps_training:
        wrong += [] if (state.state, found) == (State.RUNNING, None) else ["does not run"]
    elif state.state is State.RUNNING:
        wrong.append("runs")
    elif found is None or (found.failure_class != case.klass and (is_over or "failed" not in name)):
        wrong.append(f"class {found and found.failure_class}")
    if case.fix and (found is None or case.fix not in found.fix):
        wrong.append(f"fix {found and found.fix}")
    if state.pods.wanted != WANTED:
        wrong.append(f"wants {state.pods.wanted}")
    return (
        [f"{name}, {kind}, {hit} pods, {age:.0f} s: {', '.join(wrong)}: {state.state} {state.reason}"]
        if wrong
        else []
    )


def test_each_reason_of_none_some_or_all_pods_is_named_and_ends_the_wait_where_it_stays() -> None:
    found: list[str] = []
    for name, case in CASES.items():
        for kind in case.kinds:
            for hit in (0, 1, WANTED):
                for age in (SOON, 90.0, PATIENCE + 60):
                    found += problems(name, case, kind, hit, age)
    assert not found, "\n".join(found)


def elastic(enough: int, pods: list[Json], events: list[Json]) -> JobState:
    spec = {"elasticPolicy": {"minReplicas": enough}, "pytorchReplicaSpecs": {"Worker": {"replicas": WANTED}}}
    raw = job("pytorchjob", spec=spec, **STATUS["pytorchjob"])
    return judge_job(seen("pytorchjob", raw, pods, events=events))


def test_an_elastic_job_trains_with_fewer_pods_and_says_why_the_others_are_missing() -> None:
    pods, events = CASES["policy"].show("pytorchjob", 2, 90.0)
    state = elastic(1, pods, events)
    assert (state.state, state.pods.wanted, state.pods.running) == (State.RUNNING, WANTED, 1)
    assert state.reason.startswith("1 of 3 pods run, and 2 do not exist; ") and "PodSecurity" in state.reason
    assert state.waiting is not None and state.waiting.failure_class == "configuration"
    assert elastic(2, pods, events).ended
    full = elastic(1, [trains(rank, "pytorchjob", 90.0) for rank in range(WANTED)], [])
    assert (full.state, full.reason) == (State.RUNNING, "Running is True.")


def test_the_container_that_trains_names_the_cause_whatever_a_sidecar_did_before() -> None:
    for kind in OWN:
        raw = job(kind, nodes=1, conditions=[condition("Failed")])
        dead = trains(0, kind, 60, state=terminated(1), beside=terminated(137, at=NOW - 30))
        dead["status"]["phase"] = "Failed"
        state = judge_job(seen(kind, raw, [dead]))
        assert state.failure is not None
        assert state.failure.exit_code == 1 and CONTAINERS[kind] in state.failure.evidence[0], state
        dead = trains(0, kind, 60, state=terminated(0), beside=terminated(3))
        dead["status"]["phase"] = "Failed"
        alone = judge_job(seen(kind, raw, [dead]))
        assert alone.failure is not None and "a-proxy" in alone.failure.evidence[0]


def test_a_sidecar_that_outlives_the_last_program_is_named_as_what_keeps_the_job() -> None:
    for kind in OWN:
        raw = job(kind, nodes=2, **STATUS[kind])
        over = [trains(r, kind, 90, state=terminated(0, at=NOW - 90), beside=RUNS) for r in range(2)]
        some = judge_job(seen(kind, raw, [over[0], trains(1, kind, 90, beside=RUNS)]))
        assert (some.state, some.ended) == (State.RUNNING, False) and "a-proxy" in some.reason
        state = judge_job(seen(kind, raw, over))
        assert state.failure is not None and state.holds_resources
        assert "a-proxy keeps the pod" in state.failure.evidence[0] and "delete" in state.failure.fix


def test_a_native_sidecar_that_is_being_stopped_hides_neither_the_end_nor_that_the_pod_lives() -> None:
    """The kubelet stops it within the grace period; until then the pod is Running for the operator."""
    for kind, code in itertools.product(OWN, (0, 3)):
        raw = trains(0, kind, 60, state=terminated(code, at=NOW - 40))
        raw["spec"]["initContainers"] = [{"name": "mesh-proxy", "restartPolicy": "Always"}]
        raw["status"]["initContainerStatuses"] = [{"name": "mesh-proxy", "ready": True, "state": RUNS}]
        state = judge_job(seen(kind, job(kind, nodes=1, **STATUS[kind]), [raw]))
        assert not state.ended
        words = f"ended with exit code {code}, and the sidecar mesh-proxy has not stopped yet"
        assert words in state.reason, (kind, code, state.reason)


BACK_OFF = waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container=fetch pod=job-0_default(u)")
CRASHED = "restarting failed container=fetch pod=job-0_default(u), which ended with exit code 1"
INITS: dict[str, tuple[Json, str, float | None]] = {
    "runs": ({"state": RUNS}, "0 of 1 pods run; job-0: its init container fetch runs", None),
    "sidecar that starts": (
        {"state": RUNS, "restartPolicy": "Always", "started": False},
        *("0 of 1 pods run; job-0: its sidecar fetch has not started yet", None),
    ),
    "crashes": ({"state": BACK_OFF, "lastState": terminated(1), "restartCount": 6}, CRASHED, PATIENCE),
    "has failed": (
        {"state": terminated(1)},
        "0 of 1 pods run; job-0: container fetch ended with exit code 1",
        None,
    ),
}
"""The status of an init container, the reason of the job, and the seconds after which waiting is of no use."""


def test_an_init_container_is_named_as_what_the_pod_waits_for() -> None:
    for (name, (status, words, ends)), kind, age in itertools.product(INITS.items(), OWN, (90, 1000)):
        raw = trains(0, kind, age, state=waiting("PodInitializing"))
        raw["spec"]["initContainers"] = [{"name": "fetch", "restartPolicy": status.get("restartPolicy", "")}]
        raw["status"]["initContainerStatuses"] = [{"name": "fetch", **status}]
        raw["status"]["phase"] = "Failed" if name == "has failed" else "Pending"
        state = judge_job(seen(kind, job(kind, nodes=1, **STATUS[kind]), [raw]))
        assert words in state.reason, (name, kind, state.reason)
        assert state.ended is (ends is not None and age > ends), (name, kind, age)


def test_pods_that_an_operator_creates_after_the_end_are_reported() -> None:
    over = job("trainjob", nodes=2, conditions=[condition("Failed", at=NOW - 100)])
    old, new = trains(0, "trainjob", 300, state=terminated(1)), trains(1, "trainjob", 20)
    state = judge_job(seen("trainjob", over, [old, new]))
    assert (state.state, state.holds_resources) == (State.FAILED, True)
    assert state.alerts == (
        "its operator created job-1 after the job had ended: they train again until it is cancelled",
    )
    assert judge_job(seen("trainjob", over, [old, trains(1, "trainjob", 300)])).alerts == ()
    assert next_job_command(state.record()).startswith("trainyard job cancel job")


def test_a_pod_that_is_missing_without_a_reason_is_said_to_be_missing() -> None:
    state = judge_job(seen("pytorchjob", job("pytorchjob", nodes=2), [trains(0, "pytorchjob", 90)]))
    assert state.reason == "1 of 2 pods run, and 1 does not exist"


def test_the_lasting_fault_of_a_node_is_retried_on_another_one() -> None:
    lines = "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"
    dead = ended(128, name="job-0", text=lines, node="gpu-7")
    state = judge_job(seen("pytorchjob", job("pytorchjob", conditions=[condition("Failed")]), [dead]))
    assert state.failure is not None
    assert (state.failure.retryable, state.failure.other_node, state.failure.node) == (True, True, "gpu-7")
