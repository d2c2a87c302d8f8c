"""End the rendezvous early when another process of the run has failed before it joined."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainyard.errors import ExitCode

_GRACE_SECONDS = 5.0
"""The others still have this long to join after this process was told to end."""


@contextmanager
def no_long_wait(told: Callable[[], bool]) -> Iterator[None]:
    """End the process if the body still runs some seconds after SIGTERM, or after `told` was true.

    torchrun sends SIGTERM to all processes when one fails. A process that waits for the failed one in native
    code would run no Python signal handler, and would be killed after half a minute. This process prints
    nothing, because the failed process has printed its message.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    done = threading.Event()

    def watch() -> None:
        reader.recv(1)
        if not done.wait(_GRACE_SECONDS):
            os._exit(ExitCode.NO)

    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    if told():
        writer.send(b"\0")
    watcher = threading.Thread(target=watch, name="told to end", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        writer.send(b"\0")
        watcher.join()
        reader.close()
        writer.close()
