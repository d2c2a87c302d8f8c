"""Class of failure x advice: no advice runs the same again after a failure by the configuration."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    RecordError,
    ServiceError,
    StoppedError,
    TrainingFailedError,
)
from trainyard.run.failure import (
    Failure,
    FailureKind,
    failure_of,
    next_command,
    next_step,
    read_failure,
    short_reason,
    where_it_ended,
    with_advice,
)

BY_CONFIGURATION = {FailureKind.NOT_FINITE, FailureKind.GPU_MEMORY, FailureKind.HOST_MEMORY}
HOW: tuple[list[str], ...] = ([], ["trainyard", "run"], ["trainyard", "run", "--store", "s3://mine"])


def run_with(failure: Failure | None, command_line: list[str]) -> dict[str, Any]:
    outcome: dict[str, Any] = {"status": "failed", "steps": 7}
    if failure is not None:
        outcome["failure"] = failure.to_json()
    return {"run_id": "r", "outcome": outcome} | ({"command_line": command_line} if command_line else {})


@each_case(("kind", "command_line", "from_step"), list(itertools.product(FailureKind, HOW, (None, 500))))
def test_only_a_failure_that_heals_is_answered_with_the_same_run(
    kind: FailureKind, command_line: list[str], from_step: int | None
) -> None:
    changes = {"training.learning_rate": 3e-4} if kind in BY_CONFIGURATION else {}
    run = run_with(Failure(kind, 8, "Mend it", changes, from_step), command_line)
    words = shlex.split(next_command(run, Path("runs/a")))
    changed = any("training.learning_rate=0.0003" in word for word in words)
    same = "--run-dir" in words
    assert (changed, same) == ((True, False) if kind in BY_CONFIGURATION else (False, True))
    assert (words[1] == "run") == bool(command_line)
    assert [word for word in words if word in ("--store", "s3://mine")] == command_line[2:]
    if changed and not command_line:
        begins = ["--resume", "runs/a/checkpoints/step-00000500"] if from_step else []
        assert words[words.index("training.learning_rate=0.0003") + 1 :] == begins


@each_case(
    ("error", "kind"),
    [
        (CheckpointError("x"), FailureKind.STORAGE),
        (RecordError("x"), FailureKind.STORAGE),
        (DataError("x"), FailureKind.DATA),
        (ConfigError("x"), FailureKind.CONFIGURATION),
        (ServiceError("x"), FailureKind.SERVICE),
        (TrainingFailedError("x"), FailureKind.UNKNOWN),
        (StoppedError("x"), FailureKind.UNKNOWN),
        (KeyboardInterrupt(), FailureKind.INTERRUPTED),
        (ZeroDivisionError("x"), FailureKind.BUG),
    ],
)
def test_an_error_without_a_class_has_that_of_its_type(error: BaseException, kind: FailureKind) -> None:
    found = failure_of(error)
    assert (found.kind, found.changes) == (kind, {})


def test_what_the_raiser_knows_counts_more_than_the_type() -> None:
    error = TrainingFailedError("x")
    error.failure = Failure(FailureKind.HANG, 3)
    assert failure_of(error) == Failure(FailureKind.HANG, 3)


@each_case("kind", FailureKind)
def test_a_failure_is_read_as_it_was_recorded(kind: FailureKind) -> None:
    failure = Failure(kind, 3, "Do this", {"a.b": 1}, 2)
    assert read_failure({"failure": failure.to_json()}) == failure
    assert read_failure({"failure": Failure(kind).to_json()}) == Failure(kind)


@pytest.mark.parametrize("value", [None, 3, "nan", [], {}, {"class": 3}])
def test_a_record_that_is_no_failure_is_none(value: object) -> None:
    assert read_failure({"failure": value}) is None


@pytest.mark.parametrize("value", [{"class": "nan", "step": "x", "set": 3, "fix": [], "from_step": True}])
def test_parts_of_a_wrong_type_are_unknown(value: object) -> None:
    assert read_failure({"failure": value}) == Failure("nan")


@pytest.mark.parametrize(
    ("outcome", "where", "reason"),
    [
        (
            {"steps": 1, "reason": "Step 2: loss nan", "failure": {"class": "nan", "step": 2}},
            "in step 2",
            "loss nan",
        ),
        (
            {"steps": 20, "reason": "Step 20: bad", "failure": {"class": "nan", "step": 20}},
            "at step 20",
            "bad",
        ),
        ({"steps": 120, "reason": "Step 121: loss nan"}, "in step 121", "loss nan"),
        (
            {"steps": 12, "reason": "Stopped at step 12 of 40: SIGINT received. x"},
            "at step 12",
            "SIGINT received. x",
        ),
        (
            {"steps": 10, "reason": "No space. Step 10 was not saved"},
            "at step 10",
            "No space. Step 10 was not saved",
        ),
    ],
)
def test_headline_and_text_name_one_step(outcome: dict[str, Any], where: str, reason: str) -> None:
    assert where_it_ended(outcome, 40) == f"{where} of 40"
    assert short_reason(outcome) == reason


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert (where_it_ended({}, 40), short_reason({})) == ("", "")


def test_advice_follows_the_reason_only_where_something_has_to_change() -> None:
    nan = {"failure": Failure(FailureKind.NOT_FINITE, 2, "Lower it", {"a": 1}).to_json()}
    assert with_advice("loss nan.", nan) == "loss nan. Lower it."
    assert with_advice("full", {"failure": Failure(FailureKind.STORAGE, 2, "Free space").to_json()}) == "full"
    assert with_advice("full", {}) == "full"


def ended(code: int, **outcome: Any) -> dict[str, Any]:
    facts = {"status": "failed", "program_exit_code": code, "steps": 400, **outcome}
    return {"program": {"command": ["x"], "resume": ["--resume"]}, "plan": {"steps": 1000}, "outcome": facts}


def test_a_program_that_ended_by_itself_is_changed_before_it_runs_again() -> None:
    again, said = next_command(ended(1), Path("r")), {}
    cases: dict[str, dict[str, Any]] = {
        "fix the ValueError in train.py:12": ended(
            1, exception={"type": "ValueError", "place": "train.py:12"}
        ),
        "fix the error that its output shows": ended(3),
        "let the program do 1,000 steps, or state in program.steps how many it does": ended(0),
        "let the program report its loss: print it, or name its file in program.metrics": ended(0, steps=0),
        "change what the program does, as stated above": ended(0, steps=1000),
        "free the port": ended(1, failure={"class": "x", "fix": "free the port"}),
    }
    for change, run in cases.items():
        said[change] = next_step(run, Path("r"))
    shown = said.pop("fix the error that its output shows")
    assert shown == "trainyard explain r"
    assert said == {change: f"{change}; then: {again}" for change in said}


@each_case(
    "run",
    [
        ended(137),
        ended(1, stopped_by="SIGTERM"),
        ended(75, status="stopped"),
        {**ended(1), "program": None},
        {"program": {"command": ["x"], "resume": ["--resume"]}},
    ],
)
def test_what_something_else_ended_resumes_as_it_is(run: dict[str, Any]) -> None:
    command = next_command(run, Path("r"))
    assert next_step(run, Path("r")) == command
    if run["program"]:
        anew = "set program.resume, or training begins at step 1, unless the program itself resumes"
        assert next_step({**run, "program": {"command": ["x"]}}, Path("r")) == f"{anew}; then: {command}"
