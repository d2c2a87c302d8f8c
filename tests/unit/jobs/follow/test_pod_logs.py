"""Logs are saved completely, or the missing part is reported; no partial file is left in the folder."""

from pathlib import Path

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import CUT_BEFORE, MemoryCluster, PodLog
from tests.unit.jobs.state.shapes import pod, terminated, waiting

from trainyard.errors import (
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow.pod_logs import ContainerLog, container_logs, read_log, save_logs

REFUSALS: dict[int, type[ServiceError]] = {
    400: ServiceError,
    401: CredentialsRefusedError,
    403: PermissionRefusedError,
    404: ServiceError,
    410: ServiceError,
    429: ServiceTroubleError,
    500: ServiceTroubleError,
    CUT_BEFORE: ServiceTroubleError,
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
