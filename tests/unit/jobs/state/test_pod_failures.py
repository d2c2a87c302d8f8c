"""The cause of a failure: each status, exit code and event x each kind; which of several pods comes first."""

import itertools
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
)

from trainyard.errors import ExitCode
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.state.job_state import JobFailure, State
from trainyard.jobs.state.pod_facts import History, pod_facts
from trainyard.jobs.state.pod_failures import explain_lines, first_failure
from trainyard.jobs.state.pod_troubles import PATIENCE
from trainyard.jobs.state.reading import time_of
from trainyard.jobs.state.state_machine import judge_job
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.retry_decision import RetryRecord, Stop, decide_retry

Json = dict[str, Any]
KINDS = ("pytorchjob", "hyperpod", "trainjob")
FAILED: Json = {"conditions": [condition("Created"), condition("Failed", message="the operator says so")]}
LOW = "The node was low on resource: {}. Threshold quantity: 104857600, available: 96Mi."
EMPTY_DIR = 'Usage of EmptyDir volume "x" exceeds the limit "1Gi".'
UNPROVEN = "12:00:00 INFO  proof: The run is not proven: network (tcp, and EFA was asked for) [failed]"


def gone(reason: str = "", message: str = "") -> Json:
    """A pod that failed as a whole: no container of it says why."""
    return pod(phase="Failed", reason=reason, message=message)


PODS: dict[str, tuple[Json, str, int | None]] = {
    "exit 1": (ended(1), "unknown", 1),
    "exit 2": (ended(2), "configuration", 2),
    "exit 5": (ended(5), "hang", 5),
    "exit 6": (ended(6), "unknown", 6),
    "exit 75": (ended(75), "preempted", 75),
    "exit 126": (ended(126), "configuration", 126),
    "exit 127": (ended(127), "configuration", 127),
    "exit 128": (ended(128, reason="StartError", text="exec: no such file"), "configuration", 128),
    "exit 130": (ended(130), "cancelled", 130),
    "exit 134": (ended(134), "unknown", 134),
    "exit 135": (ended(135), "data-loader", 135),
    "exit 137": (ended(137), "unknown", 137),
    "exit 139": (ended(139), "unknown", 139),
    "exit 143": (ended(143), "preempted", 143),
    "exit 255": (ended(255), "unknown", 255),
    "OOMKilled": (ended(137, reason="OOMKilled"), "oom-host", 137),
    "OOMKilled with 1": (ended(1, reason="OOMKilled"), "oom-host", 1),
    "unknown to its node": (ended(137, reason="ContainerStatusUnknown"), "node-lost", None),
    "evicted for disk": (gone("Evicted", LOW.format("ephemeral-storage")), "disk-full", None),
    "evicted for an emptyDir": (gone("Evicted", EMPTY_DIR), "disk-full", None),
    "evicted for memory": (gone("Evicted", LOW.format("memory")), "oom-host", None),
    "evicted for something": (gone("Evicted", LOW.format("pids")), "node-lost", None),
    "started after it was evicted": (
        ended(137, reason="ContainerStatusUnknown", disruption="TerminationByKubelet"),
        "node-lost",
        None,
    ),
    "preempted": (ended(137, disruption="PreemptionByScheduler", deleting=True), "preempted", 137),
    "taint": (ended(137, disruption="DeletionByTaintManager", deleting=True), "node-lost", 137),
    "pod collector": (pod(phase="Failed", disruption="DeletionByPodGC"), "node-lost", None),
    "drained": (ended(143, disruption="EvictionByEvictionAPI", deleting=True), "preempted", 143),
    "node shut down": (gone("NodeShutdown", "imminent node shutdown"), "node-lost", None),
    "device fault": (gone("UnexpectedAdmissionError", "no devices"), "hardware", None),
    "no room after all": (gone("OutOfnvidia.com/gpu", "x"), "unschedulable", None),
    "pod deadline": (gone("DeadlineExceeded"), "time-limit", None),
    "no word": (gone(), "unknown", None),
}


