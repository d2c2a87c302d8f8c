"""Planted ends of jobs of all kinds, with the released operators: each must be reported as what it is.

No false green, no false red. The scenarios are generated: kind x which pod x how it ends; the expected
state comes from the rule that the kind's restart policy states, not from the code. AT_ONCE of them run at the
same time.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from tests.integration.job_world import (
    NAMESPACE,
    NODES,
    World,
    pytorchjob,
    rayjob,
    training_runtime,
    trainjob,
    world,
)
from tests.waiting import wait_for

from trainyard.errors import ExitCode
from trainyard.jobs.state.job_state import JobState, State

pytestmark = pytest.mark.slow
AT_ONCE = 12
Json = dict[str, Any]
Plant = Callable[[World, str], object]


@dataclass(frozen=True)
class Scenario:
    """A job, its fault or end, and the report that must follow."""

    name: str
    kind: str
    body: Callable[[str], Json]
    plant: Plant
    state: State
    failure_class: str | None = None
    rank: int | None = None
    exit_code: int | None = None
    restarts: int | None = None
    waits_for: str | None = None
    runtime: Callable[[str], tuple[str, Json]] | None = None
    seconds: float = 120.0

    @property
    def job(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


CLASS_OF_CODE = {
    1: "unknown", 2: "configuration", 75: "preempted", 127: "configuration", 134: "unknown", 137: "unknown",
    139: "unknown", 143: "preempted",
}  # fmt: skip
FINAL, HEALING = (1, 2, 75, 127), (134, 137, 139, 143)
"""Exit codes that the policy ExitCode takes as final, and those after which it starts a new pod."""


def ends(code: int, rank: int, world_: World, name: str, *, reason: str = "", message: str = "") -> None:
    world_.end(world_.pod(name, rank), code, reason=reason, message=message)


def ends_and_heals(code: int, rank: int, world_: World, name: str, *, reason: str = "") -> None:
    pod = world_.pod(name, rank)
    uid = world_.uid(pod)
    world_.end(pod, code, reason=reason)
    world_.replaced(name, pod, uid)
    world_.end_all(name)


def succeeds(world_: World, name: str) -> None:
    world_.end_all(name)


def stuck(reason: str, message: str, world_: World, name: str, *, then: str = "") -> None:
    """Let all pods wait on a node; with `then`, they run and succeed."""

    def placed() -> Json:
        pods = {n: p for n, p in world_.pods(name).items() if p["spec"].get("nodeName")}
        return pods if len(pods) == NODES else {}

    container = {"name": "c", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    for pod, raw in wait_for(placed, f"pods of {name} to have nodes").items():
        entry = {**container, "name": raw["spec"]["containers"][0]["name"]}
        waiting = {"waiting": {"reason": reason, "message": message}}
        world_.write_status(pod, {"phase": "Pending", "containerStatuses": [{**entry, "state": waiting}]})
        if then:
            time.sleep(1.0)
            entry |= {"ready": True, "state": {"running": {"startedAt": "2026-11-20T00:00:00Z"}}}
            ready = {"type": "Ready", "status": "True"}
            world_.write_status(
                pod, {"phase": "Running", "conditions": [ready], "containerStatuses": [entry]}
            )
    if then:
        time.sleep(2.0)
        for pod, raw in world_.pods(name).items():
            entry = {**container, "name": raw["spec"]["containers"][0]["name"]}
            done = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-20T00:00:01Z"}
            world_.write_status(
                pod, {"phase": "Succeeded", "containerStatuses": [{**entry, "state": {"terminated": done}}]}
            )


def set_ray(status: str, message: str, world_: World, name: str, *, past: str = "") -> str:
    """Set Ray's status of the command once Ray knows it; return the command's id."""

    def known() -> str:
        found = world_.job("rayjob", name).get("status") or {}
        command = str(found.get("jobId") or "")
        return command if found.get("jobStatus") == "PENDING" and command != past else ""

    command = wait_for(known, f"Ray to know the command of {name}")
    world_.ray.set_job(command, "RUNNING")
    wait_for(lambda: world_.job("rayjob", name)["status"].get("jobStatus") == "RUNNING", f"{name} to run")
    if status != "RUNNING":
        world_.ray.set_job(command, status, message)
    return str(command)


def ray_retries(world_: World, name: str) -> None:
    first = set_ray("FAILED", "lost", world_, name)
    set_ray("SUCCEEDED", "", world_, name, past=first)


def ray_worker_dies(world_: World, name: str) -> None:
    command = set_ray("RUNNING", "", world_, name)
    pods = world_.running(name)
    worker = next(n for n, p in pods.items() if p["metadata"]["labels"].get("ray.io/node-type") == "worker")
    uid = world_.uid(worker)
    world_.end(worker, 137, reason="OOMKilled")
    world_.replaced(name, worker, uid)
    world_.ray.set_job(command, "SUCCEEDED")


def is_deleted(kind: str, world_: World, name: str) -> None:
    world_.running(name)
    time.sleep(2.0)
    world_.delete(kind, name)


def is_made_anew(kind: str, world_: World, name: str) -> None:
    is_deleted(kind, world_, name)

    def again() -> bool:
        with contextlib.suppress(RuntimeError):
            world_.create(kind, pytorchjob(name))
            return True
        return False

    wait_for(again, f"{name} to be created again")


def is_suspended(kind: str, path: tuple[str, ...], world_: World, name: str, *, resumed: bool) -> None:
    def patch(value: bool) -> Json:
        body: Any = value
        for part in reversed(path):
            body = {part: body}
        found: Json = body
        return found

    world_.running(name)
    world_.change(kind, name, patch(True))
    wait_for(lambda: not world_.pods(name), f"the pods of {name} to go")
    if resumed:
        time.sleep(1.0)
        world_.change(kind, name, patch(False))
        world_.end_all(name)


def too_long(world_: World, name: str) -> None:
    world_.running(name)
    time.sleep(3.0)
    world_.change("pytorchjob", name, {"metadata": {"annotations": {"poked": "yes"}}})


def loses_its_node(rank: int, world_: World, name: str) -> None:
    pod = world_.pod(name, rank)
    raw = world_.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    world_.write_status(pod, {"conditions": [*raw["status"]["conditions"], disrupted]})
    world_.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")
    world_.replaced(name, pod, raw["metadata"]["uid"])
    world_.end_all(name)


def does_nothing(_world: World, _name: str) -> None:
    """The job is left alone."""


SHORT = {"pytorchjob": "pt", "trainjob": "tj", "rayjob": "ray"}


def of_kind(kind: str, usual: Callable[..., Json], runtime: Any = None) -> Callable[..., Scenario]:
    """Return what makes a scenario of a kind, from its name, plant, state and further fields."""

    def make(name: str, plant: Plant, state: State, *rest: Any, **more: Any) -> Scenario:
        more = {"body": usual, "runtime": runtime, **more}
        return Scenario(f"{SHORT[kind]} {name}", kind, more.pop("body"), plant, state, *rest, **more)

    return make


pt = of_kind("pytorchjob", pytorchjob)
tj = of_kind("trainjob", trainjob, training_runtime)
ray = of_kind("rayjob", rayjob)
never = partial(pytorchjob, restart="Never")


def scenarios() -> Iterator[Scenario]:
    yield from of_pytorchjobs()
    yield from of_trainjobs()
    yield from of_rayjobs()
    yield from of_pods()
    yield from of_people()


def of_pytorchjobs() -> Iterator[Scenario]:
    yield pt("succeeds", succeeds, State.SUCCEEDED, restarts=0)
    for rank in (0, 2):
        for code in FINAL:
            plant, end = partial(ends, code, rank), (CLASS_OF_CODE[code], rank, code)
            yield pt(f"rank {rank} exit {code}", plant, State.FAILED, *end)
        for code in HEALING:
            plant = partial(ends_and_heals, code, rank)
            yield pt(f"rank {rank} heals {code}", plant, State.SUCCEEDED, restarts=1)
        for code in (1, *HEALING):
            plant, end = partial(ends, code, rank), (CLASS_OF_CODE[code], rank, code)
            yield pt(f"never rank {rank} exit {code}", plant, State.FAILED, *end, body=never)
    oom = partial(ends, 137, 1, reason="OOMKilled")
    yield pt("oom", oom, State.FAILED, "oom-host", 1, 137, body=never)
    heals = partial(ends_and_heals, 137, 1, reason="OOMKilled")
    yield pt("oom heals", heals, State.SUCCEEDED, restarts=1)
    on_failure = partial(pytorchjob, restart="OnFailure")
    yield pt("anew", partial(ends_and_heals, 1, 1), State.SUCCEEDED, restarts=1, body=on_failure)
    limited = partial(pytorchjob, policy={"activeDeadlineSeconds": 2})
    yield pt("too long", too_long, State.FAILED, "time-limit", body=limited)
    vanishing = partial(pytorchjob, policy={"ttlSecondsAfterFinished": 0})
    yield pt("vanishes", succeeds, State.SUCCEEDED, body=vanishing)
    text = "step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    yield pt("gpu memory", partial(ends, 1, 2, message=text), State.FAILED, "oom-gpu", 2, 1)


def of_trainjobs() -> Iterator[Scenario]:
    yield tj("succeeds", succeeds, State.SUCCEEDED, restarts=0)
    for rank in (0, 2):
        for code in (*FINAL, *HEALING):
            plant, end = partial(ends, code, rank), (CLASS_OF_CODE[code], rank, code)
            yield tj(f"rank {rank} exit {code}", plant, State.FAILED, *end)
    oom = partial(ends, 137, 1, reason="OOMKilled")
    yield tj("oom", oom, State.FAILED, "oom-host", 1, 137)
    heals = partial(ends_and_heals, 1, 1)
    patient = partial(training_runtime, retries=3)
    yield tj("anew", heals, State.SUCCEEDED, restarts=1, runtime=patient)
    again = partial(training_runtime, restarts=1)
    yield tj("restarts", heals, State.SUCCEEDED, restarts=3, runtime=again)


def of_rayjobs() -> Iterator[Scenario]:
    code = "Job entrypoint command failed with exit code 3, last available logs:\nTraceback"
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    yield ray("succeeds", partial(set_ray, "SUCCEEDED", ""), State.SUCCEEDED)
    yield ray("exits", partial(set_ray, "FAILED", code), State.FAILED, "unknown", None, 3)
    yield ray("gpu memory", partial(set_ray, "FAILED", memory), State.FAILED, "oom-gpu")
    yield ray("stops", partial(set_ray, "STOPPED", "stopped by the user"), State.FAILED, "cancelled")
    yield ray("retries", ray_retries, State.SUCCEEDED, body=partial(rayjob, backoffLimit=1))
    yield ray("worker dies", ray_worker_dies, State.SUCCEEDED, restarts=1)


def of_pods() -> Iterator[Scenario]:
    """What kubelets and controllers do to pods; all of their reasons are in the tests of the states."""
    yield pt("node", partial(loses_its_node, 1), State.SUCCEEDED, restarts=1)
    pull = 'Back-off pulling image "x": ErrImagePull: failed to resolve reference: x:1: not found'
    for make, bare in (
        (pt, {"body": partial(pytorchjob, bare=True)}),
        (tj, {"runtime": partial(training_runtime, bare=True)}),
    ):
        yield make("no image", partial(stuck, "ImagePullBackOff", pull), State.FAILED, "image-pull", **bare)
        plant = partial(stuck, "ErrImagePull", "503 Service Unavailable", then="runs")
        yield make("pull heals", plant, State.SUCCEEDED, **bare)
    nowhere, waiting = {"nowhere": "true"}, {"waits_for": "unschedulable", "seconds": 20}
    body = partial(pytorchjob, nodeSelector=nowhere)
    yield pt("nowhere", does_nothing, State.PENDING, body=body, **waiting)
    runtime = partial(training_runtime, nodeSelector=nowhere)
    yield tj("nowhere", does_nothing, State.PENDING, runtime=runtime, **waiting)


def of_people() -> Iterator[Scenario]:
    """The changes that somebody makes to a job while it is followed."""
    for make, kind, path in (
        (pt, "pytorchjob", ("spec", "runPolicy", "suspend")),
        (tj, "trainjob", ("spec", "suspend")),
    ):
        yield make("deleted", partial(is_deleted, kind), State.FAILED, "cancelled")
        suspended = partial(is_suspended, kind, path)
        yield make("held", partial(suspended, resumed=False), State.QUEUED, seconds=25)
        yield make("resumed", partial(suspended, resumed=True), State.SUCCEEDED)
    yield ray("deleted", partial(is_deleted, "rayjob"), State.FAILED, "cancelled")
    yield pt("made anew", partial(is_made_anew, "pytorchjob"), State.FAILED, "cancelled")


ALL = list(scenarios())


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("jobs")
    with world(directory, "training-operator", "jobset", "trainer", "kuberay") as found:
        yield found


@pytest.fixture(scope="module")
def told(everything: World, request: pytest.FixtureRequest) -> Iterator[dict[str, "Future[JobState]"]]:
    """The results of the requested scenarios, by name; AT_ONCE run at the same time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [c.params["scenario"] for c in calls if c is not None and "scenario" in c.params]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {each.name: pool.submit(play, everything, each) for each in asked}


