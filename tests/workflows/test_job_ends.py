"""Somebody hears exactly once of every job's end, with its cause and the next command.

Each job x each result x whether the job reported itself, in every combination that the conditions allow; the
expected message follows from a rule that is written here a second time, by what people need to know.
"""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from tests.workflows.conftest import PIPELINE

from trainyard.github.job_end import TRAINING, JobEnd, job_of_call, rerun_command, unreported_end

Needs = dict[str, Any]
RESULTS = ("success", "failure", "cancelled", "skipped")
RUN, PLAN, ATTEMPT, EARLIER = "99", 7, "2", "1"
AFTER = ("The operation was canceled.", "Process completed with exit code 1.")
"""Annotations that GitHub adds whatever the cause was."""


def job(result: str, **outputs: str) -> dict[str, Any]:
    return {"result": result, "outputs": {name: value for name, value in outputs.items() if value}}


def trained(result: str, **end: str) -> dict[str, Any]:
    return job(result, end=json.dumps(end) if any(end.values()) else "")


def ends_of_training() -> Iterator[Needs]:
    """Every `needs` that the last job can see, with its own step Continue as the end of a job."""
    for plan, trains in product(RESULTS, ("true", "false")):
        base = {"plan": job(plan, trains=trains if plan == "success" else "")}
        base |= {"train": job("skipped"), "continue": job("skipped")}
        if plan != "success" or trains == "false":
            yield base
            continue
        for result, reported, of in product(RESULTS, ("", EARLIER, ATTEMPT), ("", EARLIER, ATTEMPT)):
            if result == "success" and of == ATTEMPT:
                continue  # a job whose run continues is red
            if result == "skipped" and ATTEMPT in (reported, of):
                continue  # a job that does not run has outputs of an earlier attempt at most
            due = of == ATTEMPT and result in ("success", "failure")
            for following in RESULTS if due else ("skipped",):
                found = base | {"train": trained(result, reported=reported, continues=of)}
                yield found | {"continue": job(following)}


def reported_in(needs: Needs, name: str) -> str:
    outputs = needs[name]["outputs"]
    return str(json.loads(outputs.get("end", "{}")).get("reported") or outputs.get("reported") or "")


def unheard_of(needs: Needs) -> list[str]:
    """The rule: the jobs whose end the last job has to report."""
    found = []
    for name in ("plan", "train", "continue"):
        is_bad = needs[name]["result"] in ("failure", "cancelled")
        if name == "train" and needs["continue"]["result"] == "success":
            continue  # stopped early, stored, and continued by the next segment: no end
        if is_bad and reported_in(needs, name) != ATTEMPT:
            found.append(name)
    if found:
        return found + follow_up(needs)
    if needs["plan"]["outputs"].get("trains") == "true" and needs["train"]["result"] == "skipped":
        return ["train"]  # cancelled between two jobs, which no result shows
    return follow_up(needs)


def follow_up(needs: Needs) -> list[str]:
    """A segment that stopped early says that another one follows; somebody has to hear if none does."""
    train = needs["train"]
    is_due = json.loads(train["outputs"].get("end", "{}")).get("continues") == ATTEMPT
    is_due = is_due and train["result"] in ("success", "failure")
    return ["continue"] if is_due and needs["continue"]["result"] == "skipped" else []


def end_of(
    needs: Needs, *notes: str, machine: str = "gpu-1", level: str = "failure", title: str = ""
) -> JobEnd | None:
    """The end where GitHub has these annotations on each job, among those that follow every end."""
    found = [{"annotation_level": level, "title": title, "message": note} for note in notes]
    after = [{"annotation_level": "failure", "message": note} for note in AFTER]
    record = {"id": PLAN, "runner_name": machine, "annotations": [after[0], *found, after[1]]}
    return unreported_end(needs, run=RUN, attempt=ATTEMPT, records=lambda _: record)


def test_somebody_hears_of_each_end_of_a_training_exactly_once() -> None:
    seen = 0
    for needs in ends_of_training():
        expected = unheard_of(needs)
        end = end_of(needs)
        assert (end is not None) is bool(expected), needs
        if end is None:
            continue
        seen += 1
        parts = end.reason.split("; ")
        for name in expected:
            title, result = TRAINING[name].title, needs[name]["result"]
            words = {
                "failure": f"the job {title} failed (",
                "cancelled": f"the job {title} was cancelled (",
                "skipped": f"the run was cancelled before the job {title} started",
            }[result]
            assert sum(part.startswith(words) for part in parts) == 1, (needs, end.reason)
        others = [TRAINING[name] for name in TRAINING if name not in expected]
        assert not any(f"job {each.title} " in end.reason for each in others)
        assert RERUN in end.next_step or end.next_step == f"gh run view {RUN} --log-failed"
    assert seen >= 27