def failure_of(kind: str, pods: list[Json], history: History | None = None, **more: Any) -> JobFailure:
    state = judge_job(seen(kind, job(kind, nodes=4, **FAILED), pods, **more), history)
    assert state.state is State.FAILED
    assert state.failure is not None
    return state.failure


@each_case("kind", KINDS)
@each_case("name", PODS)
def test_a_pod_that_failed_gives_the_class_the_code_and_the_rank(kind: str, name: str) -> None:
    raw, failure_class, code = PODS[name]
    raw = {
        **raw,
        "metadata": {**raw["metadata"], "labels": {"batch.kubernetes.io/job-completion-index": "3"}},
    }
    failure = failure_of(kind, [*running(3), raw])
    assert (failure.failure_class, failure.exit_code, failure.rank) == (failure_class, code, 3)
    assert raw["metadata"]["name"] in failure.evidence[0]
    assert "the operator says so" in failure.evidence[-1]


RAY_FAILED: Json = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed"}


@pytest.mark.parametrize("kind", [*KINDS, "rayjob"])
def test_a_run_that_is_not_proven_is_an_end_with_its_reason(kind: str) -> None:
    if kind == "rayjob":
        said = (
            f"Job entrypoint command failed with exit code 6, last available logs:\n(Node pid=7) {UNPROVEN}"
        )
        observed = seen(kind, job(kind, **RAY_FAILED, message=said))
    else:
        observed = seen(kind, job(kind, nodes=1, **FAILED), [ended(6, text=f"a line\n{UNPROVEN}")])
    state = judge_job(observed)
    assert (state.state, state.exit_code) == (State.FAILED, ExitCode.NO)
    assert "not proven: network (tcp, and EFA was asked for)" in state.reason
    failure = state.failure
    assert failure is not None
    assert (failure.failure_class, failure.exit_code) == (FailureClass.NOT_PROVEN, 6)
    assert failure.retryable is False
    assert "docs/runbooks/recovery.md" in failure.fix
    decided = decide_retry(state, RetryRecord(5), step=100, jitter=0.5)
    assert decided == Stop("no retry recovers from not-proven")


TOGETHER: dict[str, tuple[Json | None, int, ExitCode]] = {
    "none": (None, 75, ExitCode.STOPPED),
    "stopped, too": (ended(75, name="other", rank=1, at=NOW - 5), 75, ExitCode.STOPPED),
    "was done": (ended(0, name="other", rank=1, at=NOW - 5), 75, ExitCode.STOPPED),
    "taken down": (ended(137, name="other", rank=1, at=NOW - 5, deleting=True), 75, ExitCode.STOPPED),
    "failed": (ended(1, name="other", rank=1, at=NOW - 5), 1, ExitCode.NO),
    "was killed": (ended(137, name="other", rank=1, at=NOW - 5), 137, ExitCode.NO),
}


@pytest.mark.parametrize("other", TOGETHER)
def test_one_pod_alone_cannot_say_that_a_job_stopped_with_a_good_checkpoint(other: str) -> None:
    second, code, exit_code = TOGETHER[other]
    pods = [ended(75, name="stopped", rank=0, at=NOW - 10), *([second] if second else [])]
    state = judge_job(seen("pytorchjob", job("pytorchjob", **FAILED), pods))
    assert state.failure is not None
    assert (state.failure.exit_code, state.exit_code) == (code, exit_code)


def test_a_kill_on_a_node_without_memory_is_no_riddle() -> None:
    starved = event("SystemOOM", "victim process: python", involved={"kind": "Node", "name": "gpu-0"})
    assert failure_of("pytorchjob", [ended(137)], events=[starved]).failure_class == "oom-host"
    elsewhere = event("SystemOOM", "victim", involved={"kind": "Node", "name": "gpu-9"})
    assert failure_of("pytorchjob", [ended(137)], events=[elsewhere]).failure_class == "unknown"


