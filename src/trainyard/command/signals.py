"""Handle signals in a script: end it at once, or ask background work to end.

The trainer has its own signal handling, in `training.runtime.stop_signals`.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from trainyard.errors import ExitCode


def end_at_signals(*, silently: bool = False) -> Callable[[], str | None]:
    """Let signals end the program at once, as a Ctrl-C does, with its cleanup.

    Returns a function that names the received signal, because code that swallows every exception, such as an
    import, may have continued. `silently` is for one process of several, whose launcher reports the
    interruption.
    """
    came: list[str] = []

    def end(number: int, _frame: object) -> NoReturn:
        came.append(signal.Signals(number).name)
        raise SystemExit(ExitCode.INTERRUPTED) if silently else KeyboardInterrupt

    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background jobs start with SIGINT ignored
        signal.signal(number, end)
    sys.unraisablehook = _send_again
    return lambda: came[0] if came else None


def _send_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Send the signal again if its exception was raised where Python ignores exceptions, as in `__del__`."""
    if isinstance(ignored.exc_value, KeyboardInterrupt | SystemExit):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(ignored)


def run_in_background() -> threading.Event:
    """Run beside another program: use only idle processor time, and end on request.

    The event is set at the first SIGTERM or SIGINT, and the script then ends by itself; a second one kills
    it.
    """
    with contextlib.suppress(OSError):
        os.nice(19)
    event = threading.Event()

    def note(number: int, _frame: object) -> None:
        event.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return event
