"""Ask the kernel which other processes of the run have ended.

A gloo collective notices a dead process by its connection. A process that waits in NCCL or for a lock does
not notice. The kernel only knows the processes of this machine.
"""

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trainyard.training.runtime.world import World


@contextmanager
def watch_peers(world: World) -> Iterator[Callable[[], tuple[int, ...]]]:
    """Yield a function that returns the ranks of this machine that have ended; any thread may call it.

    All processes must enter this together.
    """
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
    """Identify the scope in which a process id is unique: one boot of a machine and one container."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    if not boot.exists():
        return socket.gethostname()
    return f"{boot.read_text()} {Path('/proc/self/ns/pid').readlink()}"
