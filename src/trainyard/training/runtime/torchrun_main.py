"""Run torchrun for the workers of this machine, and report a failure in one line instead of a page.

A worker that fails prints the reason itself. torchrun then adds a traceback and a table, which add nothing
and hide the reason. Only a worker that was killed cannot report that itself. `gateways.torchrun` runs this
program; `torchrun_agent` is the part of torchrun that watches them.
"""

import atexit
import gc
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from trainyard.errors import ExitCode
from trainyard.training.runtime.torchrun_agent import FirstNodeLostError, node_agent

_TORCHRUN_WAITS_SECONDS = 25
"""A little less than the time that torchrun gives the others to end when one has failed."""


def main() -> int:
    """Run torchrun with the arguments of this process.

    Return 1 when a worker failed or a signal came, 4 when the first node is lost.
    """
    gc.disable()  # all that is imported stays
    atexit.register(gc.freeze)
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException, logger
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError, RendezvousTimeoutError
    from torch.distributed.launcher import api as launcher
    from torch.distributed.run import main as torchrun

    gc.freeze()
    gc.enable()
    logger.addFilter(_is_news)
    launcher.LocalElasticAgent = node_agent()  # type: ignore[attr-defined]
    _let_workers_end_meanwhile()
    try:
        torchrun()
    except ChildFailedError as error:
        sys.stderr.writelines(f"{line}\n" for line in killed_workers(error.failures))
        return ExitCode.NO
    except (DistError, RendezvousTimeoutError) as error:
        sys.stderr.write(
            "Not all nodes of this run joined "
            f"({(str(error) or type(error).__name__).splitlines()[0]}).\nCheck that all of them run, and can "
            "reach the rendezvous address. Nothing was started.\n"
        )
        return ExitCode.NO
    except (FirstNodeLostError, RendezvousError):
        sys.stderr.write("The first node of this run is lost, so the workers of this node were ended.\n")
        return ExitCode.REFUSED
    except SignalException:
        return ExitCode.NO
    return ExitCode.DONE


def _let_workers_end_meanwhile() -> None:
    """Let torchrun kill a worker that has just ended; otherwise it would fail with a traceback."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
        SubprocessHandler,
    )

    close = SubprocessHandler.close

    def close_if_there(self: SubprocessHandler, death_sig: signal.Signals | None = None) -> None:
        with suppress(ProcessLookupError):
            close(self, death_sig)

    SubprocessHandler.close = close_if_there  # type: ignore[method-assign]


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a record reports more than a failed worker or the signals to the other workers."""
    return not record.getMessage().startswith(("failed (exitcode", "Sending process"))


def killed_workers(failures: Mapping[Any, Any]) -> Iterator[str]:
    """Yield one line per worker that was killed, by rank, because it could not report that itself.

    Workers that torchrun killed because another had failed (SIGTERM, later SIGKILL) are left out.
    """
    first = min((failure.timestamp for failure in failures.values()), default=0)
    for rank, failure in sorted(failures.items()):
        ended = failure.exitcode == -signal.SIGTERM and len(failures) > 1
        if failure.exitcode < 0 and not ended and failure.timestamp < first + _TORCHRUN_WAITS_SECONDS:
            yield f"Rank {rank} (pid {failure.pid}) was killed by {failure.signal_name()}."


if __name__ == "__main__":
    sys.exit(main())
