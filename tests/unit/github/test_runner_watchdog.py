"""A round of the watchdog with a GitHub in memory: one resumption per dead run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from trainyard.errors import ServiceError, ServiceTroubleError
from trainyard.gateways.github_api import GitHub
from trainyard.github import runner_watchdog
from trainyard.github.continuation import MOST_DEATHS
from trainyard.github.runners import Job, Orphan, Outage
from trainyard.run.segment import Segment

NOW = 1_800_000_000.0
GPU = frozenset({"self-hosted", "gpu"})
WORKFLOW = "training_ci.yml"
OWN = {"repository": {"id": 1}, "head_repository": {"id": 1}}
LOST = "The self-hosted runner: gpu-1 lost communication with the server. Verify the machine is running."
FIRST = Segment("7", 1, 812, "0123456789abcdef0123456789abcdef01234567")
PLAN: dict[str, Any] = {
    "inputs": {
        "target": "gpu-runner",
        "config": "x.yaml",
        "overrides": "a.b=1",
        "epochs": "",
        "resume": "none",
    },
    "segment": json.loads(FIRST.to_text()),
    "ref": "main",
    "store": "s3://ml-runs",
    "most_segments": 20,
}


def at(minutes_ago: float) -> str:
    return datetime.fromtimestamp(NOW - 60 * minutes_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Memory(GitHub):
    """The part of GitHub that a round uses; records every change."""

    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    plan: str = json.dumps(PLAN)
    changed: list[tuple[str, Any]] = field(default_factory=list)
    refuses: bool = False
    files: dict[str, str] = field(default_factory=lambda: {"main": "same", FIRST.commit: "same"})
    """Branch or commit -> the digest of its workflow file."""
    tags: set[str] = field(default_factory=set)
    can_tag: bool = True
    downloads: list[Exception] = field(default_factory=list)

    def pages(self, path: str, key: str = "", **query: Any) -> Iterator[Any]:
        status = f" {query['status']}" if "status" in query else ""
        yield from self.lists.get(path + status, [])

    def get(self, path: str, **query: Any) -> Any:
        if path.startswith("/contents/"):
            if query["ref"] not in self.files:
                raise ServiceError("404")
            return {"sha": self.files[query["ref"]]}
        if path.startswith("/git/ref/") and path.removeprefix("/git/ref/tags/") not in self.tags:
            raise ServiceError("404")
        return {"workflow_runs": self.runs} if path.endswith("/runs") else {"id": 4}

    def post(self, path: str, body: Any = None, *, again: bool = False) -> Any:
        if path == "/git/refs":
            if not self.can_tag:
                raise ServiceError("403")
            self.tags.add(body["ref"].removeprefix("refs/tags/"))
            return
        if self.refuses:
            raise ServiceError("409")
        self.changed.append((path, body))

    def dispatch(self, workflow: str, *, ref: str, inputs: Any) -> str:
        if self.refuses:
            raise ServiceError("422 No ref found")
        self.changed.append((f"{workflow}@{ref}", inputs))
        return "https://x/8"

    def artifact_file(self, artifact: int, name: str) -> bytes | None:
        if self.downloads:
            raise self.downloads.pop()
        return self.plan.encode() if (artifact, name) == (31, "plan.json") else None


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
    assert [o.key for o in runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW).outages] == [
        "stuck gpu-1"
    ]
    seen = runner_watchdog.find_outages(github, None, WORKFLOW, GPU, now=NOW)
    assert [(o.key, "20 minutes" in o.title) for o in seen.outages] == [("waiting", True)]
    assert seen.orphans == ()


OUTAGE = Outage("offline gpu-1", "GPU runner gpu-1 is offline", "sudo ./svc.sh status")


def test_only_a_problem_found_by_two_looks_is_an_outage() -> None:
    job = Job(7, "Train and prove", True, GPU, NOW, "https://x/7", trains=True)
    stays, passes = Orphan(job, "495 minutes", force=False), Orphan(replace(job, run=8), "", force=False)
    other = Outage("stuck gpu-1", "", "")
    first = runner_watchdog.WatchFindings((OUTAGE, other), (stays, passes))
    later = replace(stays, reason="497 minutes")
    again = replace(OUTAGE, title="still")
    second = runner_watchdog.WatchFindings((again, Outage("missing", "", "")), (later,))
    assert runner_watchdog.keep_confirmed(first, second) == runner_watchdog.WatchFindings((again,), (later,))


def test_an_orphaned_job_is_cancelled_even_if_it_ended_meanwhile() -> None:
    job = Job(7, "Train and prove", True, GPU, NOW, "https://x/7", trains=True)
    found = (Orphan(job, "it has run too long", force=False), Orphan(job, "still", force=True))
    github = Memory()
    assert len(runner_watchdog.cancel_orphans(github, found, dry_run=False)) == 2
    assert [path for path, _ in github.changed] == ["/actions/runs/7/cancel", "/actions/runs/7/force-cancel"]
    assert len(runner_watchdog.cancel_orphans(Memory(refuses=True), found, dry_run=False)) == 2
    github = Memory()
    runner_watchdog.cancel_orphans(github, found, dry_run=True)
    assert github.changed == []


def dead_run(**changes: Any) -> Memory:
    run = {"id": 7, "status": "completed", "conclusion": "failure", "updated_at": at(5)}
    run |= {"display_title": "Change the loss", "html_url": "https://x/7", **OWN, **changes}
    job = {"id": 70, "name": "Train and prove", "status": "completed", "conclusion": "failure"}
    lists: dict[str, list[dict[str, Any]]] = {
        "/actions/runs/7/jobs": [{"id": 69, "name": "Check and plan", "status": "completed"}, job],
        "/check-runs/70/annotations": [{"message": "Process completed."}, {"message": LOST}],
        "/actions/runs/7/artifacts": [
            {"id": 29, "name": "plan-1"},
            {"id": 31, "name": "plan-2"},
            {"id": 33, "name": "training-812-1"},
            {"id": 35, "name": "plan-3", "expired": True},
        ],
    }
    return Memory(lists, [run])


def test_a_run_whose_runner_died_is_resumed_in_the_next_segment() -> None:
    github = dead_run()
    [dead] = runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)
    assert dead.following == FIRST.next(step=0, died=True)
    assert runner_watchdog.resume_all(github, [dead], "training_ci.yml", dry_run=False) == ([dead], [])
    [(asked, inputs)] = github.changed
    assert asked == "training_ci.yml@main"
    # No step is known, so the next segment begins as this one did.
    assert (inputs["resume"], inputs["overrides"]) == ("none", "a.b=1")
    assert json.loads(inputs["continues"])["number"] == 2


@pytest.mark.parametrize("can_tag", [True, False])
@pytest.mark.parametrize("file", ["same", "newer", ""], ids=["same", "newer", "deleted"])
def test_a_dead_run_is_resumed_from_its_tag_where_its_branch_will_not_do(file: str, can_tag: bool) -> None:
    github = dead_run()
    github.can_tag, github.files = can_tag, {FIRST.commit: "same"} | ({"main": file} if file else {})
    found = runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)
    resumed, failures = runner_watchdog.resume_all(github, found, "training_ci.yml", dry_run=False)
    place = "main" if file == "same" else "trainyard-lineage-7"
    if place != "main" and not can_tag:
        assert (resumed, github.changed) == ([], [])
        assert "git push origin trainyard-lineage-7" in failures[0].next_step
        return
    assert (resumed, failures) == (found, [])
    assert [path for path, _ in github.changed] == [f"training_ci.yml@{place}"]


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


def test_trouble_with_one_run_does_not_end_the_look() -> None:
    github = dead_run()
    github.runs = [{**github.runs[0], "id": 6}, *github.runs]
    for path in ("/actions/runs/{}/jobs", "/actions/runs/{}/artifacts"):
        github.lists[path.format(6)] = github.lists[path.format(7)]
    github.downloads = [ServiceError("GitHub refused GET /actions/artifacts/31/zip: 410 Gone")]
    gone, dead = runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)
    assert (gone.run, gone.following) == (6, None)
    assert "410 Gone" in gone.reason
    assert dead.following is not None
    github.downloads = [ServiceTroubleError("502")]  # the next poll tries again
    assert [each.run for each in runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)] == [7]


def test_a_run_that_cannot_be_resumed_is_reported() -> None:
    github = dead_run()
    found = runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)
    assert runner_watchdog.resume_all(github, found, "training_ci.yml", dry_run=True) == (found, [])
    assert github.changed == []
    github.refuses = True
    resumed, [outage] = runner_watchdog.resume_all(github, found, "training_ci.yml", dry_run=False)
    assert (resumed, outage.key) == ([], "resume 7")
    assert "422 No ref found" in outage.next_step
    github.refuses = False
    assert runner_watchdog.resume_all(github, found, "training_ci.yml", dry_run=False) == (found, [])
    assert len(github.changed) == 1


def test_a_run_with_a_next_segment_is_not_resumed_again() -> None:
    github = dead_run()
    later = {"id": 8, "status": "queued", "display_title": "lineage 7 segment 2", **OWN}
    github.runs.insert(0, later)
    assert runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW) == []


def test_a_run_that_dies_repeatedly_is_given_up_and_named() -> None:
    github = dead_run()
    github.plan = json.dumps(PLAN | {"segment": {**PLAN["segment"], "deaths": MOST_DEATHS}})
    [dead] = runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)
    assert dead.following is None
    outage = runner_watchdog.report_unresumed(dead)
    assert (outage.key, outage.next_step) == ("dead 7", "gh run rerun 7 --failed")
    assert "3 segments in a row lost their runner" in outage.title
    github.plan = "no plan"
    assert (
        "its plan cannot be read"
        in runner_watchdog.find_dead_runs(github, "training_ci.yml", now=NOW)[0].reason
    )


@pytest.mark.parametrize("may_list", [True, False])
@pytest.mark.parametrize("owner", ["Organization", "User"])
def test_runners_of_the_organisation_are_asked_for_if_the_repository_has_none(
    caplog: pytest.LogCaptureFixture, owner: str, may_list: bool
) -> None:
    box = {"name": "gpu-1", "status": "online", "busy": True, "labels": [{"name": n} for n in GPU]}

    class Owned(Memory):
        def get(self, path: str, **query: Any) -> Any:
            return super().get(path, **query) if path else {"owner": {"type": owner}}

        def organisation_pages(self, path: str, key: str) -> Iterator[Any]:
            if not may_list:
                raise ServiceError("403 Resource not accessible by personal access token")
            yield {**box, "version": "2.300.0"}

    waits = {"status": "queued", "name": "Train and prove", "created_at": at(20), "html_url": "https://x/7"}
    github = Owned(
        {
            "/actions/runs queued": [{"id": 7, "created_at": at(30)}],
            "/actions/runs/7/jobs": [{**waits, "labels": sorted(GPU)}],
            "/actions/runners": [],
        }
    )
    found = runner_watchdog.find_outages(github, github, WORKFLOW, GPU, now=NOW)
    expected = {("Organization", True): "version 2.300.0", ("Organization", False): "waiting"}
    assert [each.key for each in found.outages] == [expected.get((owner, may_list), "missing")]
    assert ("Self-hosted runners: read" in caplog.text) is (owner == "Organization" and not may_list)
