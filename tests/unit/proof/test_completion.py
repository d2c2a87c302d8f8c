"""Whether another program did all requested steps; and which runs are compared."""

import hashlib
import itertools
from itertools import product
from pathlib import Path
from typing import Any

from tests.cases import each_case

from trainyard.config.load import config_sha256, dump_yaml, load_config
from trainyard.proof.completion import completion_problem
from trainyard.proof.recorded_events import Course
from trainyard.proof.stored_runs import compared_inputs, config_digests

COURSE = Course(None, "no retries", (), 0, {}, frozenset())
FIRST: list[dict[str, Any]] = [
    {"step": 0, "loss": 3.0},
    {"step": 0, "val_loss": 3.0},
    {"step": 1, "loss": 3.0},
]


@each_case(
    ("claim", "first", "last", "planned"),
    list(product((None, False, True, 1, "yes"), FIRST, (8, 9), (None, 9, 10, 11))),
)
def test_nine_counts_as_ten_steps_only_if_the_rows_show_that_they_count_from_zero(
    claim: object, first: dict[str, Any], last: int, planned: int | None
) -> None:
    """`claim` is what the outcome says, which counts only as true and with a row of the last step."""
    outcome: dict[str, Any] = {"status": "succeeded", "exit_code": 0, "steps": 9, "final_loss": 1.0}
    outcome |= {"first_loss": first.get("loss", 1.0)}
    outcome |= {"validation_loss": first["val_loss"]} if "val_loss" in first else {}
    outcome |= {} if claim is None else {"counts_from_zero": claim}
    run = {"recipe": "command", "program": {"command": "x"}, "outcome": outcome}
    run["plan"] = {} if planned is None else {"steps": planned}
    rows = [first, {"step": last, "loss": 1.0}]
    settings = {"recipe": "command", "program": {"steps": planned}}
    problem = completion_problem(run, rows, COURSE, settings=settings)

    is_true = first == FIRST[0] and last == 9
    is_wrong = claim is True and not is_true
    done = 9 + (claim is True)
    assert (problem is None) == (not is_wrong and (planned is None or done >= planned)), problem


@each_case(
    ("claims", "problem"),
    [
        ({}, None),
        ({"announced_steps": 9}, None),
        ({"announced_steps": 12}, "9 of 12 steps"),
        (
            {"exception": {"type": "ValueError", "message": "x", "place": "a.py:1"}},
            "the outcome says succeeded, but ValueError ended the program",
        ),
    ],
)
def test_stated_steps_are_done_and_no_exception_ended_it(claims: dict[str, Any], problem: str | None) -> None:
    outcome = {"status": "succeeded", "exit_code": 0, "steps": 9, "first_loss": 3.0, "final_loss": 1.0}
    run = {"recipe": "command", "program": {"command": "x"}, "plan": {}, "outcome": {**outcome, **claims}}
    rows = [{"step": 1, "loss": 3.0}, {"step": 9, "loss": 1.0}]
    assert completion_problem(run, rows, COURSE, settings={"recipe": "command"}) == problem


def test_one_step_is_a_training_and_none_is_not() -> None:
    for steps in (None, 0, 1, 2):
        final = 1.0 if steps == 2 else 3.0
        outcome = {"status": "succeeded", "exit_code": 0, "first_loss": 3.0, "final_loss": final}
        outcome |= {} if steps is None else {"steps": steps}
        run = {"recipe": "command", "program": {"command": "x"}, "outcome": outcome}
        rows = [{"step": step, "loss": 3.0 if step == 1 else 1.0} for step in range(1, (steps or 1) + 1)]
        problem = completion_problem(run, rows, COURSE, settings={"recipe": "command"})
        assert (problem is None) is bool(steps), (steps, problem)


ROOT = Path(__file__).resolve().parents[3]


def test_programs_without_data_are_told_apart_by_their_command() -> None:
    runs = {
        (data, command): {"data": {"fingerprint": data, "files": files}, "program_sha256": command}
        for (data, files), command in itertools.product((("empty", 0), ("a", 2), ("b", 2)), ("x", "y"))
    }
    for (one, first), (other, second) in itertools.product(runs.items(), repeat=2):
        is_same = one[0] == other[0] and (one[0] != "empty" or one[1] == other[1])
        assert (compared_inputs(first) == compared_inputs(second)) is is_same, (one, other)
    assert None in compared_inputs({})
    assert compared_inputs({"data": {"fingerprint": "a", "tokens": 5}}) == ("a", ""), "our own trainer"


def test_a_configuration_is_known_by_its_values_and_by_its_bytes() -> None:
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    content = dump_yaml(config).encode()
    assert config_digests(content) == {config_sha256(config), hashlib.sha256(content).hexdigest()}
    assert config_digests(None) == frozenset()
