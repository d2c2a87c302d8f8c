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

# A network file system may show a new file this late on other machines (NFS caches folders for seconds).
_PATIENCE_SECONDS = 20.0
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
        if world.size > 1:
            _require_shared_as_configured(path, world)
        world.run_on_owners(lambda: held.enter_context(locked(path)))
        if world.owns_folder:
            held.callback(end_node, directory)
        yield


def _require_shared_as_configured(path: Path, world: World) -> None:
    """Raise ConfigError on all processes unless each sees the run directory that it writes to, and no other.

    The first process of each directory writes a file of a random name, and all list the directory.
    """
    folders = world.folders or (0,) * world.size
    with contextlib.ExitStack() as held:
        own: list[str] = []
        world.run_on_owners(lambda: own.append(held.enter_context(_nonce(path))))
        written = world.gather(own[0] if own else "")
        name = written[folders.index(world.folder)]
        sees_own = _wait_until_listed(path / name, _PATIENCE_SECONDS)
        sees_other = sees_own and not {*written}.difference({name, ""}).isdisjoint(_names_in(path))
        answers = world.gather((sees_own, sees_other, socket.gethostname()))
    if blind := [(rank, host) for rank, (sees, _, host) in enumerate(answers) if not sees]:
        rank, hosts = blind[0][0], sorted({host for _, host in blind})
        raise ConfigError(
            f"{path} is not the same folder on all machines: rank {rank} on {hosts[0]}"
            f"{f' and {len(blind) - 1:,} more' if blind[1:] else ''} cannot see what rank "
            f"{folders.index(folders[rank])} wrote there. Checkpoints need one folder that all nodes share.\n"
            "Put --run-dir on a shared volume (FSx for Lustre, EFS, NFS; in Kubernetes a ReadWriteMany claim "
            "that every pod mounts). Without one, set checkpointing.shared to false and store the run from "
            "each machine (docs/multi_node.md). Nothing was started."
        )
    if host := next((host for _, sees_other, host in answers if sees_other), None):
        raise ConfigError(
            f"checkpointing.shared is false, and {path} is one folder that several machines share (seen on "
            f"{host}). Set checkpointing.shared to true, or give each machine a folder of its own as "
            "--run-dir. Nothing was started."
        )


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
    while path.name not in _names_in(path.parent):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _names_in(path: Path) -> list[str]:
    """List a folder, which makes an NFS client read it again; a missing one has no names."""
    with contextlib.suppress(OSError):
        return os.listdir(path)  # noqa: PTH208 - only the names
    return []
