"""The last lines of a program's log, for the reports of a run that failed. Secrets in them are masked."""

import os
from collections.abc import Mapping
from pathlib import Path

from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import DamagedFileError
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import Status
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import read_failure
from trainyard.run.untrusted_files import open_regular

_LINES, _BYTES = 50, 64_000


def program_logs(directory: Path) -> list[Path]:
    """Return the logs of the program, one of each node, by their names."""
    return sorted(RunDirectory(directory).logs.glob("node-*.log"))


def failure_log(run: RunFacts) -> tuple[str, str]:
    """Return the name and the last lines of the log of a run that failed; empty for any other."""
    if run.state.status not in (Status.FAILED, Status.INTERRUPTED):
        return "", ""
    failure = read_failure(run.outcome)
    return log_tail(run.directory, failure.error.partition("\n")[0] if failure else "")


def lines_around_error(run: RunFacts) -> list[str]:
    """Return the line with the root error of a failed run, three before it and two after; none without it."""
    failure = read_failure(run.outcome)
    error = failure.error.partition("\n")[0] if failure else ""
    lines = [line for line in failure_log(run)[1].split("\n") if line.strip()]
    places = [number for number, line in enumerate(lines) if error and error in line]
    return lines[max(0, places[-1] - 3) : places[-1] + 3] if places else []


def log_tail(directory: Path, error: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Return the name and the last 50 lines of the log that has `error`, else of the first node's log.

    Both are empty if there is no log. Of a line that a progress bar wrote again, the last version counts.
    """
    found: list[tuple[str, str]] = []
    secrets = SecretFilter.of({"environment": dict(environment)})
    for path in program_logs(directory):
        try:
            with open_regular(path, links=False) as file:
                file.seek(max(0, file.seek(0, 2) - _BYTES))
                text = secrets.mask_bytes(file.read()).decode("utf-8", errors="replace")
        except (OSError, DamagedFileError):
            continue
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
        found.append((path.name, "\n".join(lines[-_LINES:])))
    return next((each for each in found if error and error in each[1]), found[0] if found else ("", ""))
