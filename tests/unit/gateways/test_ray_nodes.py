"""A command on each node of a stand-in for Ray, whose actors are threads here; the processes are real.

tests/integration/test_ray_nodes.py does the same on a real cluster, where there is one.
"""

import sys
import time
from collections.abc import Callable
from concurrent import futures
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainyard.errors import ConfigError, WaitTimeoutError
from trainyard.gateways import ray_nodes
from trainyard.gateways.ray_nodes import NodeCommand, run_on_nodes
from trainyard.run.waiting import describe_wait

pytestmark = pytest.mark.process

run_nodes = partial(run_on_nodes, seconds=5, describe_wait=describe_wait)


class RayError(Exception):
    """The root of Ray's errors."""


class GetTimeoutError(RayError, TimeoutError):
    """A result was not ready in time."""


class StandIn(ModuleType):
    """The part of Ray that the gateway calls: an actor is an object whose methods run in its own threads."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
        self.free = True
        self.lost: set[int] = set()
        """Ranks of nodes that are lost as soon as the gateway waits for them."""
        self.bundles: list[dict[str, float]] = []
        self.options: list[dict[str, Any]] = []

    def shutdown(self) -> None:
        """Do nothing: this stand-in has nothing to close when the gateway leaves the cluster."""

    def init(self, **_: Any) -> None:
        pass

    def nodes(self) -> list[int]:
        return [1, 2, 3]

    def available_resources(self) -> dict[str, float]:
        return {"GPU": 5.0}

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        assert strategy == "STRICT_SPREAD", "one bundle per node"
        self.bundles = bundles
        return SimpleNamespace(ready=lambda: "ready")

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if reference == "ready":
            if not self.free:
                raise GetTimeoutError
            return None
        return reference.result(timeout=30)

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        done, _ = futures.wait(references, timeout=30, return_when=futures.FIRST_COMPLETED)
        return list(done)[:num_returns], []

    def remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            self.options.append(given)
            rank = given["scheduling_strategy"][1]
            return SimpleNamespace(remote=lambda: self._actor(kind(), rank, given["max_concurrency"]))

        return SimpleNamespace(options=options)

    def _actor(self, node: Any, rank: int, threads: int) -> Any:
        pool = futures.ThreadPoolExecutor(threads)

        def wait() -> int:
            code = int(node.wait())
            if rank in self.lost:
                raise RayError("The actor died.\nIts node is gone.")
            return code

        def called(method: Callable[..., Any]) -> Any:
            return SimpleNamespace(remote=lambda *given: pool.submit(method, *given))

        return SimpleNamespace(
            address=called(node.address), start=called(node.start), wait=called(wait), end=called(node.end)
        )


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    groups = SimpleNamespace(placement_group=made.placement_group)
    strategies = SimpleNamespace(
        PlacementGroupSchedulingStrategy=lambda group, placement_group_bundle_index: (
            (group, placement_group_bundle_index)
        )
    )
    for name, module in {
        "ray": made,
        "ray.exceptions": made.exceptions,
        "ray.util": made.util,
        "ray.util.placement_group": groups,
        "ray.util.scheduling_strategies": strategies,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def shell(text: str, folder: Path, **more: Any) -> NodeCommand:
    return NodeCommand(("/bin/sh", "-c", text), str(folder), processes=3, gpus=0, **more)


def test_each_node_gets_its_rank_the_files_and_the_address_of_the_first(
    ray: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    said = "$PET_NODE_RANK/$PET_NNODES x$PET_NPROC_PER_NODE $PET_MASTER_ADDR:$PET_MASTER_PORT"
    text = f'echo "{said} [$RANK$MASTER_ADDR] $OWN $(cat in/file)" > told-$PET_NODE_RANK'
    command = shell(
        text, tmp_path, environment={"OWN": "mine"}, files={f"{tmp_path}/in/file": "brought along"}
    )
    assert run_nodes(command, 3) == 0
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(3)]
    assert told == [f"{rank}/3 x3 10.0.0.7:29500 [] mine brought along\n" for rank in range(3)]
    assert [given["scheduling_strategy"][1] for given in ray.options] == [0, 1, 2]


def test_a_node_is_asked_for_the_gpus_that_its_command_uses(ray: StandIn, tmp_path: Path) -> None:
    for gpus, bundle in ((0, {"CPU": 1.0}), (8, {"CPU": 1.0, "GPU": 8.0})):
        assert run_nodes(NodeCommand(("/bin/true",), str(tmp_path), 1, gpus), 2) == 0
        assert ray.bundles == [bundle, bundle]
        assert [given["num_gpus"] for given in ray.options[-2:]] == [gpus, gpus]


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(("how", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_the_first_failure_ends_the_others_and_gives_the_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, code: int
) -> None:
    text = f'[ "$PET_NODE_RANK" = 1 ] && {how}; exec sleep 30'
    began = time.monotonic()
    assert run_nodes(shell(text, tmp_path), 2) == code
    assert time.monotonic() - began < 120
    assert f"node 1 ended with exit code {code}; the others are stopped" in caplog.text


@pytest.mark.usefixtures("ray")
def test_a_command_that_ignores_its_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "_END_SECONDS", 0.2)
    text = '[ "$PET_NODE_RANK" = 1 ] && sleep 0.2 && exit 7; trap "" TERM; exec sleep 30'
    began = time.monotonic()
    assert run_nodes(shell(text, tmp_path), 2) == 7
    assert time.monotonic() - began < 120


def test_a_node_that_is_lost_is_a_failure_and_is_named(
    ray: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ray.lost = {0}
    assert run_nodes(shell('[ "$PET_NODE_RANK" = 0 ] || exec sleep 30', tmp_path), 2) == 1
    assert "node 0 was lost: The actor died." in caplog.text


@pytest.mark.usefixtures("ray")
def test_a_command_that_does_not_exist_is_named_and_ends_as_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = NodeCommand((str(tmp_path / "none"),), str(tmp_path), 1, 0)
    assert run_nodes(command, 2) == 127
    assert f"{tmp_path}/none: No such file or directory" in capsys.readouterr().err


def test_nodes_that_are_not_free_in_time_are_said_with_what_ray_sees(ray: StandIn, tmp_path: Path) -> None:
    ray.free = False
    says = "2 nodes with 8 GPUs each were not free within 5 s: Ray sees 3 nodes, 5 GPUs free"
    with pytest.raises(WaitTimeoutError, match=says):
        run_nodes(NodeCommand(("true",), str(tmp_path), 1, 8), 2)


def test_without_ray_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed for .*; install ray\[default\]"):
        run_nodes(shell("true", tmp_path), 1)
