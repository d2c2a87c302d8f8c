"""The record of another program: its outcome by one rule, rows in order, and the ends of nodes."""

import json
from itertools import product
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.errors import ExitCode
from trainyard.programs.checkpoints.taken_checkpoint import TakenCheckpoint
from trainyard.programs.metric_rows import MetricRowWriter
from trainyard.programs.node_exit_codes import forget_ends, wait_for_ends, write_end
from trainyard.programs.observations import ProgramError
from trainyard.programs.program_records import COST_LIMIT, ProgramEnd, begin, finish, program_outcome
from trainyard.programs.sources import Source
from trainyard.run.directory import RunDirectory
from trainyard.run.records import read_rows

CODES = (0, 1, 2, 75, 130, 137, 143)
STOPS = (None, "SIGTERM", "SIGINT", "the deadline")
PLANNED = (None, 10)
ANNOUNCED = (None, 10)
LOGGED = (0, 4, 10, 11)
SAVED = (None, 4, 8, 10)
RESUMED = (0, 8)
FAULTS = (None, "loss is nan at step 3")


def taken(step: int | None) -> TakenCheckpoint | None:
    return None if step is None else TakenCheckpoint(step, "a" * 64)


def expected(end: ProgramEnd, planned: int | None, logged: int) -> str:
    """The rule for the status, written apart from the code that is tested."""
    saved = end.checkpoint.step if end.checkpoint else 0
    done = max(logged, saved)
    total = planned or end.announced
    ended_well = end.exit_code == 0 and end.fault is None
    did_all = total is not None and done >= total
    own_decision = total is None and end.stopped_by is None
    if ended_well and logged and (did_all or own_decision):
        return "succeeded"
    asked_to_stop = end.stopped_by is not None or end.exit_code == 75
    is_over = ended_well and (did_all or own_decision)
    if end.fault is None and asked_to_stop and saved > end.resumed_at and not is_over:
        return "stopped"
    return "failed"


CASES = list(product(CODES, STOPS, PLANNED, ANNOUNCED, LOGGED, SAVED, RESUMED, FAULTS))


def test_an_exception_is_named_first_and_no_exit_code_hides_it() -> None:
    error = ProgramError("ValueError", "bad batch", "train.py:12")
    rows = [{"step": 10, "loss": 1.0}]
    for code, stop, planned, other in product((0, 1, 134), (None, "SIGTERM"), (None, 10), (None, "train.py")):
        facts = {"optimizer_steps": 10}
        end = ProgramEnd(code, stopped_by=stop, error=error, vanished=other, facts=facts)
        outcome = program_outcome(end, rows, planned)
        assert outcome["status"] == "failed" and outcome["exit_code"] == max(code, 1)
        assert outcome["reason"].startswith("ValueError: bad batch (train.py:12); the program ended with")
        assert outcome["exception"] == {"type": "ValueError", "message": "bad batch", "place": "train.py:12"}
        assert outcome["optimizer_steps"] == 10


def test_a_known_cause_is_not_hidden_behind_missing_rows() -> None:
    failure = {"class": "out-of-memory", "cause": "the GPU is full", "line": "node-0.log:3"}
    for known, shows in (({}, True), (failure, False)):
        outcome = program_outcome(ProgramEnd(1, failure=known), [], None)
        assert ("no metrics were seen" in outcome["reason"]) is shows


@pytest.mark.parametrize("code", CODES)
def test_the_outcome_follows_the_rule(code: int) -> None:
    cases = [case for case in CASES if case[0] == code]
    assert len(cases) == len(CASES) // len(CODES)
    for _, stop, planned, announced, logged, saved, resumed, fault in cases:
        end = ProgramEnd(
            code,
            stopped_by=stop,
            checkpoint=taken(saved),
            resumed_at=resumed,
            announced=announced,
            fault=fault,
        )
        rows = [{"step": logged, "loss": 1.0}] if logged else []
        outcome = program_outcome(end, rows, planned)
        status = expected(end, planned, logged)
        assert outcome["status"] == status, (end, planned, logged, outcome)
        exit_code = outcome["exit_code"]
        if status == "succeeded":
            assert exit_code == 0 and "reason" not in outcome
            continue
        assert outcome["reason"]
        if status == "failed" and fault is None:
            assert f"ended with exit code {code}" in outcome["reason"]
        if status == "stopped":
            assert exit_code == (ExitCode.INTERRUPTED if stop == "SIGINT" else ExitCode.STOPPED)
            assert f"step {saved}" in outcome["reason"]
        else:
            # 1, or a shell's code for a signal; never a code of ours with another meaning.
            assert exit_code in (ExitCode.NO, ExitCode.INTERRUPTED) or exit_code > 128
            assert exit_code != ExitCode.INTERRUPTED or stop == "SIGINT" or code == 130


