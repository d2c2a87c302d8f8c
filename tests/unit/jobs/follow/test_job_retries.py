"""A job is sent again within its budget, by any number of watchers and whatever else happens to it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, memory_cluster
from tests.unit.jobs.state.shapes import condition, ended, our_labels, pod

from trainyard.errors import ConfigError, ServiceError, WaitTimeoutError
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow import job_retries
from trainyard.jobs.follow.job_retries import RetryLoop
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.state.job_state import JobState, State
from trainyard.jobs.state.state_machine import judge_job
from trainyard.watch import retry_decision

Json = dict[str, Any]
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PODS = "/api/v1/namespaces/team/pods"
Ending = Callable[[str], tuple[int, str] | None]
"""Name of a job -> the exit code of its pod and its last line; None where it succeeds."""


def job_body(name: str, budget: int) -> Json:
    template = {
        "metadata": {"labels": our_labels(name)},
        "spec": {"containers": [{"name": "pytorch", "image": "x"}]},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": our_labels(name),
            "annotations": {"trainyard.dev/retries": "0", "trainyard.dev/auto-retry": str(budget)},
        },
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": {}},
    }


def lost_at(name: str) -> tuple[int, str]:
    """A failure that can recover; each job has other words, and so another signature."""
    words = {"llama": "one", "llama-2": "two", "llama-3": "three", "llama-4": "four", "llama-5": "five"}
    return 1, f"ncclRemoteError: A call failed {words[name]}"


class Cluster:
    """The stored objects; each job ends as the test defines as soon as it is followed."""

    def __init__(self, store: MemoryCluster, ending: Ending) -> None:
        self.store, self.ending = store, ending

    def names(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.store.objects if path.startswith(f"{JOBS}/"))

    def notes(self, name: str) -> Json:
        found: Json = self.store.objects[f"{JOBS}/{name}"]["metadata"]["annotations"]
        return found

    def follow(self, api: Api, *, namespace: str, name: str, kind: str, **_: Any) -> JobState:
        raw = self.store.objects[f"{JOBS}/{name}"]
        if "status" not in raw:
            self.end(name)
        look = JobReader(api)
        return judge_job(look.observe(look.find_job(namespace, name, kind)))

    def end(self, name: str) -> None:
        end = self.ending(name)
        kind = "Succeeded" if end is None else "Failed"
        raw = self.store.objects[f"{JOBS}/{name}"]
        self.store.put(f"{JOBS}/{name}", {**raw, "status": {"conditions": [condition(kind)]}})
        if end is not None:
            dead = ended(end[0], name=f"{name}-master-0", text=end[1], labels=our_labels(name))
            dead["metadata"]["namespace"] = "team"
            self.store.put(f"{PODS}/{name}-master-0", dead)


@pytest.fixture
def store() -> Iterator[MemoryCluster]:
    with memory_cluster() as store:
        yield store


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_decision, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(retry_decision, "LONGEST_PAUSE", 0.02)
    for name, seconds in (("_PAUSE", 0.02), ("_LOST_SECONDS", 0.1), ("_NODE_SECONDS", 0.2)):
        monkeypatch.setattr(job_retries, name, seconds)
    monkeypatch.setattr(job_retries, "_GONE_SECONDS", 0.4)
    monkeypatch.setattr(job_retries, "newest_step_on_claim", lambda *_: None)
    start = time.time()

    def fast_clock(_: BaseHTTPRequestHandler, timestamp: float | None = None) -> str:
        """The cluster's clock, which shows full seconds, runs twenty times as fast."""
        return formatdate(start + 20 * (time.time() - start), usegmt=True)

    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", fast_clock)


