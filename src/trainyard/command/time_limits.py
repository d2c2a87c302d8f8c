"""How long the CI job has run, from the environment variable TRAINYARD_JOB_STARTED."""

import os
import re
import time
from collections.abc import Mapping

from trainyard.errors import ConfigError


def job_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """The seconds since the start of this process's CI job; 0 outside one.

    `TRAINYARD_JOB_STARTED` holds its start in Unix seconds; a start in the future counts as now.
    """
    started = environment.get("TRAINYARD_JOB_STARTED")
    if not started:
        return 0.0
    if not re.fullmatch(r"\d+(\.\d+)?", started, re.ASCII):
        raise ConfigError(
            f"TRAINYARD_JOB_STARTED: {started!r} is not a time in Unix seconds, as date +%s prints"
        )
    return max(0.0, time.time() - float(started))
