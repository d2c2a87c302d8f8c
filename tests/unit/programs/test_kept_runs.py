"""The record of a run of another program: rows in order, ends of nodes."""

import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ExitCode
from trainyard.programs.checkpoints.taken_checkpoint import TakenCheckpoint
from trainyard.programs.metric_rows import MetricRowWriter
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.program_records import ProgramEnd, begin, finish
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows


def keeper(path: Path, **changes: Any) -> MetricRowWriter:
    return MetricRowWriter(path / "metrics.jsonl", **{"log_steps": 10, "last": 25, **changes})


def steps(path: Path) -> list[Any]:
    return [row["step"] for row in read_rows(path / "metrics.jsonl")]


def test_rows_that_are_due_are_kept_once_and_in_order(tmp_path: Path) -> None:
    rows = keeper(tmp_path)
    given = [1, 10, 10, 5, 20, 15, 25]
    assert [rows.keep({"step": step, "loss": 1.0}) for step in given] == [
        *(False, True, False, False, True, False, True)
    ]
    rows.close()
    assert steps(tmp_path) == [10, 20, 25]
    assert rows.newest == 25


@pytest.mark.parametrize(
    "odd", [{"loss": "nan"}, {}, {"loss": 1.0, "nan_steps": 1}, {"loss": 1.0, "skipped_steps": 2}]
)
def test_a_row_in_between_is_kept_when_it_shows_a_fault(odd: dict[str, Any], tmp_path: Path) -> None:
    rows = keeper(tmp_path)
    assert rows.keep({"step": 7, **odd})
    rows.close()
    assert steps(tmp_path) == [7]


