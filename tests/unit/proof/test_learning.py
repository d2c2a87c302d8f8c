"""The part `learned` of the proof: generated runs of every course, by every figure, with every gate."""

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from tests.cases import each_case
from tests.unit.proof.test_proof import SAVED, Found, part, proven_run

from trainyard.proof.gates import ComparedRun, Learned, judge_learning, missed_thresholds
from trainyard.proof.learning import Curves, change_of, curves_of
from trainyard.proof.proof import Configuration, prove
from trainyard.run.run_settings import setting

Values = dict[str, Any]
LENGTHS = (10, 40, 400)
COURSES: dict[str, Callable[[Any], Any]] = {  # the level over the run's time, 0 to 1
    "falling": lambda time: 5 - 4 * time,
    "falling early": lambda time: 1 + 4 * np.exp(-30 * time),
    "flat": lambda time: 5 + 0 * time,
    "rising": lambda time: 5 + 4 * time,
    "diverging early": lambda time: 20 - 14 * np.exp(-50 * time) - 2 * time,
}
GOOD = ("falling", "falling early")
NOTHING_STORED = Found(None, checkpoints={})


def series(course: str, rows: int, seed: int = 0, noise: float = 0.1) -> Any:
    random = np.random.default_rng([seed, rows])
    return COURSES[course](np.linspace(0, 1, rows)) + noise * random.normal(size=rows)


def rows_of(loss: Any, *, figure: str = "loss", every: int = 1, shift: float = 0.0) -> list[Values]:
    """Rows with a loss; `figure` is in each row whose step is a multiple of `every`, and in the last."""
    rows: list[Values] = [{"step": step, "loss": float(value)} for step, value in enumerate(loss, 1)]
    for row in rows:
        if figure != "loss" and (row["step"] % every == 0 or row["step"] == len(rows)):
            row[figure] = row["loss"] + shift
    return rows


def _curves(rows: Iterable[Values], settings: Values | None = None) -> Curves:
    curves = Curves() if settings is None else curves_of(settings)
    list(curves.collect(rows))
    return curves


def judge(
    rows: Iterable[Values], settings: Values | None = None, *, run: Values | None = None, **more: Any
) -> Learned:
    settings = settings or {}
    curves = _curves(rows, settings)
    return judge_learning(
        proven_run() if run is None else run, curves, begins_after=0, settings=settings, **more
    )


def gates(**learned: Any) -> Values:
    return {"proof": {"learned": learned}}


@each_case("every", [0, 1, 5, 1000], ids="validation every {}".format)
@each_case("rows", LENGTHS)
@each_case("course", COURSES)
def test_only_what_falls_beyond_its_noise_is_learned(course: str, rows: int, every: int) -> None:
    found = rows_of(series(course, rows), figure="val_loss" if every else "loss", every=every or 1)
    learned = judge(found)
    assert learned.is_red is (course not in GOOD), learned
    assert learned.is_judged
    if learned.is_red:
        assert "learning rate" in learned.next_step


@each_case("figure", ["loss", "val_loss", "reward"])
@each_case("rows", LENGTHS)
@each_case("course", COURSES)
def test_given_weights_must_not_end_worse(course: str, rows: int, figure: str) -> None:
    sign = -1 if figure == "reward" else 1
    found = rows_of(series(course, rows))
    found = [{"step": row["step"], "loss": row["loss"], figure: sign * row["loss"]} for row in found]
    for origin in ({"model": {"path": "weights"}}, {"parent": {"manifest_sha256": "ab" * 32}}):
        assert judge(found, run=proven_run() | origin).is_red is (course not in (*GOOD, "flat"))


def swing(kind: str, count: int, seed: int) -> Any:
    """Levels around 1 of a diverged run, none of them near 0."""
    random = np.random.default_rng([seed, count])
    return {
        "steady": 1 + 0.05 * random.normal(size=count),
        "alternating": np.where(np.arange(count) % 2, 1.5, 0.5),
        "erratic": np.exp(0.6 * random.normal(size=count)) + 0.1,
        "rising": np.linspace(0.5, 1.5, count) * random.uniform(0.7, 1.3, size=count),
    }[kind]


def diverging(kind: str, place: float, height: float, rows: int) -> Any:
    """A loss of 3 that turns into swings around a multiple of it, from a part of the run on."""
    values, calm = 3 + 0.1 * np.random.default_rng(rows).normal(size=rows), max(1, round(place * rows))
    values[calm:] = 3 + 3 * (height - 1) * swing(kind, rows - calm, rows)
    return values


