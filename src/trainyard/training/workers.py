"""torchrun for the workers of this machine: the same program, but a failure takes a line and not a page.

A worker that fails has said why. torchrun then adds a traceback of its own and a table, which say no more and
hide it; only that a worker was killed is nobody else's to say. `gateways.torchrun` runs it.
"""

import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import ExitCode

_TORCHRUN_WAITS_SECONDS = 25
"""A little less than torchrun gives the others to end by themselves when one has failed."""


def main() -> int:
    """Run torchrun with the arguments of this process; 1 when a worker failed or a signal ended them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException, logger
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logger.addFilter(_is_news)
    try:
        torchrun()
    except ChildFailedError as error:
        sys.stderr.writelines(f"{line}\n" for line in killed(error.failures))
        return ExitCode.NO
    except SignalException:
        return ExitCode.NO
    return ExitCode.DONE


def _is_news(record: logging.LogRecord) -> bool:
    """Whether torchrun says more with it than that a worker failed, and that it asks the others to end."""
    return not record.getMessage().startswith(("failed (exitcode", "Sending process"))


def killed(failures: Mapping[Any, Any]) -> Iterator[str]:
    """A line for each of torch's failures, by rank, whose process could not speak for itself.

    Not for those that torchrun killed because another had failed: by SIGTERM, after a while by SIGKILL.
    """
    first = min((failure.timestamp for failure in failures.values()), default=0)
    for rank, failure in sorted(failures.items()):
        ended = failure.exitcode == -signal.SIGTERM and len(failures) > 1
        if failure.exitcode < 0 and not ended and failure.timestamp < first + _TORCHRUN_WAITS_SECONDS:
            yield f"Rank {rank} (pid {failure.pid}) was killed by {failure.signal_name()}."


if __name__ == "__main__":
    sys.exit(main())
