"""Judge runners and jobs as they are at one point in time. It sends no request.

GitHub notices a missing runner only after a day. Here a runner is reported when it is offline or takes no
job, and a job when it runs longer than jobs may: the next job waits for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainyard.github.job_times import JOB_MINUTES

WAITING_SECONDS = 300.0
"""A job may wait this long for a free runner. With a poll every hour, an outage is reported in 65 minutes."""
GRACE_SECONDS = 15 * 60.0
"""GitHub ends a job at its limit; a job that still runs this much later ends only when it is cancelled."""


@dataclass(frozen=True)
class Runner:
    """A self-hosted runner as GitHub lists it."""

    name: str
    online: bool
    busy: bool
    labels: frozenset[str]


@dataclass(frozen=True)
class Job:
    """A job that waits or runs."""

    run: int
    """The id of its workflow run."""
    name: str
    running: bool
    """False when it waits for a runner."""
    labels: frozenset[str]
    since: float
    """When it started to run or to wait, in Unix seconds."""
    address: str
    trains: bool
    """Whether it belongs to this repository's own training workflow; other jobs may have other limits."""


@dataclass(frozen=True)
class Outage:
    """A problem that a person has to check; it lasts as long as polls find it."""

    key: str
    """Identifies the outage; equal at every poll."""
    title: str
    next_step: str


def judge_runners(
    runners: Sequence[Runner] | None, jobs: Iterable[Job], labels: frozenset[str], *, now: float
) -> list[Outage]:
    """Return the outages of the runners that have `labels`; none when `labels` is empty.

    `runners` is None when the token may not list them.
    """
    if not labels:
        return []
    ours = [job for job in jobs if has_labels(job, labels)]
    waiting = [job for job in ours if not job.running and now - job.since > WAITING_SECONDS]
    if any(job.running for job in ours):
        waiting = []  # the other jobs wait for that one
    if runners is None:
        return list(_unseen(waiting, labels, now))
    fitting = [runner for runner in runners if has_labels(runner, labels)]
    found = [_offline(runner) for runner in fitting if not runner.online]
    if waiting and not fitting:
        found.append(_missing(labels, waiting[0], now))
    idle = [runner for runner in fitting if runner.online and not runner.busy]
    return [*found, *(_stuck(runner, waiting[0], now) for runner in idle if waiting)]


def judge_jobs(jobs: Iterable[Job], labels: frozenset[str], *, now: float) -> Iterator[Outage]:
    """Yield an outage for each job of the training workflow that should have ended."""
    for job in (each for each in jobs if each.trains and each.running and has_labels(each, labels)):
        if (age := now - job.since) > 60 * JOB_MINUTES + GRACE_SECONDS:
            title = f"{job.name} ({job.address}) has run for {_minutes(age)}, and ends only when cancelled"
            force = f"gh api --method POST repos/{{owner}}/{{repo}}/actions/runs/{job.run}/force-cancel"
            yield Outage(f"overdue {job.run}", title, f"gh run cancel {job.run}; if it stays: {force}")


def has_labels(item: Runner | Job, labels: frozenset[str]) -> bool:
    """Return whether `labels` is not empty and it has all of them; GitHub ignores their case."""
    return bool(labels) and {label.casefold() for label in labels} <= {
        label.casefold() for label in item.labels
    }


def _offline(runner: Runner) -> Outage:
    what = "went away in the middle of a job" if runner.busy else "takes no jobs"
    step = "On the machine: sudo ./svc.sh status, then sudo ./svc.sh start"
    return Outage(f"offline {runner.name}", f"GPU runner {runner.name} is offline and {what}", step)


def _missing(labels: frozenset[str], job: Job, now: float) -> Outage:
    wanted = ", ".join(sorted(labels))
    long = _minutes(now - job.since)
    text = f"No runner registered in this repository has the labels {wanted}; a job waits for {long}"
    return Outage("missing", text, "Register the runner again, or correct TRAINYARD_RUNNER_LABELS")


def _stuck(runner: Runner, job: Job, now: float) -> Outage:
    long = _minutes(now - job.since)
    text = f"GPU runner {runner.name} is online and idle, and has not taken a job for {long}"
    return Outage(
        f"stuck {runner.name}", text, "On the machine: sudo ./svc.sh stop, then sudo ./svc.sh start"
    )


def _unseen(waiting: Sequence[Job], labels: frozenset[str], now: float) -> Iterator[Outage]:
    if waiting:
        wanted, long = ", ".join(sorted(labels)), _minutes(now - waiting[0].since)
        text = (
            f"The runner with the labels {wanted} is offline or stuck: a job waits for {long}, and none runs"
        )
        yield Outage("waiting", text, "Settings, Actions, Runners; on the machine: sudo ./svc.sh status")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes"