PLACES, HEIGHTS = (0, 0.05, 0.2, 0.5, 0.8), (4, 8, 1000)
SWINGS = ("steady", "alternating", "erratic", "rising")
WEIGHTS = {"model": {"path": "weights"}}


@each_case("every", [0, 1, 5, 1000], ids="validation every {}".format)
@each_case("kind", SWINGS)
@each_case("height", HEIGHTS)
def test_given_weights_that_diverge_are_red_however_widely_they_swing(
    height: float, kind: str, every: int
) -> None:
    """The swings of a divergence are no noise that excuses it."""
    for place, rows in itertools.product(PLACES, (20, 40, 400)):
        found = rows_of(diverging(kind, place, height, rows), figure="val_loss", every=every or 10**6)
        if not every:
            found = [{"step": row["step"], "loss": row["loss"]} for row in found]
        curves = _curves(found)
        if every:
            curves.start_with([{"event": "validated", "step": 0, "val_loss": 3.0}], 0)
        for limit in (None, 1e9, 1.0):
            settings = gates(max_validation_loss=limit) if every else {}
            learned = judge_learning(WEIGHTS, curves, begins_after=0, settings=settings)
            assert learned.is_red, (place, rows, learned)
            assert "worse than it started" in learned.evidence, (place, rows, learned)
        program = judge(found, run={"recipe": "command", "program": {}})
        assert program.is_red, (place, rows, program)


@each_case("kind", SWINGS)
@each_case("height", HEIGHTS)
def test_rewards_that_collapse_are_red_however_widely_they_swing(height: float, kind: str) -> None:
    """Rewards have no scale: some rows before the collapse are needed, or 200 rows."""
    for place, rows in itertools.product(PLACES, (20, 40, 400)):
        if round(place * rows) < 3 and rows < 200:
            continue
        found = [
            {"step": row["step"], "reward": 5 - row["loss"]}
            for row in rows_of(diverging(kind, place, height, rows))
        ]
        assert judge(found, run=WEIGHTS).is_red, (place, rows)


def test_the_fine_tuning_that_was_green_by_mistake() -> None:
    """3.04 → 25.39 was within the noise of the training rows, which had diverged as well."""
    rows = rows_of([3.1, 41.0, 9.5, 30.2, 12.1, 55.0, 17.3, 8.8, 37.7, 14.9, 44.0, 26.1])
    rows[5]["val_loss"], rows[-1]["val_loss"] = 31.2, 25.39
    curves = _curves(rows)
    curves.start_with([{"event": "validated", "step": 0, "val_loss": 3.04}], 0)
    learned = judge_learning(WEIGHTS, curves, begins_after=0, settings={})
    assert learned.is_red
    assert "3.04 → 25.39: it ended worse than it started" in learned.evidence
    without = judge([{"step": row["step"], "loss": row["loss"]} for row in rows], run=WEIGHTS)
    assert without.is_red
    assert "by more than noise explains" in without.evidence


@each_case("figure", ["loss", "reward"])
@each_case("rows", [20, 40, 100, 400])
def test_a_run_that_diverged_at_once_and_recovered_in_part_did_not_learn(rows: int, figure: str) -> None:
    """The first tenth is mostly divergence, and no start."""
    time, random = np.linspace(0, 1, rows - 1), np.random.default_rng(rows)
    for height, end in itertools.product((2, 4, 8), (1.3, 1.8)):
        level = 5 * np.interp(time, [0, 0.7, 0.9, 1], [height, height, end, end])
        loss = [5.0, *(level + (level - 5) * random.uniform(-0.8, 0.8, size=rows - 1))]
        sign = -1 if figure == "reward" else 1
        found = [{"step": row["step"], "loss": 0.0, figure: sign * row["loss"]} for row in rows_of(loss)]
        assert judge(found).is_red, (height, end)


@pytest.mark.parametrize("rows", [40, 100, 400])
def test_spikes_hide_no_learning(rows: int) -> None:
    random = np.random.default_rng(rows)
    spikes = np.where((random.random(rows) < 0.05) & (np.linspace(0, 1, rows) < 0.9), 45, 0)
    assert not judge(rows_of(series("falling", rows) + spikes)).is_red
    assert judge(rows_of(series("flat", rows) + spikes)).is_red


