"""The text about a job, for every state: the result first, the next command last; its outputs and summary."""

from typing import Any

from tests.cases import each_case
from tests.unit.jobs.state.shapes import ended, job, running, seen

from trainyard.errors import ExitCode
from trainyard.jobs.job_reader import event_records, list_entry
from trainyard.jobs.state.job_state import JobFailure, JobState, PodCounts, State, Waiting
from trainyard.jobs.state.state_machine import judge_job
from trainyard.report.jobs.job_actions import state_error, state_markdown, state_outputs
from trainyard.report.jobs.job_text import (
    change_lines,
    event_lines,
    job_age,
    list_lines,
    progress_line,
    status_lines,
)
from trainyard.watch.failure_classes import FailureClass

FAILURE = JobFailure(
    FailureClass.HOST_MEMORY,
    ("job-worker-0 on gpu-3: container pytorch ended with exit code 137: it used more memory",),
    rank=1,
    exit_code=137,
    pod="job-worker-0",
    node="gpu-3",
    lines=("step 41", "Killed"),
)


def state(which: State, **more: Any) -> JobState:
    failure = FAILURE if which is State.FAILED else None
    return JobState(
        "llama", "team", "pytorchjob", which, "because", failure=failure, pods=PodCounts(4, 4), **more
    )


@each_case("which", State)
@each_case("width", [40, 79, 200])
def test_the_result_comes_first_and_lines_fit(which: State, width: int) -> None:
    waiting = Waiting(FailureClass.QUOTA, "because") if which is State.QUEUED else None
    lines = status_lines(state(which, waiting=waiting).record(), width=width)
    assert lines[0] == f"llama (pytorchjob) in team: {which}"
    wrapped = [line for line in lines if not line.lstrip().startswith("next")]
    assert all(len(line) <= max(width, 46) for line in wrapped)
    assert ("next" in lines[-1]) == (which is not State.UNKNOWN)


def test_a_failure_is_told_with_its_place_and_its_last_lines() -> None:
    text = "\n".join(status_lines(state(State.FAILED, restarts=2, retries=1).record(), width=100))
    for word in (
        "oom-host",
        "rank 1, exit code 137, pod job-worker-0, node gpu-3",
        "    Killed",
        "2 by the operator",
    ):
        assert word in text
    assert "trainyard job logs llama --previous --tail 50 --namespace team" in text


def test_pods_that_hold_their_gpus_are_said_with_what_ends_them() -> None:
    lines = status_lines(state(State.SUCCEEDED, holds_resources=True).record(), width=100)
    assert any("still hold" in line for line in lines)
    assert "delete llama" in lines[-1]
    assert progress_line(state(State.RUNNING, restarts=1).record()) == "llama: Running (because, 1 restart)"


def test_jobs_are_listed_with_their_age() -> None:
    raw = job("pytorchjob")
    raw["metadata"]["creationTimestamp"] = "2026-11-18T00:00:00Z"
    observed = seen("pytorchjob", raw, [*running(1), ended(1, rank=1)])
    lines = list_lines([list_entry(judge_job(observed), observed)], width=200)
    assert lines[0].split()[:4] == ["namespace", "job", "kind", "status"]
    assert lines[1].split()[:4] == ["team", "job", "pytorchjob", "Restarting"]
    assert "no jobs" in list_lines([], width=80)[0]


def test_jobs_that_wait_for_the_same_reason_state_it_once_below_them() -> None:
    waits = {**state(State.QUEUED).record(), "age_seconds": 60.0, "reason": "Kueue has no quota"}
    runs = {**state(State.RUNNING).record(), "age_seconds": 60.0}
    lines = list_lines([waits, waits, runs], width=100)
    assert [line.split()[0] for line in lines] == ["namespace", "team", "team", "Kueue", "team"]


def test_events_are_listed_with_the_newest_last() -> None:
    events: list[dict[str, Any]] = [
        {
            "reason": "B",
            "type": "Warning",
            "message": "two\nlines",
            "count": 3,
            "lastTimestamp": "2026-11-20T00:00:09Z",
        },
        {"reason": "A", "type": "Normal", "message": "one", "eventTime": "2026-11-20T00:00:01.000000Z"},
        {"reason": "C", "series": {"count": 7, "lastObservedTime": "2026-11-20T00:00:10Z"}},
    ]
    records = event_records(events, now=1_795_132_820.0)
    assert [(record["reason"], record["count"]) for record in records] == [("A", 1), ("B", 3), ("C", 7)]
    assert any("two lines (3 times)" in line for line in event_lines(records, width=100))
    assert "no events" in event_lines([], width=80)[0]


def test_ages_have_one_unit() -> None:
    ages = {None: "?", -1: "0 s", 59: "59 s", 60: "1 m", 7300: "2 h", 200_000: "2 d"}
    assert {seconds: job_age(seconds) for seconds in ages} == ages


def test_changes_are_said_as_done_or_as_what_would_be() -> None:
    changes = ["delete pytorchjobs/llama", "suspend x/y", "deactivate x/y", "create x/y"]
    done = change_lines({"changed": True, "changes": changes})
    assert done == ["deleted pytorchjobs/llama", "suspended x/y", "deactivated x/y", "created x/y"]
    assert change_lines({"changed": False, "changes": changes})[0] == "would delete pytorchjobs/llama"


@each_case("which", State)
def test_only_an_end_is_told_as_one(which: State) -> None:
    found = state(which)
    data, code = found.record(), found.exit_code
    outputs = state_outputs(data, exit_code=code)
    assert (outputs["status"], outputs["ended"]) == (which.value, "true" if found.ended else "false")
    assert outputs["exit_code"] == str(int(code))
    assert (state_error(data, exit_code=code) is not None) == (which in (State.FAILED, State.UNKNOWN))
    assert code is not ExitCode.DONE or which is State.SUCCEEDED


def test_the_summary_of_a_failure_has_its_place_its_lines_and_the_next_command() -> None:
    text = state_markdown(state(State.FAILED).record())
    assert text.startswith("### ❌ Failed: pytorchjob `llama`")
    assert "class **oom-host**, rank 1, exit code 137, pod job-worker-0, node gpu-3" in text
    assert "~~~~~~\nstep 41\nKilled\n~~~~~~" in text
    assert "Next: `trainyard job logs llama" in text
    assert FAILURE.evidence[0] not in text.splitlines()[0]
    assert state_markdown(state(State.RUNNING).record()).startswith("### ⏳ Running")
    assert state_markdown(state(State.SUCCEEDED).record()).startswith("### ✅ Succeeded")