FIRST = ended(1, name="first", rank=2, at=NOW - 10)
LATER: dict[str, Json] = {
    "killed later": ended(137, name="later", rank=0, at=NOW - 5),
    "taken down before": ended(143, name="later", rank=0, at=NOW - 20, deleting=True),
    "in the same second, a higher rank": ended(1, name="later", rank=3, at=NOW - 10),
    "restarted in place before": pod(
        "later", rank=0, restarts=1, last=terminated(137, at=NOW - 60), state={"running": {}}
    ),
    "without a time": ended(137, name="later", rank=0, reason="ContainerStatusUnknown"),
    "well": ended(0, name="later", rank=0, at=NOW - 30),
}


@each_case("later", LATER)
@each_case("order", [1, -1])
def test_the_first_that_failed_is_the_cause(later: str, order: int) -> None:
    pods = [FIRST, LATER[later]][::order]
    failure = failure_of("trainjob", pods)
    assert (failure.pod, failure.rank, failure.exit_code) == ("first", 2, 1)


LOST = "Rank 0 lost another process of this run, which died or hung (Connection closed by peer)."
KILLED = "Rank 1 (pid 11) was killed by SIGKILL."


def test_a_pod_that_only_lost_another_one_is_no_cause() -> None:
    alone = ended(1, name="first", rank=0, at=NOW - 9, text=LOST)
    failure = failure_of("pytorchjob", [alone])
    assert (failure.failure_class, failure.lost_another) == ("unknown", True)
    other = ended(1, name="other", rank=1, at=NOW, reason="OOMKilled", deleting=True)
    failure = failure_of("pytorchjob", [alone, other])
    assert (failure.failure_class, failure.pod, failure.lost_another) == ("oom-host", "other", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LOST}\n{KILLED}", "unknown"),
        (KILLED, "unknown"),
        (KILLED.replace("SIGKILL", "SIGSEGV"), "unknown"),
        (f"KeyError: 'labels'\n{LOST}", "unknown"),
        (f"Step 5: the loss is not finite (nan)\n{LOST}", "nan"),
        ("", "unknown"),
    ],
)
def test_a_process_that_was_killed_is_no_error_of_the_program(text: str, expected: str) -> None:
    failure = failure_of("pytorchjob", [ended(1, text=text)])
    assert failure.failure_class == expected
    assert failure.lost_another is (text.startswith("KeyError"))


def test_a_worker_that_waited_for_the_first_pod_tells_no_error_of_the_program() -> None:
    raw = ended(1, name="worker", rank=1)
    statuses = raw["status"].pop("containerStatuses")
    raw["status"]["initContainerStatuses"] = [{**statuses[0], "name": "init-pytorch"}]
    failure = failure_of("pytorchjob", [raw])
    assert (failure.failure_class, failure.lost_another) == ("rendezvous-timeout", True)


def test_within_one_second_the_better_evidence_comes_first() -> None:
    vague = ended(1, name="vague", rank=0, at=NOW)
    clear = ended(137, name="clear", rank=3, at=NOW, reason="OOMKilled")
    for pods in itertools.permutations([vague, clear]):
        assert failure_of("trainjob", list(pods)).pod == "clear"


def test_a_dead_pod_that_the_operator_replaced_is_no_cause_while_there_is_another() -> None:
    dead = seen("trainjob", None, [ended(137, name="old", rank=1, uid="old", at=NOW - 500)])
    history = History().with_pods(dead.pods)
    failure = failure_of("trainjob", [pod("new", rank=1), ended(1, name="cause", rank=2)], history)
    assert (failure.pod, failure.exit_code) == ("cause", 1)


def test_a_dead_pod_that_is_gone_is_the_cause_where_there_is_no_other() -> None:
    dead = seen(
        "trainjob", None, [ended(139, name="gone", rank=1, text="Fatal Python error\nSegmentation fault")]
    )
    failure = failure_of("trainjob", [], History().with_pods(dead.pods))
    assert (failure.pod, failure.rank, failure.exit_code) == ("gone", 1, 139)
    assert failure.lines == ("Fatal Python error", "Segmentation fault")


