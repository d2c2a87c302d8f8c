"""What scripts share: the time that a job of CI has been going."""

import time

import pytest

from trainyard.command import job_seconds
from trainyard.errors import ConfigError


def test_a_job_has_been_going_since_its_noted_start() -> None:
    assert 60 <= job_seconds({"TRAINYARD_JOB_STARTED": str(int(time.time()) - 60)}) < 65


@pytest.mark.parametrize("environment", [{}, {"TRAINYARD_JOB_STARTED": ""}])
def test_outside_a_job_no_time_is_taken_off(environment: dict[str, str]) -> None:
    assert job_seconds(environment) == 0


def test_a_start_in_the_future_does_not_lengthen_a_deadline() -> None:
    assert job_seconds({"TRAINYARD_JOB_STARTED": str(time.time() + 3600)}) == 0


@pytest.mark.parametrize("started", ["yesterday", "-5", "nan", "inf", "1e9", "1700000000 "])
def test_what_is_no_time_is_refused_by_name(started: str) -> None:
    with pytest.raises(ConfigError, match=r"TRAINYARD_JOB_STARTED: .* date \+%s"):
        job_seconds({"TRAINYARD_JOB_STARTED": started})
