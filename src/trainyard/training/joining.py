"""The wait for the other processes of a run, which ends early when one of them failed before it came."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainyard.errors import ExitCode

_GRACE_SECONDS = 5.0
"""For the others to come after all, once this process was told to end."""


@contextmanager
def no_long_wait(told: Callable[[], bool]) -> Iterator[None]:
    """End the process when what is done inside goes on for seconds after SIGTERM, or after `told` was true.

    torchrun sends it to all when one process fails. One that waits for that one in native code would run no
    handler of Python's, and be killed after half a minute. It says nothing: the one that failed has.
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