def test_a_pod_that_loses_its_end_when_it_is_deleted_keeps_it_here() -> None:
    first = seen("trainjob", None, [ended(139, name="x", rank=1, uid="u")]).pods
    stripped = seen("trainjob", None, [pod("x", "Failed", rank=1, uid="u", deleting=True)]).pods
    failure = failure_of("trainjob", [], History().with_pods(first).with_pods(stripped))
    assert failure.exit_code == 139


TORCHRUN = """\
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_21:46:02
  rank      : 9 (local_rank: 1)
  exitcode  : -15 (pid: 411)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_21:46:01
  host      : job-worker-0
  rank      : 11 (local_rank: 3)
  exitcode  : -9 (pid: 413)
  error_file: <N/A>
============================================================"""


def test_torchrun_names_the_process_within_the_pod() -> None:
    failure = failure_of("pytorchjob", [ended(1, text=TORCHRUN, rank=1)])
    assert (failure.rank, failure.exit_code) == (11, 137)
    assert any("rank 11" in each for each in failure.evidence)
    assert first_failure(["no report"]) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom-gpu"),
        ("number of nan iterations: 0", None),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("Step 5: the loss is not finite in epoch 1, batch 5.", "nan"),
        ("", None),
    ],
)
def test_lines_give_a_class_only_where_they_are_certain(line: str, expected: str | None) -> None:
    found = explain_lines(["epoch 1", line, "bye"], 1)
    assert (found.klass if found else None) == (FailureClass(expected) if expected else None)
    failure = failure_of("trainjob", [ended(1, text=f"epoch 1\n{line}\nbye")])
    assert failure.failure_class == (expected or "unknown")
    killed = failure_of("trainjob", [ended(137, reason="OOMKilled", text=f"epoch 1\n{line}")])
    assert killed.failure_class == "oom-host"


RAY_FAILURES = [
    ("FAILED", "AppFailed", "Job failed with exit code 3", "unknown", 3),
    ("FAILED", "AppFailed", "torch.OutOfMemoryError: CUDA out of memory.", "oom-gpu", None),
    ("RUNNING", "DeadlineExceeded", "", "time-limit", None),
    ("STOPPED", "AppFailed", "", "cancelled", None),
    ("", "AppFailed", "Ray job not found", "unknown", None),
    ("FAILED", "AppFailed", "a killed head", "oom-host", 137),
]


@pytest.mark.parametrize(("status", "reason", "message", "failure_class", "code"), RAY_FAILURES)
def test_a_rayjob_says_itself_why_its_command_failed(
    status: str, reason: str, message: str, failure_class: str, code: int | None
) -> None:
    pods = [*running(), ended(1, name="job-submitter", rank=None)]
    if message == "a killed head":
        pods = [ended(137, name="head", reason="OOMKilled", rank=0)]
    raw = job("rayjob", **RAY_FAILED | {"jobStatus": status, "reason": reason, "message": message})
    failure = judge_job(seen("rayjob", raw, pods)).failure
    assert failure is not None
    assert (failure.failure_class, failure.exit_code) == (failure_class, code)


PULLS = [
    ("ErrImagePull", 'failed to resolve reference "x:1": not found', 5, False, "image-pull"),
    ("ImagePullBackOff", 'Back-off pulling image "x:1": ErrImagePull: not found', 5, True, "image-pull"),
    ("ImagePullBackOff", "Back-off: 403 Forbidden", 5, True, "image-pull"),
    (
        "ImagePullBackOff",
        "Back-off: unexpected status 503 Service Unavailable: not found",
        5,
        False,
        "image-pull",
    ),
    ("ImagePullBackOff", 'Back-off pulling image "x:1"', 5, False, "image-pull"),
    ("ImagePullBackOff", 'Back-off pulling image "x:1"', PATIENCE + 60, True, "image-pull"),
    ("ErrImagePull", "write /var/lib/x: no space left on device", PATIENCE + 60, True, "disk-full"),
    ("InvalidImageName", "couldn't parse image", 1, True, "image-pull"),
    ("ErrImageNeverPull", "not present", 1, True, "image-pull"),
    ("CreateContainerConfigError", 'secret "hf" not found', 5, False, "configuration"),
    ("CreateContainerConfigError", 'secret "hf" not found', 120, True, "configuration"),
    ("CreateContainerError", "context deadline exceeded", 120, False, "configuration"),
    ("CrashLoopBackOff", "back-off 5m0s", 9999, False, "unknown"),
    ("ContainerCreating", "", 9999, False, None),
    ("PodInitializing", "", 9999, False, None),
]