@each_case("rows", [10, 60])
@each_case(("fall", "is_red"), [(1e-5, True), (9e-4, True), (5e-3, False)])
@each_case("figure", ["loss", "val_loss"])
def test_a_curve_without_noise_has_to_fall_by_more_than_its_last_digit(
    figure: str, fall: float, is_red: bool, rows: int
) -> None:
    values = [5.55 * (1 - fall * place / (rows - 1)) for place in range(rows)]
    learned = judge([{"step": step, "loss": each, figure: each} for step, each in enumerate(values, 1)])
    assert learned.is_red is is_red, learned
    assert ("better than it started by 0.1%" in learned.evidence) is is_red


def test_a_program_whose_loss_need_not_fall_is_shown_how_to_say_so() -> None:
    program = {"recipe": "command", "program": {"command": ["python", "gan.py"]}}
    for run, settings, is_shown in (
        (program, {}, True),
        (program, gates(figure="loss"), False),
        (proven_run(), {}, False),
    ):
        learned = judge(rows_of(series("rising", 40)), settings, run=run)
        assert learned.is_red and ("proof.learned.figure" in learned.next_step) is is_shown


def test_a_run_of_few_rows_is_too_short_unless_that_is_required() -> None:
    for course, figure in itertools.product(COURSES, ("loss", "val_loss", "reward")):
        found = rows_of(series(course, 9), figure=figure)
        assert not judge(found).is_red
        assert not judge(found).is_judged
        assert "too short to say: 9 rows" in judge(found).evidence
        assert judge(found, gates(required=True)).is_red
    assert judge([]).evidence == "too short to say: 0 rows with a loss, 10 are needed"


def test_rows_that_no_reader_can_use_do_not_count() -> None:
    found = [
        *rows_of(series("falling", 40)),
        {"step": 41, "loss": "nan"},
        {"step": 42, "loss": True},
        {"x": 1},
    ]
    assert not judge(found).is_red


@pytest.mark.parametrize("validates", [True, False])
def test_a_validation_before_the_first_step_is_the_start(validates: bool) -> None:
    """Fine-tuning that ruins a model within its first steps, and then recovers a part, ends worse."""
    curves = _curves(rows_of(4 + series("falling early", 40), figure="val_loss", every=4))
    events = [{"event": "validated", "step": 0, "val_loss": 2.0}, None] if validates else []
    curves.start_with(events, 0)
    learned = judge_learning({"model": {"path": "w"}}, curves, begins_after=0, settings={})
    assert learned.is_red is validates
    assert ("2.00 → " in learned.evidence) is validates


@pytest.mark.parametrize("folds", [3, 5])
def test_models_that_were_trained_one_after_the_other_have_a_curve_each(folds: int) -> None:
    """The folds of a cross-validation jump back to their start, which is no noise; each has to learn."""
    loss = np.concatenate([series("falling", 60, seed) for seed in range(folds)])
    bad = np.concatenate([series("flat", 60), loss[60:]])
    found = []
    for values, models in ((loss, folds), (loss, 1), (loss[: 60 * folds - 55], folds), (bad, folds)):
        curves = _curves(rows_of(values))
        events = [{"event": "model_began", "step": 60 * number} for number in range(1, models)]
        curves.start_with([*events, None], 0)
        learned = judge_learning(proven_run(), curves, begins_after=0, settings={})
        found.append((learned.is_red, f"the last of {folds} models that learned" in learned.evidence))
    assert found[:2] == [(False, True), (True, False)]
    assert not any(is_of_models for _, is_of_models in found[2:]), "one is too short, or has not learned"


def test_a_resumed_run_is_judged_as_one() -> None:
    """Its last segment alone is flat."""
    rows = rows_of(series("falling early", 400))
    events = [{"event": "started", "step": 0}, {"event": "resumed", "step": 300}]
    proof = prove(proven_run(), rows, events, NOTHING_STORED)
    assert part(proof, "learned").passed
    assert change_of(_curves(rows[300:]), 0, has_weights=False) is not None
    assert judge(rows[300:]).is_red


def test_random_weights_that_end_above_chance_have_diverged_before_the_first_row() -> None:
    vocabulary = {"model": {"architecture": {"vocab_size": 256}}}
    found = rows_of(15 + series("falling", 40))
    assert not judge(found).is_red
    assert judge(found, vocabulary).is_red
    assert "5.55 is the loss of a guess" in judge(found, vocabulary).evidence
    assert not judge(rows_of(series("falling", 40)), vocabulary).is_red
    assert not judge(found, vocabulary, run=proven_run() | {"recipe": "command", "program": {}}).is_red


