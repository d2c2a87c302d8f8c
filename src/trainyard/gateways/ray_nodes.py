"""Run one command on each node of a Ray cluster, and end all of them when one fails.

    placement group, one bundle per node ──> one task each ──> a process with PET_* variables ──> exit codes

Code inside a task must not need this package, because Ray's workers are separate processes. A Ray job carries
its files in a variable, because its pods do not have them mounted.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, WaitTimeoutError

LOG = logging.getLogger(__name__)
PORT = 29500
VARIABLE = "TRAINYARD_FILES"
"""JSON, path -> text."""
_END_SECONDS = 300.0
"""Seconds that commands may take to end when a stop is requested; enough for a last save."""


@dataclass(frozen=True)
class NodeCommand:
    """The command that each node runs."""

    command: tuple[str, ...]
    directory: str
    processes: int
    gpus: int
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text of files that the command needs."""


def run_on_nodes(
    command: NodeCommand,
    nodes: int,
    *,
    seconds: float,
    describe_wait: Callable[[str, float], AbstractContextManager[None]],
) -> int:
    """Run `command` on `nodes` nodes and return 0, or the exit code of the first one that failed.

    `describe_wait` returns a context manager that reports the wait. Raises ConfigError without Ray,
    WaitTimeoutError if the nodes are not available within `seconds`.
    """
    try:
        import ray
        from ray.exceptions import GetTimeoutError
        from ray.util.placement_group import placement_group
    except ImportError:
        raise ConfigError(f"Ray is not installed for {sys.executable}; install ray[default]") from None
    ray.init(address="auto", log_to_driver=True, logging_level="warning")
    bundle = {"CPU": 1.0, **({"GPU": float(command.gpus)} if command.gpus else {})}
    try:
        group = placement_group([dict(bundle) for _ in range(nodes)], strategy="STRICT_SPREAD")
        with describe_wait(f"{nodes} nodes of the Ray cluster with {command.gpus} GPUs each", seconds):
            ray.get(group.ready(), timeout=seconds)
        return _wait_for_end(ray, _start(ray, group, command, nodes))
    except GetTimeoutError:
        raise WaitTimeoutError(
            f"{nodes} nodes with {command.gpus} GPUs each were not free within {seconds:.0f} s: "
            f"Ray sees {len(ray.nodes())} nodes, {ray.available_resources().get('GPU', 0):.0f} GPUs free"
        ) from None
    finally:
        ray.shutdown()  # the nodes are free again, for another start


def _start(ray: Any, group: Any, command: NodeCommand, nodes: int) -> list[Any]:
    """Return the actors of the nodes, in order of their ranks, each with its command running."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = ray.remote(_node_class())
    placed = [
        actor.options(
            num_cpus=1,
            num_gpus=command.gpus,
            max_restarts=0,
            max_concurrency=4,  # `end` is called while `wait` waits
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
        ).remote()
        for rank in range(nodes)
    ]
    address = ray.get(placed[0].address.remote())
    LOG.info("%d nodes, the first at %s", nodes, address)
    common = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(command.processes),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(PORT),
    }
    plain = asdict(command)
    for rank, node in enumerate(placed):
        ray.get(node.start.remote(plain, {**common, "PET_NODE_RANK": str(rank)}))
    return placed


def _wait_for_end(ray: Any, placed: list[Any]) -> int:
    """Wait for all commands; end the others at the first failure. Return the first failed exit code."""
    waiting = {node.wait.remote(): rank for rank, node in enumerate(placed)}
    failed = 0
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        rank = waiting.pop(done[0])
        code = _code_of(ray, done[0], rank)
        if code and not failed:
            failed = code
            LOG.error("node %d ended with exit code %d; the others are stopped", rank, code)
            for other in waiting.values():
                placed[other].end.remote(_END_SECONDS)
    return failed


def _code_of(ray: Any, reference: Any, rank: int) -> int:
    try:
        return int(ray.get(reference))
    except ray.exceptions.RayError as error:
        LOG.error("node %d was lost: %s", rank, str(error).splitlines()[0])
        return 1


def _node_class() -> type:
    """The actor of one node, defined inside a function so that Ray sends its code and not a reference."""

    class Node:
        def __init__(self) -> None:
            self._process: Any = None

        def address(self) -> str:
            import ray

            return str(ray.util.get_node_ip_address())

        def start(self, command: dict[str, Any], variables: dict[str, str]) -> None:
            import os
            import subprocess
            import sys
            from pathlib import Path

            for name, text in command["files"].items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                own = Path(f"{name}.{variables['PET_NODE_RANK']}")
                own.write_text(text)
                own.replace(name)  # complete at once: another node may read it, where they share a disk
            environment = {**os.environ, **command["environment"], **variables}
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
                environment.pop(name, None)
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    list(command["command"]), cwd=command["directory"], env=environment
                )
            except OSError as error:
                sys.stderr.write(f"{error.filename}: {error.strerror}\n")  # Ray shows it to the driver

        def wait(self) -> int:
            if self._process is None:
                return 127  # like a shell that does not find the command
            code = int(self._process.wait())
            return 128 - code if code < 0 else code

        def end(self, seconds: float) -> None:
            import subprocess

            if self._process is None:
                return
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()

    return Node


def parse_job_files(text: str) -> dict[str, str]:
    """Return the files of the variable's value. Raises ConfigError for anything else.

    Kubernetes replaces `$(NAME)` in it by variables that other people set.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(f"{VARIABLE}: not a JSON object of paths and texts")
    return found


def place_files(environment: Mapping[str, str]) -> None:
    """Write the files of `environment`. Raises ConfigError when one of them cannot be written."""
    for name, text in parse_job_files(environment.get(VARIABLE, "")).items():
        path = Path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{VARIABLE}: {name} cannot be written ({error.strerror})") from None
