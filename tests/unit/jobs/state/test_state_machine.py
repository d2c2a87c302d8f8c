"""The state machine over generated statuses: every kind x each status x each state of its pods.

The expected answer comes from rules on the generated words, never from the code that is tested.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.jobs.state.shapes import (
    NOW,
    condition,
    ended,
    event,
    job,
    moment,
    pod,
    running,
    seen,
    terminated,
    waiting,
    workload,
)

from trainyard.errors import ExitCode
from trainyard.jobs.state.job_state import State
from trainyard.jobs.state.pod_facts import History
from trainyard.jobs.state.pod_troubles import PATIENCE
from trainyard.jobs.state.state_machine import judge_job
from trainyard.watch.failure_classes import FailureClass

Json = dict[str, Any]
SAYS: dict[str, dict[str, Json]] = {
    "pytorchjob": {
        "nothing": {},
        "running": {"conditions": [condition("Created"), condition("Running")]},
        "restarting": {"conditions": [condition("Created"), condition("Restarting")]},
        "succeeded": {
            "conditions": [condition("Created"), condition("Running", "False"), condition("Succeeded")]
        },
        "failed": {"conditions": [condition("Created"), condition("Running", "False"), condition("Failed")]},
        "suspended": {"conditions": [condition("Created"), condition("Suspended")]},
    },
    "hyperpod": {
        "nothing": {},
        "running": {"conditions": [condition("Created"), condition("PodsRunning"), condition("Running")]},
        "succeeded": {"conditions": [condition("Created"), condition("Completed")]},
        "failed": {"conditions": [condition("Created"), condition("Failed")]},
        "suspended": {"conditions": [condition("Suspended")]},
    },
    "trainjob": {
        "nothing": {},
        "running": {"jobsStatus": [{"name": "node", "active": 1, "ready": 1}]},
        "succeeded": {"conditions": [condition("Suspended", "False"), condition("Complete")]},
        "failed": {"conditions": [condition("Suspended", "False"), condition("Failed", reason="FailedJobs")]},
        "suspended": {"conditions": [condition("Suspended")]},
    },
    "rayjob": {
        "nothing": {},
        "running": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"},
        "restarting": {"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"},
        "succeeded": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"},
        "failed": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"},
        "suspended": {"jobDeploymentStatus": "Suspended"},
    },
    "raycluster": {
        "nothing": {},
        "running": {"state": "ready", "conditions": [condition("HeadPodReady")]},
        "suspended": {"state": "suspended", "conditions": [condition("RayClusterSuspended")]},
    },
}
PODS: dict[str, list[Json]] = {
    "none": [],
    "run": running(),
    "one waits for a node": [pod("job-0"), pod("job-1", "Pending", rank=1, unschedulable="0/4 nodes")],
    "one starts": [pod("job-0"), pod("job-1", "Pending", rank=1, state=waiting("ContainerCreating"))],
    "all wait for a node": [pod(f"job-{n}", "Pending", rank=n, unschedulable="0/4") for n in (0, 1)],
    "one failed": [pod("job-0"), ended(1, name="job-1", rank=1)],
    "one runs after a restart": [pod("job-0"), pod("job-1", rank=1, restarts=2, last=terminated(137))],
    "one loops": [
        pod("job-0"),
        pod("job-1", rank=1, ready=False, restarts=3, state=waiting("CrashLoopBackOff"), last=terminated(1)),
    ],
    "one is not ready": [pod("job-0"), pod("job-1", rank=1, ready=False)],
    "one is silent": [pod("job-0"), pod("job-1", rank=1, silent=True)],
    "one is lost": [pod("job-0"), pod("job-1", rank=1, deleting=True, disruption="DeletionByTaintManager")],
    "ended well": [ended(0, name=f"job-{n}", rank=n) for n in (0, 1)],
}
CASES = [(kind, says, pods) for kind in SAYS for says, pods in itertools.product(SAYS[kind], PODS)]


def expected(kind: str, says: str, pods: str) -> State:
    """The rule: an end or a suspension in the status is final; otherwise the pods show how far the job is."""
    ends = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "suspended": State.QUEUED}
    if says in ends:
        return ends[says]
    if pods in ("run", "one runs after a restart"):
        on_ray = kind in ("rayjob", "raycluster")
        if not on_ray or says == "running":
            return State.RUNNING
    if pods == "ended well" and kind not in ("rayjob", "raycluster"):
        return State.RUNNING
    if says == "restarting" or pods in (
        *("one failed", "one loops", "one is lost", "one is silent"),
        "one runs after a restart",
    ):
        return State.RESTARTING
    if pods in ("none", "one waits for a node", "all wait for a node"):
        return State.PENDING
    return State.STARTING


@each_case(("kind", "says", "pods"), CASES, ids=["-".join(c).replace(" ", "_") for c in CASES])
def test_status_and_pods_together_are_the_state(kind: str, says: str, pods: str) -> None:
    state = judge_job(seen(kind, job(kind, **SAYS[kind][says]), PODS[pods]))
    assert state.state is expected(kind, says, pods)
    assert (state.failure is not None) == (state.state is State.FAILED)
    assert state.reason
    assert (state.exit_code == ExitCode.DONE) == (state.state is State.SUCCEEDED)


@each_case("kind", SAYS)
@each_case("status", ["False", "Unknown", ""])
def test_a_condition_that_does_not_hold_ends_nothing(kind: str, status: str) -> None:
    types = ("Succeeded", "Complete", "Completed", "Failed", "Suspended", "RayClusterSuspended")
    raw = job(kind, **{**SAYS[kind]["running"], "conditions": [condition(t, status) for t in types]})
    assert judge_job(seen(kind, raw, running())).state is State.RUNNING


@pytest.mark.parametrize("kind", ["pytorchjob", "hyperpod"])
def test_a_job_that_says_both_has_not_succeeded(kind: str) -> None:
    ends = [condition("Succeeded"), condition("Completed"), condition("Failed")]
    for order in itertools.permutations(ends):
        assert judge_job(seen(kind, job(kind, conditions=list(order)))).state is State.FAILED


RAY = [
    (deployment, command)
    for deployment in (
        "", "Initializing", "Waiting", "Running", "Complete", "Failed", "ValidationFailed", "Suspending",
        "Suspended", "Retrying",
    )
    for command in ("", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED")
]  # fmt: skip


@each_case(("deployment", "command"), RAY)
def test_only_both_statuses_of_a_rayjob_together_are_success(deployment: str, command: str) -> None:
    raw = job("rayjob", jobDeploymentStatus=deployment, jobStatus=command)
    state = judge_job(seen("rayjob", raw, running())).state
    assert (state is State.SUCCEEDED) == (deployment == "Complete" and command == "SUCCEEDED")
    failed = deployment in ("Failed", "ValidationFailed") or (
        deployment == "Complete" and command in ("STOPPED", "FAILED")
    )
    assert (state is State.FAILED) == failed


def test_a_master_that_succeeds_after_a_worker_died_is_no_success() -> None:
    raw = job("pytorchjob", **SAYS["pytorchjob"]["succeeded"])
    died = [ended(0, name="job-master-0"), ended(1, name="job-worker-0", rank=1, at=1_794_999_900)]
    state = judge_job(seen("pytorchjob", raw, died))
    assert (state.state, state.failure and state.failure.rank) == (State.FAILED, 1)
    crashed = [ended(0, name="job-master-0"), ended(139, name="job-worker-0", rank=1, at=1_795_000_009)]
    assert judge_job(seen("pytorchjob", raw, crashed)).state is State.SUCCEEDED
    taken_down = [ended(0, name="job-master-0"), ended(143, name="job-worker-0", rank=1, deleting=True)]
    assert judge_job(seen("pytorchjob", raw, taken_down)).state is State.SUCCEEDED


def test_a_failure_that_healed_does_not_turn_a_success_red() -> None:
    history = History().with_pods(
        seen("pytorchjob", None, [ended(137, name="job-worker-0", rank=1, at=1.79e9)]).pods
    )
    raw = job("pytorchjob", **SAYS["pytorchjob"]["succeeded"])
    observed = seen("pytorchjob", raw, [ended(0, name="job-master-0"), ended(0, name="job-worker-0", rank=1)])
    state = judge_job(observed, history)
    assert (state.state, state.restarts) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize("kind", SAYS)
def test_a_job_that_was_deleted_is_never_green_and_never_waited_for(kind: str) -> None:
    gone = judge_job(seen(kind, None))
    assert (gone.state, gone.ended, gone.exit_code) == (State.UNKNOWN, True, ExitCode.NO)
    deleted = judge_job(seen(kind, job(kind, **SAYS[kind]["running"]), running(), deleted=True))
    assert deleted.failure is not None
    assert (deleted.state, deleted.failure.failure_class) == (State.FAILED, FailureClass.CANCELLED)
    if "succeeded" in SAYS[kind]:
        ended_before = judge_job(seen(kind, job(kind, **SAYS[kind]["succeeded"]), deleted=True))
        assert ended_before.state is State.SUCCEEDED


@each_case("kind", ["pytorchjob", "trainjob", "rayjob", "raycluster"])
@each_case(
    ("conditions", "words", "failure_class"),
    [
        (
            [condition("QuotaReserved", "False", "Pending", "insufficient unused quota")],
            "insufficient",
            "quota",
        ),
        (
            [condition("QuotaReserved"), condition("Evicted", "False", message="Previously: x")],
            "checks",
            "quota",
        ),
        ([condition("Evicted", reason="Preempted", message="to a higher one")], "higher", "preempted"),
        ([condition("Evicted", reason="PodsReadyTimeout")], "PodsReadyTimeout", "unschedulable"),
        ([], "no reason", "quota"),
    ],
)
def test_a_job_that_kueue_holds_is_queued_and_never_failed(
    kind: str, conditions: list[Json], words: str, failure_class: str
) -> None:
    raw = job(kind, **SAYS[kind]["suspended"])
    state = judge_job(seen(kind, raw, owned=[workload(*conditions)]))
    assert (state.state, state.failure) == (State.QUEUED, None)
    assert words in state.reason
    assert state.waiting is not None
    assert state.waiting.failure_class == failure_class


GAVE_UP = condition(
    "Evicted", reason="Deactivated", message="exceeding the maximum number of re-queuing retries"
)
REFUSED = event("InvalidRayClusterSpec", "headGroupSpec should have at least one container", kind="Warning")
ENDED = "2026-11-20T10:00:00Z"
OUT_OF_MEMORY: Json = {
    "status": {"conditions": [condition("Failed")], "completionTime": ENDED},
    "pods": [ended(137, name="job-1", rank=1, reason="OOMKilled")],
}


@each_case(
    ("kind", "cancelled", "records", "failure_class"),
    [
        ("pytorchjob", "", {"owned": [workload(GAVE_UP, active=False)]}, FailureClass.UNSCHEDULABLE),
        ("raycluster", "", {"status": {}, "events": [REFUSED]}, FailureClass.CONFIGURATION),
        *(
            (kind, "2026-11-20T00:00:00Z", {}, FailureClass.CANCELLED)
            for kind in ("pytorchjob", "trainjob", "rayjob", "raycluster")
        ),
        # One that was cancelled after its failure keeps its cause.
        ("pytorchjob", "2026-11-20T12:00:00Z", OUT_OF_MEMORY, FailureClass.HOST_MEMORY),
        ("pytorchjob", "2026-11-20T09:59:00Z", OUT_OF_MEMORY, FailureClass.CANCELLED),
    ],
)
def test_a_job_that_was_refused_given_up_or_cancelled_has_failed(
    kind: str, cancelled: str, records: Json, failure_class: FailureClass
) -> None:
    records = {"status": SAYS[kind]["suspended"], **records}
    raw = job(kind, **records.pop("status"))
    if cancelled:
        notes = {"trainyard.dev/cancelled": cancelled, "trainyard.dev/retries": "2"}
        raw["metadata"]["annotations"] = notes
    state = judge_job(seen(kind, raw, **records))
    assert state.failure is not None
    assert (state.state, state.failure.failure_class) == (State.FAILED, failure_class)
    assert state.retries == (2 if cancelled else 0)
    if failure_class is FailureClass.CANCELLED:
        assert state.failure.fix == "start it again when you want it"


@pytest.mark.parametrize("kind", ["pytorchjob", "hyperpod", "trainjob"])
def test_a_pod_that_is_made_anew_is_a_restart_until_it_runs(kind: str) -> None:
    raw, history = job(kind, **SAYS[kind]["running"]), History()
    sequence = [
        (running(), State.RUNNING, 0),
        ([running()[0], ended(137, name="job-1", rank=1, uid="dead")], State.RESTARTING, 0),
        ([running()[0]], State.RESTARTING, 0),
        ([running()[0], pod("job-1", "Pending", rank=1, uid="new", node="")], State.RESTARTING, 1),
        ([running()[0], pod("job-1", rank=1, uid="new")], State.RUNNING, 1),
    ]
    first = [pod("job-0", uid="first"), pod("job-1", rank=1, uid="dead")]
    for pods, state, restarts in sequence:
        shown = [first[0] if p["metadata"]["name"] == "job-0" else p for p in pods]
        if state is State.RUNNING and restarts == 0:
            shown = first
        observed = seen(kind, raw, shown)
        found = judge_job(observed, history)
        history = history.with_pods(observed.pods, ran=found.state is State.RUNNING)
        assert (found.state, found.restarts) == (state, restarts)


def test_restarts_that_only_the_status_knows_are_told() -> None:
    sets = {"kind": "JobSet", "status": {"restarts": 2}}
    made = {"kind": "Job", "status": {"failed": 3}, "metadata": {"labels": {}}}
    raw = job("trainjob", **SAYS["trainjob"]["running"])
    assert judge_job(seen("trainjob", raw, running(), owned=[sets, made])).restarts == 5
    assert judge_job(seen("rayjob", job("rayjob", **SAYS["rayjob"]["failed"], failed=3))).restarts == 2


def test_the_pods_of_an_ended_job_that_still_run_are_told() -> None:
    raw = job("pytorchjob", **SAYS["pytorchjob"]["succeeded"])
    still = [ended(0, name="job-0"), pod("job-1", rank=1)]
    assert judge_job(seen("pytorchjob", raw, still)).holds_resources
    assert not judge_job(
        seen("pytorchjob", raw, [ended(0), pod("job-1", rank=1, deleting=True)])
    ).holds_resources
    assert not judge_job(
        seen("pytorchjob", job("pytorchjob", **SAYS["pytorchjob"]["running"]), still)
    ).holds_resources


@pytest.mark.parametrize("order", [1, -1])
def test_a_dead_pod_that_a_job_replaced_under_another_name_is_no_reason_for_red(order: int) -> None:
    """A Job keeps its failed pods, and lists are sorted by their random names."""
    dead = ended(1, name="job-b", rank=1, at=1_794_999_000, age=900)
    pods = [dead, ended(0, name="job-a", rank=1, age=300), ended(0, name="job-0", rank=0, age=900)][::order]
    state = judge_job(seen("trainjob", job("trainjob", **SAYS["trainjob"]["succeeded"]), pods))
    assert (state.state, state.restarts) == (State.SUCCEEDED, 1)
    failed = judge_job(
        seen("trainjob", job("trainjob", **SAYS["trainjob"]["failed"]), [*pods, ended(3, rank=2)])
    )
    assert failed.failure is not None
    assert failed.failure.exit_code == 3


RESTARTING_SET = {"kind": "JobSet", "status": {"conditions": [condition("RestartingJobSet")]}}
OF_RAY = {kind: {"ray.io/node-type": kind} for kind in ("head", "worker")}
SUBMITTER = {"batch.kubernetes.io/job-name": "job"}
PREPARES = {"jobset.sigs.k8s.io/replicatedjob-name": "dataset-initializer"}
ODD: dict[str, tuple[str, str, list[Json], State, int]] = {
    "a jobset that restarts": ("trainjob", "nothing", [], State.RESTARTING, 0),
    "two of four wanted pods": ("pytorchjob", "running", running(2), State.STARTING, 2),
    "an order is not known": (
        "hyperpod",
        "succeeded",
        [ended(0, name="a", rank=None), ended(137, name="b", rank=None, at=1_794_999_000)],
        State.SUCCEEDED,
        2,
    ),
    "workers are taken down after their master": (
        "pytorchjob",
        "running",
        [ended(0, name="job-master-0"), pod("job-worker-0", rank=1, deleting=True)],
        State.RUNNING,
        2,
    ),
    "pods that submit to ray": (
        "rayjob",
        "running",
        [
            *(pod(f"job-{kind}", rank=None, labels=labels) for kind, labels in OF_RAY.items()),
            *(ended(1, name=f"job-{n}", rank=None, labels=SUBMITTER) for n in range(2)),
            pod("job-2", "Pending", rank=None, labels=SUBMITTER),
        ],
        State.RUNNING,
        2,
    ),
    "a pod that prepared data": (
        "trainjob",
        "running",
        [*running(), ended(0, name="job-data", rank=0, labels=PREPARES)],
        State.RUNNING,
        2,
    ),
}


@each_case("name", ODD)
def test_pods_that_are_no_process_of_the_job_or_are_taken_down_are_no_restart(name: str) -> None:
    kind, says, pods, expected_state, present = ODD[name]
    raw = job(kind, nodes=4 if "four" in name else 2, **SAYS[kind][says])
    owned = [RESTARTING_SET] if "jobset" in name else []
    state = judge_job(seen(kind, raw, pods, owned=owned), History(ran="taken down" in name))
    assert (state.state, state.restarts, state.pods.present) == (expected_state, 0, present)
    assert ("Its pods are ending" in state.reason) is ("taken down" in name)


HEADS: dict[str, Callable[[float], Json]] = {
    "replaced": lambda age: pod("job-head", rank=None, age=age, labels={"ray.io/node-type": "head"}),
    "restarted in place": lambda age: pod(
        "job-head",
        rank=None,
        age=age + 90_000,
        restarts=1,
        last=terminated(137, "OOMKilled", at=NOW - age),
        labels={"ray.io/node-type": "head"},
    ),
}


@each_case("head", HEADS)
@each_case("age", [10, 600, 890, 910, 7 * 86400])
@each_case("before", [None, -30, 0, 30, 120, 80_000])
def test_a_command_whose_head_was_lost_does_not_run(head: str, age: float, before: float | None) -> None:
    """`before`: seconds from the command's start, as KubeRay last read it, to the start of this head."""
    raw = job("rayjob", **SAYS["rayjob"]["running"])
    if before is not None:
        raw["status"]["rayJobInfo"] = {"startTime": moment(NOW - age - before)}
    worker = pod("job-worker", rank=None, labels={"ray.io/node-type": "worker"})
    state = judge_job(seen("rayjob", raw, [HEADS[head](age), worker]))
    if before is None or before <= 60:
        assert state.state is State.RUNNING
        return
    assert state.state is (State.RESTARTING if age < PATIENCE else State.FAILED)
    assert "job-head is a new head" in state.reason
    if state.failure is not None:
        assert (state.failure.failure_class, state.failure.retryable) == (FailureClass.NODE_LOST, True)