def test_the_job_that_reports_runs_where_there_is_something_to_report(expressions: Any) -> None:
    """It may run in vain, which costs a minute; it may never be skipped where somebody has to hear."""
    job = PIPELINE.jobs["notify"]
    for needs in ends_of_training():
        own = {name: each for name, each in needs.items() if name != "continue"}
        results = {each["result"] for each in own.values()}
        unheard = unheard_of(needs)
        status = "failure" if "failure" in results else "cancelled"
        runs = expressions.holds(job["if"], status=status, needs=own)
        assert runs or not unheard, needs
    assert set(job["needs"]) == set(PIPELINE.jobs) - {"notify", "wait"}  # nobody misses a reminder


def test_github_runs_one_run_fifty_times_and_then_a_new_one_is_suggested() -> None:
    needs = {"plan": job("success"), "continue": job("failure")}
    for attempt, start in (("49", "gh run "), ("50", "start a new run: gh workflow run")):
        end = unreported_end(needs, run=RUN, attempt=attempt, records=lambda _: {})
        assert end is not None and end.next_step.startswith(start)


RERUN = f"gh run rerun --job {PLAN}"
ALLOW = "gh api --method POST repos/{owner}/{repo}/environments/training/deployment-branch-policies"
SETTLE = f"settle what GitHub says, then {RERUN}"
GITHUB_SAYS: list[tuple[str, str, str, str]] = [
    # the result of the job, its machine, GitHub's sentence, how the next command begins
    ("failure", "", "The deployment was rejected or didn't satisfy other protection rules.", SETTLE),
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
    ("cancelled", "", "Canceling since a higher priority waiting request for trainyard-gpu exists", SETTLE),
    ("cancelled", "", "The run was canceled by @anna.", RERUN),
    ("cancelled", "gpu-1", "The run was canceled by @anna.", RERUN),
    ("cancelled", "gpu-1", "The run was canceled by @github-actions[bot].", RERUN),
    ("cancelled", "gpu-1", "The job has exceeded the maximum execution time of 8h0m0s", RERUN),
    ("failure", "gpu-1", "The self-hosted runner: gpu-1 lost communication with the server.", "gh run view"),
]


def test_the_cause_of_an_end_is_githubs_own_sentence() -> None:
    for result, machine, sentence, following in GITHUB_SAYS:
        needs = {"plan": job("success"), "train": job(result)}
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
    assert end.next_step == f"gh run view {RUN} --log-failed, then {RERUN}"
    refused = end_of({"plan": job("failure")}, "a.yaml:3: unknown key", title="Wrong configuration")
    assert refused is not None
    failed = "the job Plan failed (Wrong configuration: a.yaml:3: unknown key)"
    assert refused.reason == f"{failed}: nothing was started"
    own = end_of({"plan": job("success"), "continue": job("failure", reason="it did not move on")}, "other")
    assert own == JobEnd("it did not move on", RERUN, by_person=False)


def test_a_run_that_starts_again_from_its_plan_has_somebody_who_waits_for_a_runner() -> None:
    """GitHub runs a job again together with all that need it, and keeps the results of the others."""
    given = {name: job.get("needs", []) for name, job in PIPELINE.jobs.items()}
    needs = {name: {each} if isinstance(each, str) else set(each) for name, each in given.items()}

    def runs_again(first: str) -> set[str]:
        found = {first}
        for _ in needs:
            found |= {name for name, others in needs.items() if others & found}
        return found

    assert runs_again("plan") == set(PIPELINE.jobs)
    assert "wait" not in runs_again("train")  # so `gh run rerun --failed` is not what a message names
    jobs = [
        {"id": 1, "name": "a / Plan"},
        {"id": 2, "name": "b / Plan"},
        {"id": 3, "name": "b / Continue or notify", "runner_name": "hosted 9", "status": "in_progress"},
    ]
    assert rerun_command(RUN, job_of_call(jobs, "Plan", "hosted 9")) == "gh run rerun --job 2"
    assert rerun_command(RUN, job_of_call([], "Plan", "hosted 9")) == f"gh run rerun {RUN}"


def test_the_jobs_have_the_names_that_github_lists() -> None:
    jobs = PIPELINE.jobs
    assert {name: words.title for name, words in TRAINING.items()} == {
        name: jobs.get(name, jobs["notify"])["name"] for name in TRAINING
    }
    assert set(jobs["notify"]["needs"]) == set(TRAINING) & set(jobs)
    rights = jobs["notify"]["permissions"]
    assert (rights["actions"], rights["checks"]) == ("write", "read")
