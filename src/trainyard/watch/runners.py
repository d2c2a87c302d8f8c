"""What a watchdog sees: runners and jobs at one moment, and what is wrong with them. Nothing is asked here.

GitHub notices a runner that is gone after a day. Here one is named when it is offline, when it takes no job,
and when a job on it lasts longer than jobs may.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

WAITING_SECONDS = 300.0
"""A job may wait so long for a free runner. With a look every hour an outage is named in 65 minutes."""
LOOK_SECONDS = 60 * 60.0
"""The time between two looks (`watch_runners.yml`)."""
LIMIT_SECONDS = 480 * 60.0
"""The time limit of the job that trains (`training_ci.yml`)."""
GRACE_SECONDS = 15 * 60.0
"""GitHub ends a job at its limit; so much later it is taken for one that nobody ends.

A look may also come so much too late, as GitHub's schedule does.
"""
MACHINE_SECONDS = 60 * 60.0
"""CodeBuild starts a machine in minutes; a job that waits so long was ignored, and waits for a day."""
_CODEBUILD = "codebuild-"


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
    """Id of its workflow run."""
    name: str
    running: bool
    """False: it waits for a runner."""
    labels: frozenset[str]
    since: float
    """Unix seconds: since when it runs, or waits."""
    address: str

    @property
    def on_codebuild(self) -> bool:
        return any(label.casefold().startswith(_CODEBUILD) for label in self.labels)


@dataclass(frozen=True)
class Outage:
    """Something that a person has to look at. It lasts as long as it is seen."""

    key: str
    """The same for the same outage at every look."""
    title: str
    next_step: str


@dataclass(frozen=True)
class Orphan:
    """A job that nobody will end."""

    job: Job
    reason: str
    force: bool
    """Cancelling it was tried before."""


def outages(
    runners: Sequence[Runner] | None, jobs: Iterable[Job], labels: frozenset[str], *, now: float
) -> list[Outage]:
    """What is wrong with the runners that have `labels`; nothing where there are none.

    `runners` is None where they may not be listed.
    """
    if not labels:
        return []
    ours = [job for job in jobs if _has(job, labels) and not job.on_codebuild]
    waiting = [job for job in ours if not job.running and now - job.since > WAITING_SECONDS]
    if any(job.running for job in ours):
        waiting = []  # they wait for their turn
    if runners is None:
        return list(_unseen(waiting, labels, now))
    fitting = [runner for runner in runners if _has(runner, labels)]
    found = [_offline(runner) for runner in fitting if not runner.online]
    if waiting and not fitting:
        found.append(_missing(labels, waiting[0], now))
    idle = [runner for runner in fitting if runner.online and not runner.busy]
    return [*found, *(_stuck(runner, waiting[0], now) for runner in idle if waiting)]


def orphans(jobs: Iterable[Job], labels: frozenset[str], *, now: float) -> Iterator[Orphan]:
    """The jobs to be cancelled; those that wait for your own runner are left to it."""
    for job in jobs:
        age = now - job.since
        ours = _has(job, labels) or job.on_codebuild
        if ours and job.running and age > LIMIT_SECONDS + GRACE_SECONDS:
            late = age > LIMIT_SECONDS + 2 * GRACE_SECONDS + LOOK_SECONDS
            yield Orphan(job, f"it has run for {_minutes(age)}, and jobs end after 480", late)
        elif job.on_codebuild and not job.running and age > MACHINE_SECONDS:
            # Never by force: its age counts from when it was created, and it may have been held back since.
            yield Orphan(job, f"no machine of CodeBuild has come for {_minutes(age)}", force=False)


def _has(thing: Runner | Job, labels: frozenset[str]) -> bool:
    """Whether it has all the labels, of which there are some; GitHub ignores the case of letters."""
    return bool(labels) and {label.casefold() for label in labels} <= {
        label.casefold() for label in thing.labels
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
