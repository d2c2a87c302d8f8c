"""Run torchrun for the workers of this machine, watch them, and report a failure in one line, not a page.

A worker that fails prints the reason itself. torchrun then adds a traceback and a table, which add nothing
and hide the reason. Only a worker that was killed cannot report that itself. `gateways.torchrun` runs this.

When its own workers have ended, torchrun waits up to five minutes for the torchrun of every other node. After
a stop, this agent does not wait: the node that received the signal has ended, and the grace period runs.
torchrun watches only its own workers. When the first node is gone, this agent ends workers that do not notice
it; otherwise they would hold their GPUs until someone deletes the pod. It also names what it waits for.
"""

import atexit
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainyard.errors import ExitCode
from trainyard.run.waiting import describe_wait

_POLL_SECONDS = 5.0
# Workers end by themselves within this time after the first node's end: their connection breaks, or they
# save and stop.
_ALONE_SECONDS = 60.0


class FirstNodeLostError(Exception):
    """The first node is gone, and the workers of this one have not noticed."""


def node_agent() -> type[Any]:
    """Return torchrun's agent with the changes named above."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    class Agent(LocalElasticAgent):
        _last_poll = _gone_since = 0.0

        def _rendezvous(self, worker_group: Any) -> None:
            spec = worker_group.spec
            if getattr(spec.rdzv_handler, "world_size", None) == 1:  # it is known to be the only node
                super()._rendezvous(worker_group)
                return
            limit = getattr(spec.rdzv_handler, "timeout", None)
            seconds = limit.total_seconds() if isinstance(limit, timedelta) else None
            with describe_wait("the launchers of the other nodes", seconds, log=_log_wait):
                super()._rendezvous(worker_group)

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if worker_group.group_world_size > 1 and result.state.name == "HEALTHY":
                self._require_first_node()
            return result

        def _require_first_node(self) -> None:
            now = time.monotonic()
            if now - self._last_poll < _POLL_SECONDS:
                return
            self._last_poll = now
            with suppress(RuntimeError):  # torch.distributed.DistError is one
                store: Any = self._store
                store.check(["trainyard-is-there"])
                self._gone_since = 0.0
                return
            self._gone_since = self._gone_since or now
            if now - self._gone_since > _ALONE_SECONDS:
                self._shutdown()
                raise FirstNodeLostError

        def _exit_barrier(self) -> None:
            if not has_stopped_early():
                super()._exit_barrier()  # type: ignore[no-untyped-call]

    return Agent


def _log_wait(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def has_stopped_early() -> bool:
    """Return whether a worker of this node has recorded that the run stopped early with a checkpoint."""
    folder = os.environ.get("TRAINYARD_EXIT_CODE_FOLDER")
    files = Path(folder).glob("exit-code-*") if folder else ()
    return any(path.read_text() == str(int(ExitCode.STOPPED)) for path in files)


# A little less than the time that torchrun gives the others to end when one has failed.
_TORCHRUN_WAITS_SECONDS = 25


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
