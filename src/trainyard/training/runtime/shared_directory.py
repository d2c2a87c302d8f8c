"""Open the run directory: one that all processes share, or one per machine (`checkpointing.shared: false`).

Before anything is trained, files of random names show which processes see the same folder. Otherwise a
directory that is not shared as configured would show only at the first save, after hours of training.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import end_node
from trainyard.run.run_lock import locked, unusable
from trainyard.training.runtime.world import World

_PATIENCE_SECONDS = 20.0
"""A network file system may show a new file this late on other machines (NFS caches folders for seconds)."""
_POLL_SECONDS = 0.1


def with_folders(world: World, *, shared: bool) -> World:
    """`world` with the run directory of each process: one for all, or without `shared` one per machine."""
    if shared or world.size == 1:
        return world
    first_of_machine = (int(local == 0) for local in world.gather(world.local_rank))
    return replace(world, folders=tuple(number - 1 for number in accumulate(first_of_machine)))


@contextlib.contextmanager
def lock_run_directory(directory: RunDirectory, world: World) -> Iterator[None]:
    """Lock the run directory for this run; on every machine where each has its own.

    Raises ConfigError on all processes when it is in use, or is not shared as configured.
    """
    path = directory.path
    with contextlib.ExitStack() as held:
        if world.folder_count > 1:
            _require_apart(path, world)
        world.run_on_owners(lambda: held.enter_context(locked(path)))
        _require_shared(path, world)
        if world.owns_folder:
            held.callback(end_node, directory)
        yield


def _require_shared(path: Path, world: World) -> None:
    """Raise ConfigError on all processes when one of them does not see the folder that it writes to."""
    if world.size == 1:
        return
    with contextlib.ExitStack() as held:
        names = world.gather(_write_nonce(path, world, held))
        name = next(
            name for name, folder in zip(names, _folders(world), strict=True) if folder == world.folder
        )
        seen = _wait_until_listed(path / name, _PATIENCE_SECONDS)
        answers = enumerate(world.gather((seen, socket.gethostname())))
        blind = [(rank, host) for rank, (sees, host) in answers if not sees]
    if not blind:
        return
    rank, hosts = blind[0][0], sorted({host for _, host in blind})
    first = _folders(world).index(_folders(world)[rank])
    raise ConfigError(
        f"{path} is not the same folder on all machines: rank {rank} on {hosts[0]}"
        f"{f' and {len(blind) - 1:,} more' if blind[1:] else ''} cannot see what rank {first} wrote there. "
        "Checkpoints need one folder that all nodes share.\n"
        "Put --run-dir on a shared volume (FSx for Lustre, EFS, NFS; in Kubernetes a ReadWriteMany claim "
        "that every pod mounts). Without one, set checkpointing.shared to false and store the run from each "
        "machine (docs/multi_node.md). Nothing was started."
    )


def _require_apart(path: Path, world: World) -> None:
    """Raise ConfigError on all processes when two machines that should have their own folder share one."""
    with contextlib.ExitStack() as held:
        own = _write_nonce(path, world, held)
        others = {name for name in world.gather(own) if name not in ("", own)}
        seen = world.owns_folder and not others.isdisjoint(os.listdir(path))  # noqa: PTH208 - only the names
        hosts = [host for host, sees in world.gather((socket.gethostname(), seen)) if sees]
    if hosts:
        raise ConfigError(
            f"checkpointing.shared is false, and {path} is one folder that several machines share (seen on "
            f"{hosts[0]}). Set checkpointing.shared to true, or give each machine a folder of its own as "
            "--run-dir. Nothing was started."
        )


def _folders(world: World) -> tuple[int, ...]:
    return world.folders or (0,) * world.size


def _write_nonce(path: Path, world: World, held: contextlib.ExitStack) -> str:
    """Write a file of a random name once per run directory, until `held` is left; its name, where written."""
    own: list[str] = []
    world.run_on_owners(lambda: own.append(held.enter_context(_nonce(path))))
    return own[0] if own else ""


@contextlib.contextmanager
def _nonce(path: Path) -> Iterator[str]:
    """Write a file of a random name into the folder `path`, made if needed; remove it afterwards."""
    file = path / f".shared-{secrets.token_hex(8)}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        file.write_text("Written to see whether all machines share this folder. It can be removed.\n")
    except OSError as error:
        raise unusable(path, error) from None
    try:
        yield file.name
    finally:
        file.unlink(missing_ok=True)


def _wait_until_listed(path: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError):
            # Listing the folder makes an NFS client read it again.
            if path.name in os.listdir(path.parent):  # noqa: PTH208 - only the names
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
