"""One round of the watchdog: poll GitHub, find outages, resume dead runs.

    runners + jobs ──> outages
    ended runs whose runner died ──> their next attempt

The access to GitHub is passed in. `runners` judges what is found.
"""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainyard.errors import ServiceError
from trainyard.github.job_end import TRAIN_JOB
from trainyard.github.runners import Job, Outage, Runner, has_labels, judge_jobs, judge_runners

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

RESUME_SECONDS = 24 * 3600.0
"""The watchdog does not resume a run that died longer ago than this."""
MOST_ATTEMPTS = 3
"""A run whose runner died in this attempt is not resumed: the machine or the run is broken."""
_DEATH = re.compile(r"lost communication with the server|runner has received a shutdown signal", re.I)
_CANCELLED = re.compile(r"run was cancell?ed by @(?!github-actions(?![\w-]))", re.I)
"""Matches a cancellation by a person; the watchdog itself cancels as github-actions[bot]."""
_logger = logging.getLogger(__name__)
Json = Mapping[str, Any]


@dataclass(frozen=True)
class DeadRun:
    """A training run whose runner died."""

    run: int
    address: str
    attempt: int

    @property
    def is_resumed(self) -> bool:
        return self.attempt < MOST_ATTEMPTS


def find_outages(
    api: "GitHub",
    runners_api: "GitHub | None",
    workflow: str,
    labels: frozenset[str],
    *,
    now: float,
) -> list[Outage]:
    """Return the present outages; `workflow` is the file of the training workflow.

    `runners_api` has a token that may list runners, unlike GITHUB_TOKEN.
    """
    training = api.get(f"/actions/workflows/{workflow}").get("id")
    jobs = [job for status in ("queued", "in_progress") for job in _jobs(api, status, training)]
    runners = None
    if runners_api is not None:
        runners = _list_runners(api, runners_api, labels)
    found = judge_runners(runners, jobs, labels, now=now)
    return [*found, *judge_jobs(jobs, labels, now=now)]


def find_dead_runs(api: "GitHub", workflow: str, *, now: float) -> list[DeadRun]:
    """Return the training runs of the last day whose runner died."""
    listed = api.get(f"/actions/workflows/{workflow}/runs", per_page=50).get("workflow_runs", [])
    found = []
    for run in (run for run in listed if _is_own(run)):
        if run.get("status") != "completed" or run.get("conclusion") == "success":
            continue
        if now - _seconds(run["updated_at"]) > RESUME_SECONDS:
            continue
        try:
            if _has_lost_runner(api, run["id"]):
                found.append(DeadRun(run["id"], run["html_url"], int(run.get("run_attempt") or 1)))
        except ServiceError as error:  # it affects this run only, and the next poll tries again
            _logger.warning("%s: %s", run["html_url"], error)
    return found


def report_unresumed(dead: DeadRun) -> Outage:
    """Return the outage that is reported for a dead training run that is not resumed."""
    text = f"A training lost its runner in {dead.attempt} attempts: check the machine first"
    return Outage(f"dead {dead.run}", text, f"gh run rerun {dead.run}")


def resume_all(api: "GitHub", found: list[DeadRun], *, dry_run: bool) -> tuple[list[DeadRun], list[Outage]]:
    """Start the next attempt of each run; return the resumed ones, and an outage per failure.

    The attempt has the commit, the workflow file and the plan of the first one, and resumes from the store.
    """
    resumed, failures = [], []
    for dead in (dead for dead in found if dead.is_resumed):
        try:
            if not dry_run:
                api.post(f"/actions/runs/{dead.run}/rerun-failed-jobs")
            resumed.append(dead)
        except ServiceError as error:
            text = f"A training died, and run {dead.run} could not be resumed"
            failures.append(Outage(f"resume {dead.run}", text, f"{error}. gh run rerun {dead.run}"))
    return resumed, failures


def _has_lost_runner(api: "GitHub", run: int) -> bool:
    """Return whether GitHub's annotations say that the training job's runner was lost or shut down."""
    for job in api.pages(f"/actions/runs/{run}/jobs", "jobs", filter="latest"):
        ended_badly = job.get("status") == "completed" and job.get("conclusion") != "success"
        if ended_badly and str(job["name"]).endswith(TRAIN_JOB):
            notes = [str(each.get("message")) for each in api.pages(f"/check-runs/{job['id']}/annotations")]
            by_hand = any(map(_CANCELLED.search, notes))
            return not by_hand and any(map(_DEATH.search, notes))
    return False


def _is_own(run: Json) -> bool:
    """Return whether a run is of this repository's code; pull requests of forks run the fork's file."""
    head, base = run.get("head_repository") or {}, run.get("repository") or {}
    return head.get("id") is not None and head.get("id") == base.get("id")


def _jobs(api: "GitHub", status: str, training: int | None) -> Iterator[Job]:
    for run in api.pages("/actions/runs", "workflow_runs", status=status):
        trains = training is not None and run.get("workflow_id") == training and _is_own(run)
        for job in api.pages(f"/actions/runs/{run['id']}/jobs", "jobs", filter="latest"):
            if job["status"] in ("queued", "in_progress"):
                running = job["status"] == "in_progress"
                since = job.get("started_at") if running else job.get("created_at")
                labels = frozenset(job.get("labels") or ())
                start = _seconds(since or run["created_at"])
                yield Job(run["id"], job["name"], running, labels, start, job["html_url"], trains)


def _list_runners(api: "GitHub", runners_api: "GitHub", labels: frozenset[str]) -> list[Runner] | None:
    """Return the repository's runners; None where the fitting ones may be an organisation's, not listed."""
    own = [_runner(each) for each in runners_api.pages("/actions/runners", "runners")]
    is_listed = any(has_labels(each, labels) for each in own)
    is_shared = not is_listed and (api.get("").get("owner") or {}).get("type") == "Organization"
    return None if is_shared else own


def _runner(entry: Json) -> Runner:
    labels = frozenset(str(label["name"]) for label in entry.get("labels") or ())
    return Runner(str(entry["name"]), entry.get("status") == "online", bool(entry.get("busy")), labels)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