@pytest.fixture
def cluster(store: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(store, lost_at)
    monkeypatch.setattr(job_retries, "follow_job", made.follow)
    return made


def retry_loop(cluster: Cluster, said: list[str] | None = None) -> RetryLoop:
    return RetryLoop(
        Api(cluster.store.access()),
        lambda phase, text, *_: said.append(text) if said is not None and phase == "retry" else None,
    )


class Retried(NamedTuple):
    state: JobState
    why: str
    """Why the last job was not sent again, as announced."""


def retried(cluster: Cluster, budget: int = 2) -> Retried:
    if not cluster.names():
        cluster.store.put(f"{JOBS}/llama", job_body("llama", budget))
    said: list[str] = []
    state = retry_loop(cluster, said).follow_to_end("team", "llama", "pytorchjob", 30.0)
    begin = f"{state.job}: "
    return Retried(state, next((text.removeprefix(begin) for text in said if text.startswith(begin)), ""))


def test_a_job_is_sent_again_until_it_succeeds(cluster: Cluster) -> None:
    cluster.ending = lambda name: None if name == "llama-3" else lost_at(name)
    found = retried(cluster, budget=5)
    assert (found.state.state, found.state.job, found.why) == (State.SUCCEEDED, "llama-3", "")
    assert cluster.names() == ["llama", "llama-2", "llama-3"]
    assert found.state.retries == 2 and found.state.auto_retry == 5
    assert cluster.notes("llama")["trainyard.dev/followed-by"] == "llama-2"
    assert cluster.notes("llama-3")["trainyard.dev/resubmitted-from"] == "llama-2"
    assert json.loads(cluster.notes("llama-3")["trainyard.dev/retry-record"])["spent"] == 2
    assert "trainyard.dev/retry-claim" not in cluster.notes("llama-3")


def test_two_watchers_never_spend_a_retry_twice(cluster: Cluster) -> None:
    cluster.store.put(f"{JOBS}/llama", job_body("llama", 4))
    found: list[Retried] = []
    threads = [threading.Thread(target=lambda: found.append(retried(cluster))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.why for each in found] == ["4 of 4 retries are spent"] * 4
    assert cluster.names() == ["llama", "llama-2", "llama-3", "llama-4", "llama-5"]
    created = [path for method, path in cluster.store.changes() if method == "POST"]
    assert len(created) >= 4


@pytest.mark.parametrize("dies_at", range(1, 12))
def test_a_watcher_that_dies_at_any_change_is_replaced(cluster: Cluster, dies_at: int) -> None:
    """Each run of this test kills the first watcher at another request that changes something."""

    class DiedError(BaseException):
        pass

    seen = 0

    def before(method: str, _path: str) -> None:
        nonlocal seen
        seen += method != "GET"

    cluster.store.before = before
    real = Api._once

    def dies(self: Api, method: str, *rest: Any, **more: Any) -> Any:
        if method != "GET" and seen + 1 == dies_at:
            raise DiedError
        return real(self, method, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Api, "_once", dies)
        with suppress(DiedError):
            retried(cluster, budget=2)
    cluster.store.before = lambda _method, _path: None
    found = retried(cluster)
    assert found.why == "2 of 2 retries are spent"
    assert cluster.names() == ["llama", "llama-2", "llama-3"]
    assert json.loads(cluster.notes("llama-3")["trainyard.dev/retry-record"])["spent"] == 2


def test_a_change_in_between_is_read_again_before_the_claim(cluster: Cluster) -> None:
    touched: list[str] = []

    def operator_writes(method: str, path: str) -> None:
        if method == "PATCH" and path == f"{JOBS}/llama" and len(touched) < 2:
            touched.append(path)
            cluster.store.put(path, cluster.store.objects[path])

    cluster.store.before = operator_writes
    cluster.ending = lambda name: lost_at(name) if name == "llama" else None
    assert retried(cluster).state.state is State.SUCCEEDED
    assert len(touched) == 2


def test_a_claim_that_is_never_taken_is_an_error(cluster: Cluster) -> None:
    def storm(method: str, path: str) -> None:
        if method == "PATCH" and path == f"{JOBS}/llama":
            cluster.store.put(path, cluster.store.objects[path])

    cluster.store.before = storm
    with pytest.raises(ServiceError, match="changes faster than a retry can be claimed"):
        retried(cluster)
    assert cluster.names() == ["llama"]


def test_a_claim_that_is_refused_is_an_error(cluster: Cluster) -> None:
    cluster.store.put(f"{JOBS}/llama", job_body("llama", 1))
    cluster.store.fault("PATCH", f"{JOBS}/llama", 403)
    with pytest.raises(ServiceError, match="cannot be recorded"):
        retried(cluster)


@pytest.mark.parametrize(("how", "pause"), [("delete", 0.0), ("delete", 0.2), ("cancel", 0.2)])
def test_nobody_sends_a_job_again_that_was_deleted_or_cancelled_meanwhile(
    cluster: Cluster, how: str, pause: float
) -> None:
    path = f"{JOBS}/llama"

    def meanwhile(method: str, changed: str) -> None:
        if method == "PATCH" and changed == path:
            threading.Timer(pause, act).start()

    def act() -> None:
        if how == "delete":
            cluster.store.objects.pop(path, None)
        else:
            raw = cluster.store.objects[path]
            raw["metadata"]["annotations"]["trainyard.dev/cancelled"] = "now"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry_decision, "FIRST_PAUSE", 40.0)
        patch.setattr(retry_decision, "LONGEST_PAUSE", 40.0)
        cluster.store.before = meanwhile
        found = retried(cluster)
    assert how[:6] in found.why
    assert cluster.names() == ([] if how == "delete" else ["llama"])


@pytest.mark.parametrize(
    ("note", "value", "why"),
    [
        ("cancelled", "2026-11-20T00:00:00Z", "it was cancelled"),
        ("retry-record", "{", "retry-record cannot be read"),
    ],
)
def test_a_job_that_was_cancelled_or_has_a_damaged_record_is_not_sent_again(
    cluster: Cluster, note: str, value: str, why: str
) -> None:
    body = job_body("llama", 3)
    body["metadata"]["annotations"][f"trainyard.dev/{note}"] = value
    cluster.store.put(f"{JOBS}/llama", body)
    assert why in retried(cluster).why


def test_a_follower_that_somebody_deleted_is_not_made_anew(cluster: Cluster) -> None:
    retried(cluster, budget=1)
    del cluster.store.objects[f"{JOBS}/llama-2"]
    with pytest.raises(ConfigError, match="resubmit llama"):
        retried(cluster)
    assert cluster.names() == ["llama"]


def test_pods_that_stay_keep_a_job_from_being_sent_again(cluster: Cluster) -> None:
    live = pod("llama-worker-0", labels=our_labels("llama"), rank=1)
    cluster.store.put(f"{PODS}/llama-worker-0", live)
    with pytest.raises(WaitTimeoutError, match="two jobs would write the same checkpoints"):
        retried(cluster)
    assert cluster.names() == ["llama"]
    assert cluster.store.objects[f"{JOBS}/llama"]["spec"]["runPolicy"]["suspend"] is True


def node(name: str, ready: str) -> Json:
    taints = [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]
    spec = {"taints": taints} if ready == "spot" else {}
    conditions = [{"type": "Ready", "status": "True" if ready == "spot" else ready}]
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}