def test_steps_that_are_done_again_replace_those_of_before(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    for step in (10, 20):
        first.keep({"step": step, "loss": 1.0})
    first.close()
    again = keeper(tmp_path)
    again.keep({"step": 20, "loss": 2.0})
    again.close()
    keeper(tmp_path).close()
    assert [(row["step"], row["loss"]) for row in read_rows(tmp_path / "metrics.jsonl")] == [
        (10, 1.0),
        (20, 2.0),
    ]


@pytest.mark.parametrize("resumed_at", [0, 20])
def test_a_first_start_trains_no_step_again(resumed_at: int, tmp_path: Path) -> None:
    """Its first row may be of step 0; after a resume, a row of an earlier step shows a wrong checkpoint."""
    again: list[int] = []
    rows = keeper(tmp_path, log_steps=1, resumed_at=resumed_at, on_other_row=again.append)
    rows.keep({"step": 0, "loss": 2.0})
    rows.keep({"step": 1, "loss": 1.0})
    rows.close()
    assert again == ([0] if resumed_at else [])


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    begin(found, "llama", {"plan": {"steps": 20, "log_steps": 10}}, "recipe: verl\n", resumed_at=None)
    return found


def test_the_first_node_hears_how_the_others_ended(directory: RunDirectory) -> None:
    write_end(directory, 1, 0)
    write_end(directory, 2, 0)
    assert wait_for_ends(directory, range(1, 3), seconds=0) is None
    assert wait_for_ends(directory, range(1, 1), seconds=0) is None
    write_end(directory, 2, 137)
    assert wait_for_ends(directory, range(1, 3), seconds=0) == "node 2 ended with exit code 137"
    (directory.logs / "node-2.end.json").write_text("damaged")
    missing = wait_for_ends(directory, range(1, 3), seconds=0)
    assert missing == "node 2 has not reported how it ended within 0 s"
    forget_ends(directory)
    assert list(directory.logs.glob("*.end.json")) == []


def test_the_first_node_waits_for_the_others(directory: RunDirectory) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        write_end(directory, 1, 0)

    assert wait_for_ends(directory, range(1, 2), seconds=60, sleep=sleep) is None
    assert len(waited) == 1


def write(directory: RunDirectory, *steps: int) -> None:
    rows = MetricRowWriter(directory.metrics_file, log_steps=10, last=20)
    for step in steps:
        rows.keep({"step": step, "loss": 1.0 / (step + 1)})
    rows.close()


TAKEN = TakenCheckpoint(20, "a" * 64)


@pytest.mark.parametrize(
    ("logged", "end", "status", "code"),
    [
        ((10, 20), ProgramEnd(0, checkpoint=TAKEN), "succeeded", ExitCode.DONE),
        ((10, 20), ProgramEnd(0, stopped_by="SIGTERM", checkpoint=TAKEN), "succeeded", ExitCode.DONE),
        ((10, 20), ProgramEnd(0, others="node 1 ended"), "failed", ExitCode.NO),
        ((10,), ProgramEnd(0, checkpoint=TAKEN), "failed", ExitCode.NO),
        ((10,), ProgramEnd(0, stopped_by="SIGTERM", checkpoint=TAKEN), "stopped", ExitCode.STOPPED),
        ((10,), ProgramEnd(143, stopped_by="SIGTERM", checkpoint=TAKEN), "stopped", ExitCode.STOPPED),
        ((10,), ProgramEnd(143, stopped_by="SIGTERM"), "failed", 143),
        ((10, 20), ProgramEnd(1, checkpoint=TAKEN), "failed", 1),
        ((), ProgramEnd(137), "failed", 137),
        ((10, 20), ProgramEnd(7, checkpoint=TAKEN), "failed", 1),
    ],
)
def test_the_outcome_is_no_better_than_what_was_seen(
    logged: tuple[int, ...], end: ProgramEnd, status: str, code: int, directory: RunDirectory
) -> None:
    write(directory, *logged)
    assert finish(directory, end, seconds=1.0) == code
    outcome = json.loads(directory.run_file.read_text())["outcome"]
    assert (outcome["status"], outcome["exit_code"]) == (status, code)
    assert ("reason" in outcome) is (status != "succeeded")
    assert ("checkpoint" in outcome) is (end.checkpoint is not None)


def test_a_run_that_goes_on_has_no_outcome_until_it_ends(directory: RunDirectory) -> None:
    write(directory, 10)
    finish(directory, ProgramEnd(1), seconds=1.0)
    begin(directory, "llama", {}, "", resumed_at=10)
    assert "outcome" not in json.loads(directory.run_file.read_text())
    assert [event["event"] for event in read_rows(directory.events_file)] == [
        "started",
        "finished",
        "resumed",
    ]


@pytest.mark.parametrize(("resumed_at", "kept"), [(None, []), (5, [0]), (10, [0, 10]), (20, [0, 10, 20])])
def test_only_rows_of_the_checkpoint_that_is_resumed_from_stay_on_record(
    resumed_at: int | None, kept: list[int], directory: RunDirectory
) -> None:
    """Steps after that checkpoint were lost, so an attempt that prints none of them has not done them."""
    write(directory, 0, 10, 20)
    finish(directory, ProgramEnd(1), seconds=1.0)
    begin(directory, "llama", {"plan": {"steps": 20}}, "recipe: verl\n", resumed_at=resumed_at)
    assert steps(directory.path) == kept
    done = finish(directory, ProgramEnd(0), seconds=1.0)
    assert (done == 0) is (kept == [0, 10, 20])


FAULTS = [{"loss": "nan"}, {}, {"loss": math.inf}, {"loss": 1.0, "grad_norm": "inf"}]
FAULTS += [
    {"loss": 0.05, "nan_steps": 1},
    {"loss": 0.05, "skipped_steps": 1},
    {"loss": 0.05, "grad_norm": "nan"},
]


@each_case("fault", FAULTS, ids=str)
@each_case("step", [10, 20, 25])
@each_case("when", ["before", "after", "after the last", "then all again"])
def test_a_fault_of_a_step_is_never_dropped(
    fault: dict[str, Any], step: int, when: str, tmp_path: Path
) -> None:
    """Another rank, or a restart within the attempt, prints the step again, before the fault or after it."""
    fine = [{"step": each, "loss": 1.0 / each, "grad_norm": 1.0} for each in (10, 20, 25)]
    odd = {"step": step, **fault}
    at = fine.index(next(row for row in fine if row["step"] == step))
    again = [{**row, "loss": 2.0} for row in fine]
    given = {
        "before": [*fine[:at], odd, *fine[at:]],
        "after": [*fine[: at + 1], odd, *fine[at + 1 :]],
        "after the last": [*fine, odd],
        "then all again": [*fine, odd, *again],
    }[when]
    rows = keeper(tmp_path)
    for row in given:
        rows.keep(row)
    rows.close()
    found = {row["step"]: row for row in read_rows(tmp_path / "metrics.jsonl")}
    assert list(found) == [10, 20, 25], "no step is lost for it"
    assert {key: str(found[step][key]) for key in fault} == {key: str(fault[key]) for key in fault}
    assert ("loss" in found[step]) is ("loss" in fault)


def test_another_row_of_a_step_drops_those_after_it(tmp_path: Path) -> None:
    rows = keeper(tmp_path)
    for step, loss in ((10, 1.0), (20, 1.0), (10, 1.0), (10, 2.0)):
        rows.keep({"step": step, "loss": loss})
    assert [(row["step"], row["loss"]) for row in read_rows(tmp_path / "metrics.jsonl")] == [(10, 2.0)]
    rows.keep({"step": 20, "loss": 2.0})
    rows.close()
    assert steps(tmp_path) == [10, 20]


@pytest.mark.parametrize("losses", [(1.0, 1.0), (1.0, 2.0)])
def test_ranks_that_each_print_a_step_leave_one_row_of_it_however_they_take_turns(
    losses: tuple[float, float], tmp_path: Path
) -> None:
    for turns in set(permutations([0, 0, 0, 1, 1, 1])):
        rows, done = keeper(tmp_path), [0, 0]
        for rank in turns:
            rows.keep({"step": (10, 20, 25)[done[rank]], "loss": losses[rank]})
            done[rank] += 1
        rows.close()
        assert steps(tmp_path) == [10, 20, 25], turns
        (tmp_path / "metrics.jsonl").unlink()
