"""Somebody hears exactly once of every job's end, with its cause and the next command.

The message about a job that could not report itself follows from all results and GitHub's sentence.
"""

import json
from itertools import product
from typing import Any

import pytest
from tests.cases import each_case
from tests.workflows.conftest import ROOT, read

from trainyard.github.job_end import (
    DEPLOYMENT,
    STEP_FAILURES,
    TRAINING,
    JobEnd,
    JobTexts,
    end_of_steps,
    unreported_end,
)

Needs = dict[str, Any]
RUN, ATTEMPT, EARLIER = "99", "2", "1"
AFTER = ("The operation was canceled.", "Process completed with exit code 1.")
"""Annotations that GitHub adds whatever the cause was."""


def job(result: str, **outputs: str) -> dict[str, Any]:
    return {"result": result, "outputs": {name: value for name, value in outputs.items() if value}}


def trained(result: str, **end: str) -> dict[str, Any]:
    return job(result, end=json.dumps(end) if any(end.values()) else "")


PLAN, NOT_DUE = ({"plan": job("success", plan=json.dumps({"jobs": {"train": due}}))} for due in (True, False))
ON_EKS = {"plan": job("success", plan=json.dumps({"jobs": {"eks": True}}))}
STOPPED = {"reported": ATTEMPT, "continues": ATTEMPT}
SITUATIONS: list[tuple[Needs, list[str]]] = [
    # GitHub's `needs`, where a job that is not named was skipped -> the jobs whose end is reported
    ({"plan": job("failure")}, ["plan"]),
    ({"plan": job("cancelled")}, ["plan"]),
    ({"plan": job("skipped")}, []),
    (NOT_DUE, []),
    (PLAN, ["train"]),  # cancelled between two jobs, which no result shows
    (PLAN | {"ready": job("failure")}, ["ready"]),
    (PLAN | {"ready": job("cancelled")}, ["ready"]),
    (PLAN | {"ready": job("success"), "train": trained("success", reported=ATTEMPT)}, []),
    *((PLAN | {"train": trained(result)}, ["train"]) for result in ("failure", "cancelled")),
    *((PLAN | {"train": trained(result, reported=ATTEMPT)}, []) for result in ("failure", "cancelled")),
    *(
        (PLAN | {"train": trained(result, reported=EARLIER)}, ["train"])
        for result in ("failure", "cancelled")
    ),
    (PLAN | {"train": trained("failure", **STOPPED), "continue": job("success")}, []),
    (PLAN | {"train": trained("failure", **STOPPED), "continue": job("failure")}, ["continue"]),
    (PLAN | {"train": trained("failure", **STOPPED), "continue": job("skipped")}, ["continue"]),
    (PLAN | {"train": trained("failure", continues=ATTEMPT), "continue": job("success")}, []),
    (PLAN | {"train": trained("cancelled", **STOPPED)}, []),  # somebody wants it to end
    (PLAN | {"train": trained("failure", reported=ATTEMPT, continues=EARLIER)}, []),
    (ON_EKS, ["eks"]),
    *((ON_EKS | {"eks": job(result)}, ["eks"]) for result in ("failure", "cancelled")),
    (ON_EKS | {"eks": job("failure", reported=ATTEMPT)}, []),
    (ON_EKS | {"eks": job("failure", reported=EARLIER)}, ["eks"]),
    (ON_EKS | {"eks": job("success")}, []),
]


def end_of(
    needs: Needs, *notes: str, machine: str = "gpu-1", level: str = "failure", title: str = ""
) -> JobEnd | None:
    """The end where GitHub has these annotations on each job, among those that follow every end."""
    found = [{"annotation_level": level, "title": title, "message": note} for note in notes]
    after = [{"annotation_level": "failure", "message": note} for note in AFTER]
    record = {"runner_name": machine, "annotations": [after[0], *found, after[1]]}
    return unreported_end(needs, run=RUN, attempt=ATTEMPT, records=lambda _: record)


def test_somebody_hears_of_each_end_of_a_training_exactly_once(training: Any, expressions: Any) -> None:
    """The job that reports may run in vain, but is never skipped where it has to report."""
    reporter = training.jobs["notify"]
    for given, expected in SITUATIONS:
        needs = {name: job("skipped") for name in TRAINING} | given
        end = end_of(needs)
        reason = end.reason if end else ""
        assert [name for name, words in TRAINING.items() if f"job {words.title} " in reason] == expected, (
            needs
        )
        assert end is None or ("gh run " in end.next_step and RUN in end.next_step)
        own = {name: each for name, each in needs.items() if name != "continue"}
        results = {each["result"] for each in own.values()}
        is_between = bool(expected) and not results & {"failure", "cancelled"}
        status = "cancelled" if is_between else "failure" if "failure" in results else "success"
        assert expressions.holds(reporter["if"], status=status, needs=own) or not expected, needs
    assert set(reporter["needs"]) == set(training.jobs) - {"notify", "wait"}  # nobody misses a reminder


