"""Every line of every pod is passed on once and in order, whatever breaks in between."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import (
    CUT_BEFORE,
    MemoryCluster,
    PodLog,
)
from tests.unit.jobs.state.shapes import pod, terminated

from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow import log_follower
from trainyard.jobs.follow.log_follower import CONNECTIONS, LogFollower, write_log_files
from trainyard.jobs.follow.pod_logs import ContainerLog

PODS = "/api/v1/namespaces/team/pods"
LABELS = {"trainyard.dev/job": "llama"}
SELECTOR = "trainyard.dev/job=llama"


def api_of(cluster: MemoryCluster) -> Api:
    return Api(cluster.access(), connections=CONNECTIONS)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "_PAUSE", 0.02)
    monkeypatch.setattr(log_follower, "_END_SECONDS", 0.1)


class Heard:
    """A sink that keeps the lines it gets."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, log: ContainerLog, line: bytes) -> None:
        self.lines.append((log.title, line.decode()))

    def of(self, title: str) -> list[str]:
        return [text for name, text in self.lines if name == title]

    def wait_for(self, title: str, *texts: str) -> None:
        until(lambda: self.of(title) == list(texts), lambda: f"{self.lines}")


def until(is_so: Callable[[], bool], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline, said()
        time.sleep(0.01)


def runs(cluster: MemoryCluster, name: str, *, uid: str = "", restarts: int = 0) -> PodLog:
    """Start a pod and return its log."""
    log = PodLog([], is_over=False)
    cluster.logs[name, "pytorch", False] = log
    last = terminated(1) if restarts else None
    raw = pod(name, uid=uid or f"uid-of-{name}", labels=LABELS, restarts=restarts, last=last)
    cluster.put(f"{PODS}/{name}", raw)
    return log


def writes(cluster: MemoryCluster, log: PodLog, *texts: str, stamps: Iterator[str] | None = None) -> None:
    numbers = itertools.count(len(log.lines))
    times = stamps or (f"2026-11-20T00:00:00.{number:09d}Z" for number in numbers)
    with cluster.news:
        log.lines += zip(times, texts, strict=False)
        cluster.news.notify_all()


def ends(cluster: MemoryCluster, name: str, log: PodLog, code: int = 0) -> None:
    raw = pod(name, "Succeeded", uid=f"uid-of-{name}", labels=LABELS, state=terminated(code))
    cluster.put(f"{PODS}/{name}", raw)
    with cluster.news:
        log.is_over = True
        cluster.news.notify_all()


def test_lines_come_while_they_are_written_from_pods_of_now_and_later(cluster: MemoryCluster) -> None:
    heard, first = Heard(), runs(cluster, "a")
    writes(cluster, first, "one")
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        heard.wait_for("a/pytorch", "one")
        writes(cluster, first, "two", "")
        heard.wait_for("a/pytorch", "one", "two", "")
        writes(cluster, runs(cluster, "b"), "later")
        heard.wait_for("b/pytorch", "later")


def test_a_restart_and_a_pod_made_anew_are_logs_of_their_own(cluster: MemoryCluster) -> None:
    heard, log = Heard(), runs(cluster, "a")
    writes(cluster, log, "first life")
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        heard.wait_for("a/pytorch", "first life")
        log.is_over = True
        writes(cluster, runs(cluster, "a", restarts=1), "second life")
        heard.wait_for("a/pytorch#1", "second life")
        cluster.remove(f"{PODS}/a")
        writes(cluster, runs(cluster, "a", uid="another"), "another pod")
        heard.wait_for("a/pytorch", "first life", "another pod")


@pytest.mark.parametrize("cuts", [[0], [1], [3], [1, 1, 2], [0, 2, 0, 4]], ids=str)
def test_lines_are_neither_lost_nor_repeated_where_connections_break(
    cluster: MemoryCluster, cuts: list[int]
) -> None:
    texts = [f"line {number}" for number in range(6)]
    heard, log = Heard(), PodLog([], is_over=False, cuts=[*cuts])
    runs(cluster, "a")
    cluster.logs["a", "pytorch", False] = log
    writes(cluster, log, *texts)
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        heard.wait_for("a/pytorch", *texts)
        ends(cluster, "a", log)
    assert heard.of("a/pytorch") == texts
    assert log.cuts == []


def test_lines_of_the_same_moment_and_of_other_zones_are_told_apart_after_a_break(
    cluster: MemoryCluster,
) -> None:
    moments = ["00.5", "00.5", "00.5", "00.5001", "01"]
    texts = [f"line {number}" for number in range(len(moments))]
    for zone, cut in itertools.product(("Z", "+02:00"), range(len(moments))):
        name = f"a{cut}{'z' if zone == 'Z' else 'o'}"
        heard, log = Heard(), runs(cluster, name)
        log.cuts = [cut]
        writes(cluster, log, *texts, stamps=iter(f"2026-11-20T00:00:{moment}{zone}" for moment in moments))
        with LogFollower(api_of(cluster), "team", SELECTOR, heard):
            heard.wait_for(f"{name}/pytorch", *texts)
            ends(cluster, name, log)
        assert heard.of(f"{name}/pytorch") == texts
        cluster.remove(f"{PODS}/{name}")


def test_what_the_kubelet_says_without_a_time_is_handed_on_whole(cluster: MemoryCluster) -> None:
    said = "unable to retrieve container logs for containerd://12"
    heard, log = Heard(), runs(cluster, "a")
    log.lines = [("unable", said.removeprefix("unable "))]
    log.is_over = True
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        until(lambda: said in heard.of("a/pytorch"), lambda: f"{heard.lines}")
    assert [r for r in cluster.requests if "unable" in r.query.get("sinceTime", "")] == []


@pytest.mark.parametrize("status", [429, 500, 503, CUT_BEFORE])
def test_trouble_is_waited_out(cluster: MemoryCluster, status: int) -> None:
    cluster.fault("GET", "/pods/a/log", status, times=3)
    heard, log = Heard(), runs(cluster, "a")
    writes(cluster, log, "one")
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        heard.wait_for("a/pytorch", "one")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_ends_one_log_and_the_others_go_on(cluster: MemoryCluster, status: int) -> None:
    cluster.fault("GET", "/pods/a/log", status)
    heard = Heard()
    runs(cluster, "a")
    other = runs(cluster, "b")
    raised: list[threading.ExceptHookArgs] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", raised.append)
        with LogFollower(api_of(cluster), "team", SELECTOR, heard):
            writes(cluster, other, "one")
            heard.wait_for("b/pytorch", "one")
            until(lambda: any("/a/log" in r.path for r in cluster.requests), lambda: "a was not asked for")
            until(lambda: not alive("a"), lambda: "the thread of a goes on")
    assert raised == []
    assert len([r for r in cluster.requests if "/a/log" in r.path]) == 1


@pytest.mark.parametrize(("status", "said"), [(403, "may not be seen"), (500, "their logs come later")])
def test_a_watch_that_is_refused_promises_no_logs(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    cluster.fault("GET", PODS, status)
    with LogFollower(api_of(cluster), "team", SELECTOR, Heard()):
        until(lambda: bool(caplog.messages), lambda: "nothing was said")
    assert said in caplog.messages[0]


def alive(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == f"log-{name}"]


def test_leaving_waits_for_what_is_being_written_and_ends_every_thread(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_END_SECONDS", 2.0)
    heard, log, silent = Heard(), runs(cluster, "a"), runs(cluster, "silent")
    with LogFollower(api_of(cluster), "team", SELECTOR, heard):
        writes(cluster, log, "one")
        heard.wait_for("a/pytorch", "one")
        until(lambda: bool(alive("silent")), lambda: "nobody reads the silent one")

        def say_the_last_words() -> None:
            writes(cluster, log, "the last words")
            ends(cluster, "a", log)

        threading.Timer(0.1, say_the_last_words).start()
    assert heard.of("a/pytorch") == ["one", "the last words"]
    until(lambda: not alive("a") + alive("silent"), lambda: "a thread goes on")
    assert silent.lines == []


def test_an_error_ends_it_at_once(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "_END_SECONDS", 30.0)
    runs(cluster, "a")
    begun = time.monotonic()
    with pytest.raises(KeyError), LogFollower(api_of(cluster), "team", SELECTOR, Heard()):
        until(lambda: bool(alive("a")), lambda: "nobody reads a")
        raise KeyError
    assert time.monotonic() - begun < 120
    until(lambda: not alive("a"), lambda: "a thread goes on")


def test_more_logs_than_can_be_followed_are_named(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_follower, "MOST_FOLLOWED", 2)
    heard = Heard()
    for name in "abc":
        writes(cluster, runs(cluster, name), f"of {name}")
    with caplog.at_level(logging.WARNING), LogFollower(api_of(cluster), "team", SELECTOR, heard):
        heard.wait_for("a/pytorch", "of a")
        heard.wait_for("b/pytorch", "of b")
        until(lambda: "the log of c is not followed" in caplog.text, lambda: caplog.text)
    assert heard.of("c/pytorch") == []


def test_lines_are_shown_and_written_to_a_file_of_each_life(tmp_path: Path) -> None:
    folder, heard = tmp_path / "new" / "logs", Heard()
    first, again = ContainerLog("a", "uid", "c", 0), ContainerLog("a", "uid", "c", 1)
    folder.mkdir(parents=True)
    (folder / first.file_name).write_text("of an earlier time\n")
    sink = write_log_files(folder, heard)
    for log, line in [(first, b"one"), (again, b"two"), (first, b"")]:
        sink(log, line)
    assert heard.lines == [("a/c", "one"), ("a/c#1", "two"), ("a/c", "")]
    assert (folder / first.file_name).read_bytes() == b"one\n\n"
    assert (folder / again.file_name).read_bytes() == b"two\n"
