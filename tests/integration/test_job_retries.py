"""Jobs of the released training operator on a real API server are sent again within their budget.

Pods are KWOK's: they end as the test says. The budget under competing watchers, and a watcher that is killed
between two retries.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.job_world import NAMESPACE, World, eventually, pytorchjob, world

from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow.job_retries import RetryLoop, RetryOutcome
from trainyard.jobs.kinds import find_kind
from trainyard.watch import retry_decision

pytestmark = pytest.mark.slow
Json = dict[str, Any]
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manage_training_job.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("healing"), "training-operator") as made:
        yield made


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_decision, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(retry_decision, "LONGEST_PAUSE", 1.0)


def send(cluster: World, name: str, budget: int) -> None:
    body = pytorchjob(name, restart="Never")
    body["metadata"]["annotations"]["trainyard.dev/auto-retry"] = str(budget)
    cluster.create("pytorchjob", body)


def heal(cluster: World, name: str, seconds: float = 240.0) -> RetryOutcome:
    healing = RetryLoop(Api(cluster.access), lambda *_: None, newest_step=lambda *_: None)
    return healing.follow_to_end(NAMESPACE, name, "pytorchjob", seconds)


def names(cluster: World, first: str) -> list[str]:
    items = cluster.request("GET", find_kind("pytorchjob").path(NAMESPACE))["items"]
    found = (item["metadata"]["name"] for item in items)
    return sorted(name for name in found if name == first or name.startswith(f"{first}-"))


def fail(cluster: World, name: str, words: str, code: int = 1) -> None:
    eventually(lambda: name in names(cluster, name), f"{name} to be sent")
    cluster.end(cluster.pod(name, 1), code, message=words)


def notes(cluster: World, name: str) -> Json:
    found: Json = cluster.job("pytorchjob", name)["metadata"]["annotations"]
    return found


@pytest.mark.usefixtures("soon")
def test_competing_watchers_spend_each_retry_once_and_the_budget_holds(cluster: World) -> None:
    send(cluster, "rivals", 2)
    found: list[RetryOutcome] = []
    watchers = [threading.Thread(target=lambda: found.append(heal(cluster, "rivals"))) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    for name, words in (("rivals", "one"), ("rivals-2", "two"), ("rivals-3", "three")):
        fail(cluster, name, f"ncclRemoteError: A call failed {words}")
    for watcher in watchers:
        watcher.join()
    assert {each.why for each in found} == {"2 of 2 retries are spent"}
    assert {each.state.job for each in found} == {"rivals-3"}
    assert names(cluster, "rivals") == ["rivals", "rivals-2", "rivals-3"]
    assert json.loads(notes(cluster, "rivals-3")["trainyard.dev/retry-record"])["spent"] == 2


@pytest.mark.usefixtures("soon")
def test_code_that_raises_and_nan_are_never_sent_again(cluster: World) -> None:
    for name, words, expected in (
        ("raises", "KeyError: 'labels'", "user-code"),
        ("diverges", "Step 5: the loss is not finite (nan)", "nan"),
    ):
        send(cluster, name, 5)
        fail(cluster, name, words)
        assert heal(cluster, name).why == f"no retry recovers from {expected}"
        assert names(cluster, name) == [name]


def test_a_watcher_that_is_killed_between_two_retries_is_replaced(cluster: World) -> None:
    line = [sys.executable, str(SCRIPT), "retry", "killed", "--json", "--timeout", "200s"]
    line += ["--kubeconfig", str(cluster.plane.kubeconfig), "--namespace", NAMESPACE]
    send(cluster, "killed", 1)
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        fail(cluster, "killed", "ncclRemoteError: A call failed one")
        eventually(lambda: "trainyard.dev/retry-claim" in notes(cluster, "killed"), "the claim")
        first.kill()
    time.sleep(1.0)
    assert names(cluster, "killed") == ["killed"], "it died in its back-off"
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second:
        fail(cluster, "killed-2", "ncclRemoteError: A call failed two")
        out, err = second.communicate(timeout=240)
    assert second.returncode == 1, err
    state = json.loads(out)
    assert (state["job"], state["retries"], state["auto_retry"]) == ("killed-2", 1, 1)
    assert "1 of 1 retries are spent" in err
    assert names(cluster, "killed") == ["killed", "killed-2"]
    shown = subprocess.run(
        [sys.executable, str(SCRIPT), "status", "killed", *line[7:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "followed by killed-2" in " ".join(shown.stdout.split()), shown.stdout + shown.stderr