def test_github_runs_one_run_fifty_times_and_then_a_new_one_is_suggested() -> None:
    needs = {"plan": job("success"), "ready": job("failure")}
    for attempt, start in (("49", "gh run "), ("50", "start a new run: gh workflow run")):
        end = unreported_end(needs, run=RUN, attempt=attempt, records=lambda _: {})
        assert end is not None and end.next_step.startswith(start)


def test_the_training_job_reports_one_end_with_its_reason() -> None:
    """Each step x its exit code x the segment x how GitHub ends the job."""
    names = ["check", "prepare", "fetch", "train", "store", "prove"]
    for status, segment, code, failing in product(
        ("failure", "cancelled"), (1, 2), ("", "1", "4"), ("setup", *names)
    ):
        at = names.index(failing) if failing in names else -1
        steps: dict[str, Any] = {
            name: {"outcome": "success" if i < at else "skipped"} for i, name in enumerate(names)
        }
        if at >= 0:
            steps[failing] = {"outcome": "failure", "outputs": {"exit_code": code, "reason": ""}}
        end = end_of_steps(steps, status=status, run=RUN, attempt="1", segment=segment)
        if status == "failure" and code == "4" and segment > 1 and failing in (*STEP_FAILURES, "store"):
            assert (end.event, end.continues) == ("degraded", True) and "tries again" in end.reason
            continue
        assert (end.event, end.continues) == ("failed", False)
        is_before = failing in ("setup", *STEP_FAILURES)
        assert end.next_step == (f"gh run view {RUN} --log-failed" if is_before else "")
        assert bool(end.reason) is (failing in STEP_FAILURES), "what trained has its reason on record"
    green = {name: {"outcome": "success"} for name in names}
    end = end_of_steps(green, status="success", run=RUN, attempt="1", segment=1)
    assert (end.event, end.continues) == ("succeeded", False)
    stopped = {
        "train": {"outcome": "failure", "outputs": {"exit_code": "75"}},
        "store": {"outcome": "success"},
    }
    for status, expected in (("failure", ("stopped", True)), ("cancelled", ("failed", False))):
        end = end_of_steps(stopped, status=status, run=RUN, attempt="1", segment=1)
        assert (end.event, end.continues) == expected, "what stopped early continues unless it was cancelled"


def test_what_need_not_be_trained_has_no_end() -> None:
    steps = {"fetch": {"outcome": "success", "outputs": {"skip": "run 7"}}, "train": {"outcome": "skipped"}}
    assert end_of_steps(steps, status="success", run=RUN, attempt="1", segment=1).event == ""


def test_a_reason_of_the_step_itself_is_reported() -> None:
    steps = {"check": {"outcome": "failure", "outputs": {"reason": "gpu: none"}}}
    assert end_of_steps(steps, status="failure", run=RUN, attempt="1", segment=1).reason == "gpu: none"


RERUN = f"gh run rerun {RUN}"
ALLOW = "gh api --method POST repos/{owner}/{repo}/environments/training/deployment-branch-policies"
SETTLE = f"settle what GitHub says, then {RERUN}"
GITHUB_SAYS: list[tuple[str, str, str, str]] = [
    # the result of the job, its machine, GitHub's sentence, how the next command begins
    ("failure", "", "The deployment was rejected or didn't satisfy other protection rules.", SETTLE),
    ("failure", "", "The job was not acquired by Runner of type hosted even after multiple attempts", SETTLE),
    (
        "failure",
        "",
        "There are no enabled runners online to process the request for more than 1 days.",
        SETTLE,
    ),
    ("failure", "", "The job was not started because recent account payments have failed.", SETTLE),
    ("failure", "", "GitHub Actions has encountered an internal error when running your job.", SETTLE),
    ("failure", "", "Runner version v2.320.0 is deprecated and cannot receive messages.", SETTLE),
    (
        "failure",
        "",
        'Tag "trainyard-lineage-9" is not allowed to deploy to training due to environment protection rules.',
        f"{ALLOW} -f name='trainyard-lineage-*' -f type=tag, then {RERUN}",
    ),
    (
        "failure",
        "",
        'Branch "fix/a" is not allowed to deploy to training due to environment protection rules.',
        f"{ALLOW} -f name='fix/a' -f type=branch, then {RERUN}",
    ),
    (
        "cancelled",
        "",
        "The job has exceeded the maximum execution time while awaiting a runner for 24h0m0s",
        SETTLE,
    ),
    ("cancelled", "", "Canceling since a higher priority waiting request for trainyard-gpu exists", SETTLE),
    ("cancelled", "", "The run was canceled by @anna.", RERUN),
    ("cancelled", "gpu-1", "The run was canceled by @anna.", RERUN),
    ("cancelled", "gpu-1", "The run was canceled by @github-actions[bot].", RERUN),
    ("cancelled", "gpu-1", "The job has exceeded the maximum execution time of 8h0m0s", RERUN),
    ("failure", "gpu-1", "The self-hosted runner: gpu-1 lost communication with the server.", "gh run view"),
    ("failure", "gpu-1", "The runner has received a shutdown signal.", "gh run view"),
    ("failure", "gpu-1", "The hosted runner encountered an error while running your job.", "gh run view"),
    ("failure", "gpu-1", "Unable to resolve action `o/r@v9`, unable to find version `v9`", "gh run view"),
]