@pytest.mark.parametrize(("end", "is_red"), [(3.0, False), (5.6, True), (7.0, True)])
def test_what_diverged_and_came_back_is_compared_with_its_first_row(end: float, is_red: bool) -> None:
    values = np.concatenate([[5.5], np.full(9, 20.0), np.full(90, end)]) + 0.1 * series("flat", 100) - 0.5
    learned = judge(rows_of(values))
    assert learned.is_red is is_red
    assert "20." not in learned.evidence


@pytest.mark.parametrize(("limit", "is_red"), [(None, False), (1.5, False), (0.9, True)])
@pytest.mark.parametrize("rows", [4, 40])
def test_a_limit_of_the_validation_loss_is_kept(limit: float | None, rows: int, is_red: bool) -> None:
    learned = judge(rows_of(series("falling", rows), figure="val_loss"), gates(max_validation_loss=limit))
    assert learned.is_red is is_red
    if limit is not None:
        assert judge(rows_of(series("falling", rows)), gates(max_validation_loss=limit)).is_red


def compared(figure: float, *, data: str = "e01c" + "0" * 60) -> ComparedRun:
    outcome = {"final_loss": figure, "validation_loss": figure}
    return ComparedRun("last green run 7", {"data": {"fingerprint": data}, "outcome": outcome})


@pytest.mark.parametrize("figure", ["loss", "val_loss"])
def test_a_compared_run_must_not_be_better_by_more_than_the_tolerance(figure: str) -> None:
    rows, run = rows_of(series("falling", 40, noise=0), figure=figure), proven_run()
    run["outcome"] |= {"final_loss": 1.0, "validation_loss": 1.0}
    wanted = gates(compare_with="last-green", tolerance=0.1)
    for was, is_red in ((2.0, False), (1.0, False), (0.92, False), (0.9, True)):
        learned = judge(rows, wanted, run=run, compared=compared(was))
        assert learned.is_red is is_red, was
        assert "last green run 7" in learned.evidence
        assert not judge(rows, run=run, compared=compared(was)).is_red
        assert [row.baseline for row in learned.figures] == [was]
    other = judge(rows, wanted, run=run, compared=compared(0.1, data="f" * 64))
    assert not other.is_red
    assert "other data or another tokenizer" in other.evidence
    assert not judge(rows, wanted, run=run).is_red
    assert judge(rows, gates(compare_with="run:7"), compared=ComparedRun("run 7", problem="missing")).is_red


def evaluation(figures: Values, **changes: Any) -> Values:
    saved = {"step": SAVED["step"], "checkpoint_sha256": SAVED["manifest_sha256"]}
    return {**saved, "figures": figures, **changes}


@each_case(
    ("threshold", "value", "passed"),
    [
        (">= 0.60", 0.6, True),
        (">= 0.60", 0.59, False),
        ("<=1.3", 1.3, True),
        ("<= 1.3", 1.31, False),
        ("> 0", 0, False),
        ("< -1e-3", -1, True),
        (">= 0.6", None, False),
        (">= 0.6", "0.9", False),
        (">= 0.6", True, False),
        (">= 0.6", float("nan"), False),
        ("about 3", 3, False),
    ],
)
def test_thresholds_of_an_evaluation(threshold: str, value: Any, passed: bool) -> None:
    settings = {"evaluation": {"thresholds": {"accuracy": threshold}}}
    assert (missed_thresholds({"accuracy": value}, {"accuracy": threshold}) == []) is passed
    for rows in (4, 40):
        found = rows_of(series("falling", rows))
        learned = judge(found, settings, evaluations=[evaluation({"accuracy": value})])
        assert learned.is_red is not passed
        assert learned.is_judged
        assert "accuracy" in learned.evidence
        others: tuple[list[Any], ...] = (
            [],
            [None],
            [evaluation({"accuracy": 1.0}, step=1)],
            [evaluation({"accuracy": 1.0}, checkpoint_sha256="0" * 64)],
        )
        for missing in others:
            assert judge(found, settings, evaluations=missing).next_step == "{evaluate}"


def test_the_newest_evaluation_of_the_last_checkpoint_counts() -> None:
    settings = {"evaluation": {"thresholds": {"accuracy": ">= 0.6"}}}
    found = rows_of(series("falling", 40))
    both = [evaluation({"accuracy": 0.9}), evaluation({"accuracy": 0.1})]
    assert judge(found, settings, evaluations=both).is_red
    assert not judge(found, settings, evaluations=both[::-1]).is_red
    assert [row.value for row in judge(found, evaluations=both).figures][1:] == [0.1]


