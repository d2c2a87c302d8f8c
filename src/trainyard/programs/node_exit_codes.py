"""Report the exit code of each node to the first node, through a file per node in the run's `logs/`."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import TrainyardError
from trainyard.run.atomic_files import write_json_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import parse_json_object, read_bytes

_POLL_SECONDS = 0.5


def forget_ends(directory: RunDirectory) -> None:
    """Remove the files of an earlier segment, before the program starts."""
    for path in directory.logs.glob("node-*.end.json"):
        path.unlink(missing_ok=True)


def write_end(directory: RunDirectory, node: int, exit_code: int) -> None:
    write_json_atomically(_path(directory, node), {"node": node, "exit_code": exit_code, "time": time.time()})


def wait_for_ends(
    directory: RunDirectory,
    others: range,
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Wait until every other node has reported its end; return why one of them failed, or None."""
    deadline = clock() + seconds
    while True:
        codes = {node: _code(_path(directory, node)) for node in others}
        failed = next(((node, code) for node, code in codes.items() if code), None)
        if failed is not None:
            return f"node {failed[0]} ended with exit code {failed[1]}"
        missing = [node for node, code in codes.items() if code is None]
        if not missing:
            return None
        if clock() >= deadline:
            return f"node {missing[0]} has not reported how it ended within {seconds:.0f} s"
        sleep(_POLL_SECONDS)


def _path(directory: RunDirectory, node: int) -> Path:
    return directory.logs / f"node-{node}.end.json"


def _code(path: Path) -> int | None:
    with contextlib.suppress(OSError, TrainyardError, KeyError, TypeError, ValueError):
        return int(parse_json_object(read_bytes(path, links=False), str(path))["exit_code"])
    return None
