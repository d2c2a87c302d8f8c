"""Check that all processes see the same run directory, before anything is trained.

The main process writes a nonce there, tells it to the others, and each looks for it. Otherwise a directory
that is not shared shows only at the first save, after hours of training.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.training.runtime.world import World

_PATIENCE_SECONDS = 20.0
"""A network file system may show a new file this late on other machines (NFS caches folders for seconds)."""
_POLL_SECONDS = 0.1


def require_shared(path: Path, world: World) -> None:
    """Raise ConfigError on all processes when one of them does not see the main process's folder `path`."""
    if world.size == 1:
        return
    with contextlib.ExitStack() as held:
        name = world.on_main(lambda: held.enter_context(_nonce(path)))
        seen = _appears(path / name, _PATIENCE_SECONDS)
        answers = enumerate(world.gather((seen, _host())))
        blind = [(rank, host) for rank, (sees, host) in answers if not sees]
    if not blind:
        return
    hosts = sorted({host for _, host in blind})
    raise ConfigError(
        f"{path} is not the same folder on all machines: rank {blind[0][0]} on {hosts[0]}"
        f"{f' and {len(blind) - 1:,} more' if blind[1:] else ''} cannot see what rank 0 wrote there. "
        "Checkpoints need one folder that all nodes share.\n"
        "Put --run-dir on a shared volume (FSx for Lustre, EFS, NFS; in Kubernetes a ReadWriteMany claim "
        "that every pod mounts). Nothing was started."
    )


@contextlib.contextmanager
def _nonce(path: Path) -> Iterator[str]:
    """Write a file of a random name into the folder `path`; remove it afterwards."""
    file = path / f".shared-{secrets.token_hex(8)}"
    file.write_text("Written to see whether all machines share this folder. It can be removed.\n")
    try:
        yield file.name
    finally:
        file.unlink(missing_ok=True)


def _appears(path: Path, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not _is_listed(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_listed(path: Path) -> bool:
    """Whether `path` is there. Listing the folder makes a client of NFS look again."""
    try:
        return path.name in os.listdir(path.parent)  # noqa: PTH208 - only the names
    except OSError:
        return False


def _host() -> str:
    return socket.gethostname()
