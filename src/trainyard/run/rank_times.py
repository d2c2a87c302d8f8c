"""Record the time that each process needs for its own part of a step: `logs/rank-00003.json`.

Each process replaces its own file when it logs a step. `trainyard watch` finds in them the process that the
others wait for, and in a hang the one that stopped first. Nothing else reads these files.
"""

import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic.dataclasses import dataclass

from trainyard.errors import DamagedFileError
from trainyard.run.record_models import OF_A_FILE, Count, Number, Text, validate_record
from trainyard.run.untrusted_files import read_json_object

_OWN_PARTS = ("data_seconds", "forward_seconds")
"""The parts of a step before a process waits for the others' gradients."""


@dataclass(frozen=True, config=OF_A_FILE)
class RankTime:
    """One process at its last logged step."""

    rank: Count
    step: Count
    time: Number
    """Unix seconds."""
    seconds: Number | None = None
    """Time for its own part of a step; None if it does not measure that."""
    host: Text = ""


def write_rank_time(logs: Path, rank: int, row: Mapping[str, object]) -> None:
    """Replace the file of process `rank` by the times in `row`. An error of the disk is ignored."""
    known = [value for name in _OWN_PARTS if isinstance(value := row.get(name), int | float)]
    record = {"rank": rank, "step": row["step"], "time": time.time(), "host": socket.gethostname()}
    record |= {"seconds": sum(known)} if known else {}
    path = logs / f"rank-{rank:05d}.json"
    with suppress(OSError):
        new = path.with_suffix(".new")
        new.write_text(json.dumps(record), encoding="utf-8")
        new.replace(path)


def read_rank_times(logs: Path, *, since: float) -> list[RankTime]:
    """Return the times that were written after `since`, by rank; damaged files are skipped."""
    found = []
    for path in sorted(logs.glob("rank-*.json")):
        with suppress(OSError, DamagedFileError, ValueError):
            found.append(validate_record(RankTime, read_json_object(path)))
    return [each for each in found if each.time >= since]