@pytest.mark.parametrize("figure", ["none", "loss", "val_loss", "reward"])
def test_a_figure_can_be_named(figure: str) -> None:
    rising = series("rising", 40)
    rows = [{"step": row["step"], "loss": row["loss"], "reward": row["loss"]} for row in rows_of(rising)]
    learned = judge(rows, gates(figure=figure))
    assert learned.is_red is (figure in ("loss", "val_loss")), "one that was never logged is never green"
    assert learned.is_judged is (figure != "none")


@pytest.mark.parametrize(("rises", "higher"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("axis", ["step", "epoch"])
def test_any_figure_can_be_named_with_its_direction(axis: str, rises: bool, higher: bool) -> None:
    values = enumerate(series("rising" if rises else "falling", 40), 1)
    rows = [{axis: place, "eval/f1": value} for place, value in values]
    run = proven_run()
    run["outcome"]["sources"] = {"steps": "observed", "eval/f1": "structured"}
    settings = gates(figure="eval/f1", higher_is_better=higher)
    learned = judge([{"step": 1, "loss": 2.0}, *rows], settings, run=run)
    assert learned.is_red is (rises is not higher)
    assert re.match(r"eval/f1 [\d.]+ → [\d.]+ \(from the program's files\)", learned.evidence), (
        learned.evidence
    )


def test_a_figure_of_epochs_decides_only_if_none_has_steps_or_it_is_named() -> None:
    epochs = [{"epoch": place, "val_loss": 2.0 + place} for place in range(12)]
    losses = rows_of(series("falling", 40))
    assert judge([*losses, *epochs]).evidence.startswith("loss ")
    assert judge(epochs).is_red
    assert judge([*losses, *epochs], gates(figure="val_loss")).is_red
    assert judge([*losses, *epochs], gates(max_validation_loss=5.0)).is_red


def test_the_rates_of_wrong_verdicts_by_chance() -> None:
    """Decision 0040 has the rates; runs as short as the rule allows have the most."""
    most = {10: 0.05, 40: 0.02, 400: 0.02}
    for rows, rate in most.items():
        greens = [judge(rows_of(series("flat", rows, seed))).is_red for seed in range(200)].count(False)
        reds = [judge(rows_of(series("falling", rows, seed, 0.4))).is_red for seed in range(200)].count(True)
        assert greens <= 200 * rate, (rows, greens)
        assert reds <= 200 * 0.05, (rows, reds)
        kept = [judge(rows_of(series("flat", rows, seed)), run=WEIGHTS).is_red for seed in range(200)]
        assert kept.count(True) <= 200 * rate, (rows, kept.count(True))


def test_the_gates_are_read_from_the_configuration() -> None:
    rows = rows_of(series("falling", 40), figure="val_loss")
    settings = gates(max_validation_loss=0.5)
    assert setting(settings, "proof.learned.max_validation_loss") == 0.5
    proof = prove(proven_run(), rows, [], NOTHING_STORED, configuration=Configuration(settings=settings))
    learned = part(proof, "learned")
    assert not learned.passed
    assert "trainyard train" in str(learned.next_step)
    assert proof.to_json(now=0.0)["figures"][0]["threshold"] == "<= 0.5"


def test_a_training_loss_is_not_called_a_validation_loss() -> None:
    rows = [{"step": step, "loss": 5.6 - 0.1 * step} for step in range(1, 41)]
    rows[29]["val_loss"], rows[39]["val_loss"] = 2.7, 1.7  # the first validation is no start
    learned = judge(rows)
    assert re.match(r"training loss [\d.]+ → validation loss 1\.70", learned.evidence), learned.evidence


def test_a_figure_that_is_not_named_is_chosen_from_those_that_are_logged() -> None:
    rows = rows_of(series("falling", 40), figure="val_loss", every=5)
    for settings in ({}, gates(figure="auto"), gates(figure="none"), gates(figure=None)):
        assert _curves(rows, settings).judged == "val_loss", settings


@each_case("figure", ["loss", "val_loss", "reward"])
def test_the_level_at_the_end_is_the_last_validation_or_the_average_of_the_last_tenth(figure: str) -> None:
    curves = curves_of(gates(figure=figure))
    assert curves.last is None
    list(curves.collect({"step": step, figure: float(step)} for step in range(1, 41)))
    assert curves.last == (40.0 if figure == "val_loss" else 38.5)