def play(world_: World, scenario: Scenario) -> JobState:
    """Create the job, follow it, plant its fault; return the follower's last state."""
    name = scenario.job
    world_.create(scenario.kind, scenario.body(name), *([scenario.runtime(name)] if scenario.runtime else []))
    with ThreadPoolExecutor(1) as follower:
        state = follower.submit(world_.follow, scenario.kind, name, scenario.seconds)
        scenario.plant(world_, name)
        return state.result()


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.job)
def test_every_end_is_told_as_what_it_is(scenario: Scenario, told: dict[str, "Future[JobState]"]) -> None:
    state = told[scenario.name].result(timeout=600)
    assert state.state is scenario.state, state
    assert (state.exit_code == ExitCode.DONE) == (scenario.state is State.SUCCEEDED)
    if scenario.failure_class is not None:
        assert state.failure is not None
        assert state.failure.failure_class == scenario.failure_class, state.failure
    if scenario.rank is not None and state.failure is not None:
        assert state.failure.rank == scenario.rank
    if scenario.exit_code is not None and state.failure is not None:
        assert state.failure.exit_code == scenario.exit_code
    if scenario.restarts is not None:
        assert state.restarts == scenario.restarts, state
    if scenario.waits_for is not None:
        assert state.waiting is not None
        assert state.waiting.failure_class == scenario.waits_for