@each_case(("reason", "message", "age", "hopeless", "failure_class"), PULLS)
@each_case("kind", KINDS)
def test_what_can_heal_is_waited_for_and_what_cannot_is_not(
    kind: str, reason: str, message: str, age: float, hopeless: bool, failure_class: str | None
) -> None:
    stuck = pod("job-1", "Pending", rank=1, state=waiting(reason, message), age=age)
    state = judge_job(seen(kind, job(kind), [pod("job-0"), stuck]))
    if hopeless:
        assert state.failure is not None
        assert (state.state, state.failure.failure_class) == (State.FAILED, failure_class)
        assert (state.failure.rank, state.holds_resources) == (1, True)
        return
    assert (state.state, state.failure) == (State.STARTING, None)
    assert (state.waiting.failure_class if state.waiting else None) == failure_class
    assert message in state.reason


TRIES = ("BackOff", 'Back-off pulling image "x"')
FAILED_PULL = ("Failed", 'Failed to pull image "x": not found')
NO_SECRET = (
    "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed."
)
SECRET_FIX = "create the pull secret regcred in the namespace, or correct imagePullSecrets"


@pytest.mark.parametrize(
    ("reason", "message", "events", "fix"),
    [
        # Before Kubernetes 1.32 only an event says why a pull is tried again.
        ("ImagePullBackOff", 'Back-off pulling image "x"', [FAILED_PULL], "push it"),
        # What failed before stays hopeless while it is tried again.
        ("ErrImagePull", "a/x:1: not found", [TRIES], "push it"),
        ("ErrImagePull", "a/x:1: not found", [], None),
        # Kubernetes tries the pull without the secret; the words are those of release 1.34.
        ("ImagePullBackOff", "x: unauthorized", [("FailedToRetrieveImagePullSecret", NO_SECRET)], SECRET_FIX),
    ],
)
def test_the_events_of_a_pull_say_why_it_failed(
    reason: str, message: str, events: list[tuple[str, str]], fix: str | None
) -> None:
    stuck = pod("job-1", "Pending", rank=1, uid="u1", state=waiting(reason, message))
    told = [event(*each, involved={"kind": "Pod", "uid": "u1"}) for each in events]
    failure = judge_job(seen("pytorchjob", job("pytorchjob"), [stuck], events=told)).failure
    assert (failure is None) is (fix is None)
    assert failure is None or str(fix) in failure.fix


NO_PROGRAM = 'exec: "python": executable file not found in $PATH'
NOT_ALLOWED = 'exec: "/root/.venv/bin/python": permission denied'
"""A Python below /root, as uv and conda install it, is there, and only root may enter the folder."""


@pytest.mark.parametrize(
    ("cause", "starts", "age", "state", "fix"),
    [
        (NO_PROGRAM, 1, 9, "Starting", "cluster.pod.python"),
        (NO_PROGRAM, 3, 9, "Failed", "cluster.pod.python"),
        (NO_PROGRAM, 3, -9, "Starting", None),
        (NOT_ALLOWED, 1, 9, "Starting", "cluster.pod.run_as_user"),
    ],
)
def test_a_pod_whose_program_cannot_be_executed_is_not_made_anew_for_ever(
    cause: str, starts: int, age: float, state: str, fix: str | None
) -> None:
    """The operator deletes the failed pod at once; its events remain. Older ones are another job's."""
    why = f"Error: runc create failed: error during container init: {cause}"
    events = [
        event("Failed", why, kind="Warning", involved={"kind": "Pod", "name": "job-0", "uid": f"old-{n}"})
        for n in range(starts)
    ]
    raw = job("pytorchjob", conditions=[condition("Created")])
    raw["metadata"]["creationTimestamp"] = moment(NOW - age)
    pods = [pod("job-0", "Pending", uid="new"), pod("job-1", "Pending", rank=1)]
    found = judge_job(seen("pytorchjob", raw, pods, events=events))
    assert found.state == state
    if fix is not None:
        assert found.reason == f"job-0 cannot start: {cause}"
        told = found.failure or found.waiting
        assert told is not None
        assert [each for each in ("cluster.pod.python", "cluster.pod.run_as_user") if each in told.fix] == [
            fix
        ]