def test_the_cause_of_an_end_is_githubs_own_sentence() -> None:
    for result, machine, sentence, following in GITHUB_SAYS:
        needs = {"plan": job("success"), "ready": job("success"), "train": job(result)}
        end = end_of(needs, sentence, machine=machine)
        assert end is not None
        ended = "failed" if result == "failure" else "was cancelled"
        effect = "stay on the runner" if machine else "nothing was trained"
        assert end.reason.startswith(f"the job Train and prove {ended} ({sentence.rstrip('.')}): "), end
        assert end.reason.endswith(effect)
        assert end.next_step.startswith(following), (sentence, end.next_step)
        assert end.by_person is ("@anna" in sentence)


def test_a_warning_is_no_cause_and_an_error_of_a_step_has_its_title() -> None:
    lost = {"plan": job("success"), "train": job("failure")}
    end = end_of(lost, "Node.js 20 actions are deprecated.", level="warning")
    assert end is not None and "failed (GitHub names no cause): " in end.reason
    assert end.next_step == f"gh run view {RUN} --log-failed, then {RERUN} --failed"
    refused = end_of({"plan": job("failure")}, "a.yaml:3: unknown key", title="Wrong configuration")
    assert refused is not None
    assert (
        refused.reason
        == "the job Plan failed (Wrong configuration: a.yaml:3: unknown key): nothing was started"
    )
    own = end_of({"plan": job("success"), "continue": job("failure", reason="it did not move on")}, "other")
    assert own == JobEnd("it did not move on", f"{RERUN} --failed", by_person=False)


@each_case("result", ["failure", "cancelled"])
@each_case("name", DEPLOYMENT)
def test_the_report_of_a_cluster_names_the_job_that_ended_it(name: str, result: str) -> None:
    before = list(DEPLOYMENT)[: list(DEPLOYMENT).index(name)]
    needs = {each: job("success" if each in before else "skipped") for each in DEPLOYMENT}
    end = end_of(needs | {name: job(result)})
    assert end is not None
    ended = "failed" if result == "failure" else "was cancelled"
    assert end.reason.startswith(f"the job {DEPLOYMENT[name].title} {ended}")


def test_a_deployment_that_was_cancelled_between_two_jobs_is_reported() -> None:
    needs = {name: job("success") for name in DEPLOYMENT}
    needs |= {"watch": job("success", ended="true"), "prove": job("skipped")}
    end = end_of(needs)
    assert end is not None
    assert end.reason.startswith("the run was cancelled before the job Prove it from outside started")
    needs["watch"] = job("success", ended="false")
    assert end_of(needs) is None, "the job still runs"
    assert end_of({name: job("success") for name in DEPLOYMENT}) is None


@pytest.mark.parametrize(
    ("file", "table", "reporter"),
    [("training_ci.yml", TRAINING, "notify"), ("deploy_eks.yml", DEPLOYMENT, "report")],
)
def test_the_jobs_have_the_names_that_github_lists(
    file: str, table: dict[str, JobTexts], reporter: str
) -> None:
    jobs = read(ROOT / ".github" / "workflows" / file).jobs
    assert {name: words.title for name, words in table.items()} == {
        name: jobs.get(name, jobs[reporter])["name"] for name in table
    }
    assert set(jobs[reporter]["needs"]) == set(table) & set(jobs)
    rights = jobs[reporter]["permissions"]
    assert (rights["actions"] in ("read", "write"), rights["checks"]) == (True, "read")
    for words in table.values():
        assert set(words.explained_by) <= set(table)
