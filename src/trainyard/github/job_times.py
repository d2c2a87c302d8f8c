"""The times of a training job: when GitHub ends it, and when the trainer saves and stops before that."""

import re

from trainyard.errors import ConfigError

JOB_MINUTES = 480
"""Time limit of the training job, unless TRAINYARD_JOB_MINUTES is shorter."""
STORING_MINUTES = 30
"""Minutes that are left for storing by default."""
ROLE_MINUTES = 2
"""Minutes to allow for assuming the AWS role that stores."""
LEAST_STORING_MINUTES = ROLE_MINUTES + 8
"""Minutes that a deadline must leave for storing, including `ROLE_MINUTES`."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def deadline_of(text: str, job_minutes: int) -> str:
    """Return the deadline; by default one that leaves time for storing. Raises ConfigError."""
    if not text:
        return f"{job_minutes - STORING_MINUTES}m"
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text, re.ASCII)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise ConfigError(f"TRAINYARD_DEADLINE: {text!r} is not a duration such as 7h, 450m or 90s")
    latest = job_minutes - LEAST_STORING_MINUTES
    if seconds > latest * 60:
        raise ConfigError(
            f"TRAINYARD_DEADLINE: {text} is too late: the job ends at {job_minutes} minutes, and it has to "
            f"store what there is. Use at most {latest}m; a longer run continues in a next segment."
        )
    return text
