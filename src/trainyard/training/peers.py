"""Which of the other processes of a run have ended, asked of the kernel.

A collective of gloo notices a dead process by its connection. What waits elsewhere, in NCCL or for a lock,
does not. The kernel knows the processes of this machine, and none of another.
"""

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainyard.training.world import World


@contextmanager
def peers_watched(world: World) -> Iterator[Callable[[], tuple[int, ...]]]:
    """Gives what tells, from any thread, the ranks of this machine that have ended. All processes call it."""
    places = world.gather((_machine(), os.getpid()))
    ended: set[int] = set()
    waiting = select.poll()
    ranks: dict[int, int] = {}
    with ExitStack() as held:
        for rank, (machine, pid) in enumerate(places):
            if rank == world.rank or machine != _machine() or not hasattr(os, "pidfd_open"):
                continue
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                ended.add(rank)
                continue
            held.callback(os.close, handle)
            waiting.register(handle, select.POLLIN)
            ranks[handle] = rank
        yield lambda: tuple(sorted(ended | {ranks[handle] for handle, _ in waiting.poll(0)}))


def _machine() -> str:
    """Where a process id means the same process: one start of one machine, and one container."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text()} {Path('/proc/self/ns/pid').readlink()}"