@each_case("first", [{"step": 0, "loss": 3.0}, {"step": 0, "val_loss": 3.0}, {"step": 1, "loss": 3.0}])
@each_case(
    ("logged", "saved", "planned", "stopped_by"),
    list(product((8, 9, 10), (None, 8, 9, 10), (None, 9, 10, 11), (None, "SIGTERM"))),
)
def test_the_last_of_ten_steps_is_the_ninth_from_zero(
    first: dict[str, float], logged: int, saved: int | None, planned: int | None, stopped_by: str | None
) -> None:
    """Only a row shows that: a checkpoint of step 9 may be that of nine steps, or of ten.

    Rows 0 to 10 of ten planned steps are ten steps, and the loss before the first one. After a stop, a step
    that may be missing does not count as done.
    """
    end = ProgramEnd(0, checkpoint=taken(saved), stopped_by=stopped_by)
    outcome = program_outcome(end, [first, {"step": logged, "loss": 1.0}], planned)
    last = max(logged, saved or 0)
    from_zero = first == {"step": 0, "loss": 3.0} and logged == last and (planned is None or last < planned)
    if stopped_by:
        status = "succeeded" if planned and last >= planned else "stopped" if saved else "failed"
    else:
        status = "succeeded" if planned is None or last + from_zero >= planned else "failed"
    assert outcome["status"] == status
    assert (outcome["steps"], outcome.get("counts_from_zero", False)) == (last, from_zero)


WRONG, COST = "what is wrong with the checkpoint", "stopped by limits.cost_usd after step 4 of 10"
FAILED = ("failed", ExitCode.NO)


@each_case(
    ("end", "step", "planned", "status", "code", "reason"),
    [
        (ProgramEnd(0), 0, None, "failed", ExitCode.NO, "the program ended with exit code 0, and no metrics"),
        (ProgramEnd(127, problem="x: cannot start"), 0, None, "failed", ExitCode.USAGE, "x: cannot start"),
        # It has a checkpoint, and is not continued.
        (ProgramEnd(0, stopped_by=COST_LIMIT, checkpoint=taken(4)), 4, 10, "stopped", ExitCode.NO, COST),
        # Its checkpoint cannot be the last state.
        *(
            (ProgramEnd(0, checkpoint=taken(5000), stopped_by=by, weights=WRONG), 30, None, *FAILED, WRONG)
            for by in (None, "SIGTERM")
        ),
        # Its training vanished, and did its stated steps or not.
        (ProgramEnd(0, vanished="a.py"), 5, 5, "succeeded", ExitCode.DONE, ""),
        (ProgramEnd(0, vanished="a.py"), 5, None, "failed", ExitCode.NO, "a.py was killed, or still ran"),
    ],
)
def test_an_end_with_a_reason_of_its_own(
    end: ProgramEnd, step: int, planned: int | None, status: str, code: int, reason: str
) -> None:
    outcome = program_outcome(end, [{"step": step, "loss": 1.0}] if step else [], planned)
    assert (outcome["status"], outcome["exit_code"]) == (status, code)
    assert outcome.get("reason", "").startswith(reason)
    assert outcome["steps"] == (end.checkpoint.step if end.checkpoint else step)


@each_case(("source", "steps"), [(Source.OBSERVED, 5000), (Source.CHECKPOINT, 5000), (Source.GUESSED, 30)])
def test_a_guessed_step_is_none_that_was_done(source: Source, steps: int) -> None:
    end = ProgramEnd(0, checkpoint=TakenCheckpoint(5000, "0" * 64, source))
    outcome = program_outcome(end, [{"step": 30, "loss": 1.0}], None)
    assert (outcome["steps"], outcome["checkpoint"]["source"]) == (steps, source)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "run")
    begin(found, "llama", {"plan": {"steps": 20}}, "recipe: verl\n", resumed_at=None)
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
    rows = MetricRowWriter(directory.metrics_file)
    rows.merged.add_all(({"step": step, "loss": 1.0 / (step + 1)} for step in steps), Source.PRINTED, 1.0)
    rows.write(is_over=True)


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
    assert [row["step"] for row in read_rows(directory.metrics_file)] == kept
    done = finish(directory, ProgramEnd(0), seconds=1.0)
    assert (done == 0) is (kept == [0, 10, 20])
