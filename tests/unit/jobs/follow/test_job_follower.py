"""Following a job and saving its logs over a scripted API server: the cost, and what is missing."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import CUT_BEFORE, MemoryCluster, PodLog
from tests.unit.gateways.kubernetes.scripted import Answer, Script, serving
from tests.unit.jobs.state.shapes import condition, ended, job, pod, running, terminated, waiting

from trainyard import errors
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow import job_view
from trainyard.jobs.follow.job_view import follow_job
from trainyard.jobs.follow.pod_logs import ContainerLog, container_logs, read_log, save_logs
from trainyard.jobs.state.job_state import JobState, State
from trainyard.watch.failure_classes import FailureClass

Json = dict[str, Any]
QUIET = Answer(silent=60.0)


def list_of(*objects: Json, version: str = "10") -> Answer:
    return Answer(body={"metadata": {"resourceVersion": version}, "items": list(objects)})


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_view, "_SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(job_view, "_LAST_SECONDS", 0.5)


class TwoPaths(Script):
    """A script for the job and one for its pods; nothing else exists."""

    def __init__(self, jobs: Script, pods: Script) -> None:
        super().__init__([])
        self.jobs, self.pods = jobs, pods

    def of(self, path: str) -> Script:
        if "/pytorchjobs" in path:
            return self.jobs
        return self.pods if path.endswith("/pods") else Script([Answer(status=404)])


def says(kind: str) -> Json:
    return job("pytorchjob", conditions=[condition("Created"), condition(kind)])


def change(raw: Json, kind: str = "MODIFIED", version: str = "11") -> Json:
    return {"type": kind, "object": {**raw, "metadata": {**raw["metadata"], "resourceVersion": version}}}


def followed(
    jobs: Script,
    pods: Script,
    seconds: float = 20.0,
    on_state: Callable[[JobState], None] | None = None,
    lost_seconds: float = math.inf,
) -> JobState:
    with serving(TwoPaths(jobs, pods)) as script:
        return follow_job(
            Api(script.access()),
            namespace="team",
            name="job",
            kind="pytorchjob",
            seconds=seconds,
            on_state=on_state or (lambda _: None),
            lost_seconds=lost_seconds,
        )


def test_the_end_is_told_once_and_with_the_pods_that_are_gone() -> None:
    dead = ended(139, name="job-1", rank=1, uid="x", text="last words")
    pods = Script(
        [list_of(*running())],
        [Answer(events=[change(dead, version="11"), change(dead, "DELETED", "12")], silent=60)],
    )
    jobs = Script([list_of(says("Running"))], [Answer(events=[change(says("Failed"))], silent=60.0)])
    told: list[JobState] = []
    state = followed(jobs, pods, on_state=told.append)
    assert state.failure is not None
    assert (state.state, state.failure.exit_code, state.failure.lines) == (State.FAILED, 139, ("last words",))
    assert [s.state for s in told].count(State.FAILED) == 1
    assert told[-1] == state


LOST = "Rank 0 lost another process of this run, which died or hung (Connection closed by peer)."


@pytest.mark.slow
@pytest.mark.parametrize("says_why", [True, False])
def test_the_pod_that_others_lost_is_waited_for(says_why: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_view, "_LAST_SECONDS", 0.1)
    monkeypatch.setattr(job_view, "_OBSERVE_SECONDS", 0.2)
    monkeypatch.setattr(job_view, "_OTHERS_SECONDS", 20.0 if says_why else 1.0)
    master, worker = running()
    alone = ended(1, name="job-0", rank=0, uid=master["metadata"]["uid"], text=LOST)
    cause = ended(1, name="job-1", rank=1, uid=worker["metadata"]["uid"], reason="OOMKilled", deleting=True)
    late = Answer(events=[change(alone), change(cause, version="12")], pause=1.5, silent=60.0)
    pods = Script(
        [list_of(*running()), list_of(alone)],
        [late if says_why else Answer(events=[change(alone)], silent=60.0)],
    )
    jobs = Script([list_of(says("Running"))], [Answer(events=[change(says("Failed"))], silent=60.0)])
    state = followed(jobs, pods)
    assert state.failure is not None
    expected = ("oom-host", "job-1") if says_why else ("unknown", "job-0")
    assert (state.failure.failure_class, state.failure.pod) == expected


def test_a_job_that_is_deleted_after_its_success_has_succeeded() -> None:
    jobs = Script(
        [list_of(says("Running"))], [Answer(events=[change(says("Succeeded"), "DELETED")], silent=60)]
    )
    assert followed(jobs, Script([list_of(*running())], [QUIET])).state is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("is_there_another", [False, True])
def test_a_job_that_is_gone_after_a_gap_is_unknown_whoever_has_its_name(is_there_another: bool) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
    other = says("Succeeded")
    other["metadata"] = {**other["metadata"], "uid": "another"}
    after_gap = list_of(other) if is_there_another else list_of()
    jobs = Script([list_of(says("Running")), after_gap], [Answer(events=[gone]), QUIET])
    state = followed(jobs, Script([list_of(*running())], [QUIET]))
    assert (state.state, state.exit_code) == (State.UNKNOWN, errors.ExitCode.NO)


def test_a_job_that_was_never_there_is_said_to_be_missing() -> None:
    with pytest.raises(errors.ConfigError, match="no PyTorchJob job"):
        followed(Script([list_of()], [QUIET]), Script([list_of()], [QUIET]))


def test_time_that_runs_out_ends_with_the_last_state() -> None:
    state = followed(
        Script([list_of(says("Running"))], [QUIET]), Script([list_of(*running())], [QUIET]), seconds=0.8
    )
    assert (state.state, state.exit_code) == (State.RUNNING, errors.ExitCode.TIMED_OUT)


@pytest.mark.slow
@pytest.mark.parametrize("removed", [False, True])
def test_a_silent_node_is_reported_and_given_up_once_its_pods_are_removed(removed: bool) -> None:
    """Until then the node may answer again, and nothing is lost."""
    first, second = running()
    where = {"name": "job-1", "rank": 1, "node": "gpu-1", "uid": second["metadata"]["uid"], "silent": True}
    more: Json = {"deleting": True, "disruption": "DeletionByTaintManager"} if removed else {}
    pods = Script([list_of(first, second)], [Answer(events=[change(pod(**where, **more))], silent=60.0)])
    told: list[JobState] = []
    started = time.monotonic()
    state = followed(
        Script([list_of(says("Running"))], [QUIET]),
        pods,
        seconds=600.0 if removed else 3.0,
        on_state=told.append,
        lost_seconds=0.2,
    )
    assert time.monotonic() - started < 60 if removed else time.monotonic() - started >= 3
    found = state.failure if removed else state.waiting
    assert found is not None and found.failure_class is FailureClass.NODE_LOST and found.node == "gpu-1"
    assert state.state is (State.FAILED if removed else State.RESTARTING)
    assert told[-1].reason == "job-1: its node gpu-1 does not answer"


def test_a_cluster_that_shows_nothing_is_not_waited_for_longer() -> None:
    away = Script([Answer(status=503)])
    with pytest.raises(errors.WaitTimeoutError, match="showed nothing of job"):
        followed(away, Script([list_of()], [QUIET]), seconds=1.0)


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, errors.PermissionRefusedError), (404, errors.ServiceError), (400, errors.ServiceError)],
)
def test_a_job_that_may_not_be_watched_is_refused(status: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        followed(Script([Answer(status=status)]), Script([list_of()], [QUIET]))


def test_without_the_right_to_see_pods_the_job_is_judged_by_its_status() -> None:
    jobs = Script([list_of(says("Running"))], [Answer(events=[change(says("Failed"))], silent=60.0)])
    state = followed(jobs, Script([Answer(status=403)]))
    assert state.failure is not None
    assert (state.state, state.failure.failure_class) == (State.FAILED, FailureClass.UNKNOWN)


REFUSALS: dict[int, type[errors.ServiceError]] = {
    401: errors.CredentialsRefusedError,
    403: errors.PermissionRefusedError,
    **dict.fromkeys((400, 404, 410), errors.ServiceError),
    **dict.fromkeys((429, 500, CUT_BEFORE), errors.ServiceTroubleError),
}
FIRST = ContainerLog("a", "uid-of-a", "pytorch", 0)


def wrote(*texts: str) -> PodLog:
    return PodLog([*texts])


def test_only_containers_that_have_started_have_logs() -> None:
    pods = [
        pod("runs", uid="u1"),
        pod("ended", "Failed", state=terminated(1), uid="u2"),
        pod("waits", "Pending", state=waiting("ImagePullBackOff"), uid="u3"),
        pod("again", state=waiting("CrashLoopBackOff"), last=terminated(1), restarts=2, uid="u4"),
        pod("nowhere", "Pending", node="", uid="u5"),
    ]
    found = container_logs(pods)
    assert [(log.title, log.running) for log in found] == [
        ("runs/pytorch", True),
        ("ended/pytorch", False),
        ("again/pytorch#1", False),
    ]
    assert [log.pod for log in container_logs(pods, previous=False)] == ["runs", "ended"]


def test_every_life_of_a_container_has_a_key_and_a_file_of_its_own() -> None:
    lives = [
        pod("a", uid=uid, restarts=n, last=terminated(1) if n else None) for uid in "xy" for n in range(3)
    ]
    logs = container_logs(lives)
    names = {(log.uid, log.life, log.file_name) for log in logs}
    assert {(uid, life) for uid, life, _ in names} == {(uid, life) for uid in "xy" for life in range(3)}
    assert len({name for *_, name in names}) == len(names) == 6, (
        "a life is named alike while it runs and after"
    )


def test_init_containers_have_logs_too() -> None:
    raw = pod("a", uid="u")
    raw["status"]["initContainerStatuses"] = [{"name": "agent", "state": terminated(0)}]
    assert [log.container for log in container_logs([raw])] == ["agent", "pytorch"]


def test_the_last_lines_or_all_are_read(cluster: MemoryCluster) -> None:
    cluster.logs["a", "pytorch", False] = wrote("one", "two", "drei ä", "")
    cluster.logs["a", "pytorch", True] = wrote("before")
    api = Api(cluster.access())
    assert read_log(api, "team", FIRST) == ["one", "two", "drei ä", ""]
    assert read_log(api, "team", FIRST, tail=2) == ["drei ä", ""]
    before = ContainerLog("a", "uid-of-a", "pytorch", 0, previous=True)
    assert read_log(api, "team", before) == ["before"]


def test_what_is_saved_is_what_was_written(cluster: MemoryCluster, tmp_path: Path) -> None:
    cluster.logs["a", "pytorch", False] = wrote("now")
    cluster.logs["a", "pytorch", True] = wrote("before", "the restart")
    pods = [pod("a", uid="uid-of-a", restarts=1, last=terminated(1))]
    files, missing = save_logs(Api(cluster.access()), "team", pods, tmp_path / "new" / "logs")
    assert missing == []
    assert {path.name: path.read_text() for path in files} == {
        "a.uid-of-a.pytorch.log": "before\nthe restart\n",
        "a.uid-of-a.pytorch.restart-1.log": "now\n",
    }
    assert len(list((tmp_path / "new" / "logs").iterdir())) == 2


@pytest.mark.parametrize("status", REFUSALS)
def test_one_log_that_cannot_be_saved_is_named_and_the_others_are_saved(
    cluster: MemoryCluster, status: int, tmp_path: Path
) -> None:
    for name in "abc":
        cluster.logs[name, "pytorch", False] = wrote(f"of {name}")
    cluster.fault("GET", "/pods/b/log", status)
    pods = [pod(name, uid=f"u-{name}") for name in "abc"]
    files, missing = save_logs(Api(cluster.access()), "team", pods, tmp_path)
    assert sorted(path.read_text() for path in files) == ["of a\n", "of c\n"]
    assert [text.partition(":")[0] for text in missing] == ["b/pytorch"]
    assert len(missing[0]) > len("b/pytorch: ")
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_a_log_that_breaks_off_leaves_what_was_saved_before(cluster: MemoryCluster, tmp_path: Path) -> None:
    api, pods = Api(cluster.access()), [pod("a", uid="uid-of-a")]
    cluster.logs["a", "pytorch", False] = wrote("one")
    (path,), _ = save_logs(api, "team", pods, tmp_path)
    cluster.logs["a", "pytorch", False] = wrote("one", "two", "three")
    cluster.logs["a", "pytorch", False].cut = 2
    files, missing = save_logs(api, "team", pods, tmp_path)
    assert (files, len(missing)) == ([], 1)
    assert path.read_text() == "one\n"
    assert list(tmp_path.iterdir()) == [path]
    cluster.logs["a", "pytorch", False].cut = None
    save_logs(api, "team", pods, tmp_path)
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_longer_log_that_is_there_stays(cluster: MemoryCluster, tmp_path: Path) -> None:
    """The kubelet rotates logs, so a log that is read later can be shorter."""
    cluster.logs["a", "pytorch", False] = wrote("three")
    path = tmp_path / FIRST.file_name
    path.write_text("one\ntwo\nthree\n")
    save_logs(Api(cluster.access()), "team", [pod("a", uid="uid-of-a")], tmp_path)
    assert path.read_text() == "one\ntwo\nthree\n"
    assert list(tmp_path.iterdir()) == [path]
