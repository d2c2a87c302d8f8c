"""torchrun for the workers of this machine: the same program, but a failure takes a line and not a page.

A worker that fails has said why. torchrun then adds a traceback of its own and a table, which say no more and
hide it; only that a worker was killed is nobody else's to say. `gateways.torchrun` runs it.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import ExitCode


def main() -> int:
    """Run torchrun with the arguments of this process; 1 when a worker failed or a signal ended them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun()
    except ChildFailedError as error:
        sys.stderr.writelines(f"{line}\n" for line in killed(error.failures))
        return ExitCode.NO
    except SignalException:
        return ExitCode.NO
    return ExitCode.DONE


def killed(failures: Mapping[Any, Any]) -> Iterator[str]:
    """A line for each of torch's failures, by rank, whose process could not speak for itself."""
    for rank, failure in sorted(failures.items()):
        if failure.exitcode < 0:
            yield f"Rank {rank} (pid {failure.pid}) was killed by {failure.signal_name()}."


if __name__ == "__main__":
    sys.exit(main())