@pytest.mark.parametrize("ready", ["Unknown", "spot", None])
def test_a_lost_node_is_the_cause_of_what_the_other_pods_saw(cluster: Cluster, ready: str | None) -> None:
    gone = pod("llama-worker-0", labels=our_labels("llama"), rank=1, node="n9", deleting=True)
    cluster.store.put(f"{PODS}/llama-worker-0", gone)
    cluster.store.put("/api/v1/nodes/gpu-0", node("gpu-0", "True"))
    if ready is not None:
        cluster.store.put("/api/v1/nodes/n9", node("n9", ready))
    cluster.ending = lambda name: (1, "KeyError: 'x'") if name == "llama" else None
    found = retried(cluster)
    assert found.state.state is State.SUCCEEDED
    spec = cluster.store.objects[f"{JOBS}/llama-2"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"][
        "spec"
    ]
    preferred = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred[0]["preference"]["matchFields"][0]["values"] == ["n9"]


def test_the_preview_changes_nothing(cluster: Cluster) -> None:
    cluster.store.put(f"{JOBS}/llama", job_body("llama", 1))
    look = JobReader(Api(cluster.store.access()))
    watcher = retry_loop(cluster)
    job = look.find_job("team", "llama")
    assert watcher.preview(job).startswith("llama is ")
    cluster.end("llama")
    assert watcher.preview(job) == (
        "llama would be sent again: a retry can recover from nccl-error, "
        "and it starts again from its newest checkpoint, or from the beginning"
    )
    assert cluster.store.changes() == []
    retried(cluster)
    assert (
        watcher.preview(look.find_job("team", "llama"))
        == "llama-2 would not be sent again: 1 of 1 retries are spent"
    )


def test_a_watch_whose_time_is_over_leaves_the_claim_to_the_next(cluster: Cluster) -> None:
    cluster.store.put(f"{JOBS}/llama", job_body("llama", 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry_decision, "FIRST_PAUSE", 20.0)
        patch.setattr(retry_decision, "LONGEST_PAUSE", 20.0)
        patch.setattr(job_retries, "newest_step_on_claim", lambda *_: 7)
        said: list[str] = []
        retry_loop(cluster, said).follow_to_end("team", "llama", "pytorchjob", 0.2)
    assert said == [
        "llama is sent again as llama-2: a retry can recover from nccl-error, from step 7",
        "llama: the retry as llama-2 waits; watch again to continue",
    ]
    assert cluster.names() == ["llama"]
    look = JobReader(Api(cluster.store.access()))
    decided = retry_loop(cluster).preview(look.find_job("team", "llama"))
    assert decided == "llama: the retry as llama-2 is decided, and would be sent"
    assert retried(cluster).state.job == "llama-2"