@each_case(
    ("text", "seconds"),
    [
        ("2026-11-20T21:58:54Z", 1795211934.0),
        ("2026-11-20T21:58:54.123456Z", 1795211934.123456),
        ("0001-01-01T00:00:00Z", None),
        ("1970-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
        (17, None),
        ("yesterday", None),
    ],
)
def test_times_that_are_none_are_not_believed(text: object, seconds: float | None) -> None:
    assert time_of(text) == seconds


def replica(kind: str, index: str) -> dict[str, str]:
    of = "training.kubeflow.org/replica"
    return {f"{of}-type": kind, f"{of}-index": index}


RANKS = [
    (replica("master", "0"), "job-master-0", 0),
    (replica("worker", "2"), "job-master-0", 3),
    (replica("worker", "2"), "job-worker-0", 2),
    ({"batch.kubernetes.io/job-completion-index": "7"}, "", 7),
    ({"ray.io/node-type": "head"}, "", 0),
    ({"ray.io/node-type": "worker"}, "", None),
    ({"training.kubeflow.org/replica-index": "x"}, "", None),
]


@pytest.mark.parametrize(("labels", "address", "rank"), RANKS)
def test_the_rank_of_a_pod_is_in_its_labels(labels: dict[str, str], address: str, rank: int | None) -> None:
    raw = pod(rank=None, labels=labels)
    if address:
        raw["spec"]["containers"] = [{"env": [{"name": "MASTER_ADDR", "value": address}]}]
    kind = "rayjob" if "ray.io/node-type" in labels else "pytorchjob"
    assert pod_facts(raw, find_kind(kind)).rank == rank


@pytest.mark.parametrize(
    "raw", [{}, {"metadata": None, "spec": None, "status": None}, {"status": {"conditions": None}}]
)
def test_a_pod_of_any_shape_is_read(raw: Json) -> None:
    assert pod_facts(raw, find_kind("pytorchjob")).phase == "Pending"


def test_a_pull_after_a_restart_in_place_is_given_its_own_time() -> None:
    """The pod was scheduled days ago; its image is pulled again because its container was restarted."""
    again = pod(
        "job-1",
        rank=1,
        ready=False,
        restarts=1,
        age=9 * PATIENCE,
        state=waiting("ImagePullBackOff", "Back-off: 503 Service Unavailable"),
        last=terminated(137, at=NOW - 20),
    )
    state = judge_job(seen("pytorchjob", job("pytorchjob"), [pod("job-0"), again]))
    assert (state.state, state.failure) == (State.RESTARTING, None)


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Never", 0, "Succeeded"),
        ("OnFailure", 0, "Succeeded"),
        ("Always", 0, "Running"),
        ("Never", 1, "Failed"),
        ("OnFailure", 1, "Running"),
    ],
)
def test_a_pod_ends_with_its_container_before_its_kubelet(policy: str, code: int, expected: str) -> None:
    raw = ended(code)
    raw["spec"]["restartPolicy"], raw["status"]["phase"] = policy, "Running"
    assert pod_facts(raw, find_kind("pytorchjob")).phase == expected


def test_a_node_that_had_too_little_is_avoided_and_a_limit_of_the_pod_is_not() -> None:
    for name, is_of_node in (
        ("evicted for disk", True),
        ("evicted for memory", True),
        ("no room after all", True),
        ("evicted for an emptyDir", False),
        ("OOMKilled", False),
    ):
        failure = failure_of("trainjob", [PODS[name][0]])
        assert (failure.retryable, failure.other_node) == (is_of_node, is_of_node), name
