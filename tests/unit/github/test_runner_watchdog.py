"""A round of the watchdog with a GitHub in memory: one resumption per dead run."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from trainyard.errors import ServiceError
from trainyard.gateways.github_api import GitHub
from trainyard.github import runner_watchdog

NOW = 1_800_000_000.0
GPU = frozenset({"self-hosted", "gpu"})
WORKFLOW = "training_ci.yml"
OWN = {"repository": {"id": 1}, "head_repository": {"id": 1}}
LOST = "The self-hosted runner: gpu-1 lost communication with the server. Verify the machine is running."


def at(minutes_ago: float) -> str:
    return datetime.fromtimestamp(NOW - 60 * minutes_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Memory(GitHub):
    """The part of GitHub that a round uses; records every change."""

    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    changed: list[tuple[str, Any]] = field(default_factory=list)
    refuses: bool = False

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Any]:
        status = f" {query['status']}" if "status" in query else ""
        yield from self.lists.get(path + status, [])

    def get(self, path: str, **query: Any) -> Any:
        return {"workflow_runs": self.runs} if path.endswith("/runs") else {"id": 4}

    def post(self, path: str, body: Any = None) -> Any:
        if self.refuses:
            raise ServiceError("409")
        self.changed.append((path, body))


def test_a_poll_gathers_runners_and_the_jobs_that_wait_or_run() -> None:
    waits = {"status": "queued", "name": "Train and prove", "created_at": at(20), "html_url": "https://x/7"}
    runs = {"status": "in_progress", "name": "lint", "started_at": at(1), "html_url": "https://x/7"}
    github = Memory(
        {
            "/actions/runs queued": [{"id": 7, "created_at": at(30)}],
            "/actions/runs/7/jobs": [
                {**waits, "labels": ["self-hosted", "gpu"]},
                {**runs, "labels": ["ubuntu-24.04"]},
                {"status": "completed", "name": "plan"},
            ],
            "/actions/runners": [
                {"name": "gpu-1", "status": "online", "busy": False, "labels": [{"name": n} for n in GPU]}
            ],
        }
    )
    assert [o.key for o in runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW)] == [
        "stuck gpu-1"
    ]
    seen = runner_watchdog.find_outages(github, None, WORKFLOW, GPU, now=NOW)
    assert [(o.key, "20 minutes" in o.title) for o in seen] == [("waiting", True)]


def dead_run(**changes: Any) -> Memory:
    run = {"id": 7, "status": "completed", "conclusion": "failure", "updated_at": at(5)}
    run |= {"display_title": "Change the loss", "html_url": "https://x/7", **OWN, **changes}
    job = {"id": 70, "name": "Train and prove", "status": "completed", "conclusion": "failure"}
    lists: dict[str, list[dict[str, Any]]] = {
        "/actions/runs/7/jobs": [{"id": 69, "name": "Check and plan", "status": "completed"}, job],
        "/check-runs/70/annotations": [{"message": "Process completed."}, {"message": LOST}],
    }
    return Memory(lists, [run])


def test_a_run_whose_runner_died_is_resumed_by_its_next_attempt() -> None:
    """It has the commit, the workflow file and the plan of the first attempt, whatever the branch has now."""
    github = dead_run()
    found = runner_watchdog.find_dead_runs(github, WORKFLOW, now=NOW)
    assert runner_watchdog.resume_all(github, found, dry_run=True) == (found, [])
    assert github.changed == []
    assert runner_watchdog.resume_all(github, found, dry_run=False) == (found, [])
    assert [path for path, _ in github.changed] == ["/actions/runs/7/rerun-failed-jobs"]
    github.refuses = True
    resumed, [outage] = runner_watchdog.resume_all(github, found, dry_run=False)
    assert (resumed, outage.key) == ([], "resume 7")
    assert "409" in outage.next_step


@pytest.mark.parametrize(
    "changes",
    [
        {"conclusion": "success"},
        {"status": "in_progress"},
        {"updated_at": at(25 * 60)},
        {"head_repository": {"id": 2}},
        {"head_repository": None},
    ],
)
def test_successful_running_and_old_runs_and_those_of_a_fork_are_not_resumed(changes: dict[str, str]) -> None:
    assert runner_watchdog.find_dead_runs(dead_run(**changes), "training_ci.yml", now=NOW) == []


def test_a_run_that_failed_or_was_cancelled_is_not_resumed() -> None:
    github = dead_run(conclusion="cancelled")
    github.lists["/check-runs/70/annotations"] = [{"message": "The operation was canceled."}]
    assert runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW) == []
    github = dead_run()
    github.lists["/actions/runs/7/jobs"].pop()
    assert runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW) == []


@pytest.mark.parametrize(
    ("by", "resumed"), [("octocat", 0), ("github-actions-fan", 0), ("github-actions[bot]", 1)]
)
@pytest.mark.parametrize("word", ["canceled", "Cancelled"])
def test_a_cancelled_run_is_not_resumed_even_if_its_runner_was_shut_down(
    by: str, resumed: int, word: str
) -> None:
    github = dead_run(conclusion="cancelled")
    github.lists["/check-runs/70/annotations"].append({"message": f"The run was {word} by @{by}."})
    assert len(runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)) == resumed


def test_a_run_that_dies_repeatedly_is_given_up_and_named() -> None:
    github = dead_run(run_attempt=runner_watchdog.MOST_ATTEMPTS)
    [dead] = runner_watchdog.find_dead_runs(github, WORKFLOW, now=NOW)
    assert runner_watchdog.resume_all(github, [dead], dry_run=False) == ([], [])
    outage = runner_watchdog.report_unresumed(dead)
    assert (outage.key, outage.next_step) == ("dead 7", "gh run rerun 7")
    assert "lost its runner in 3 attempts" in outage.title


def test_runners_of_an_organisation_are_not_listed_and_judged_by_the_jobs_that_wait() -> None:
    class Owned(Memory):
        owner = ""

        def get(self, path: str, **query: Any) -> Any:
            return super().get(path, **query) if path else {"owner": {"type": self.owner}}

    waits = {"status": "queued", "name": "Train and prove", "created_at": at(20), "html_url": "https://x/7"}
    github = Owned(
        {
            "/actions/runs queued": [{"id": 7, "created_at": at(30)}],
            "/actions/runs/7/jobs": [{**waits, "labels": sorted(GPU)}],
            "/actions/runners": [],
        }
    )
    for github.owner, expected in (("Organization", "waiting"), ("User", "missing")):
        found = runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW)
        assert [each.key for each in found] == [expected]
