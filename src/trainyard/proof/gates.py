"""Judge what a run learned against its own start and the gates in its configuration.

    Curves, settings, evaluation, compared run ──> Learned: problem or none, and one line of evidence

The gates are `proof.learned` (a limit of the validation loss, a run to compare with) and
`evaluation.thresholds`. `learning` decides whether a figure changed; nothing is read from disk here.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainyard.config.registries import is_program_run
from trainyard.proof.learning import FEWEST_ROWS, FIGURES, SIGNIFICANT, Change, Curves, change_of
from trainyard.proof.noise import LEAST_SHARE
from trainyard.proof.recorded_facts import (
    RecordedFacts,
    digest_or_none,
    integer_or_none,
    is_finite_number,
    section_or_empty,
)
from trainyard.run.run_settings import setting
from trainyard.run.source_words import source_in_words

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_THRESHOLD = re.compile(r"(>=|<=|>|<)\s*(\S+)")
# Judged figure -> its name in the outcome.
_OUTCOMES = {"reward": "final_reward", "val_loss": "validation_loss", "loss": "final_loss"}
# Random weights guess uniformly, ln(vocabulary) nats per token; their first logits add less than half of it.
# A run above this has diverged, even if its first rows had already.
_MOST_OF_CHANCE = 1.5
_CHANGES_TO_TRY = (
    "check the learning rate, the data, and the weights or the checkpoint that it started from; then: {again}"
)
_FIGURES_TO_TRY = (
    "if its loss need not fall, as of a GAN, name another figure (or none) in proof.learned.figure; else "
)


@dataclass(frozen=True)
class ComparedRun:
    """An earlier run with which the figures are compared."""

    name: str
    """Its name for people, such as `last green run 11`."""
    facts: RecordedFacts = field(default_factory=dict)
    """Its `run.json`."""
    evaluation: RecordedFacts = field(default_factory=dict)
    """The figures of the evaluation of its last checkpoint."""
    problem: str = ""
    """Why it cannot be read; it is then not compared."""

    def figure(self, name: str) -> float | None:
        """Return a figure of its evaluation."""
        value = self.evaluation.get(name)
        return value if is_finite_number(value) else None

    def judged(self, name: str) -> float | None:
        """Return the judged figure `name` at its end; only some are in the outcome of a run."""
        value = section_or_empty(self.facts, "outcome").get(_OUTCOMES.get(name, ""))
        return value if is_finite_number(value) else None


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of the run beside that of the compared run and its threshold."""

    name: str
    value: float | None
    baseline: float | None = None
    """The figure of the compared run."""
    threshold: str = ""
    """The threshold, such as `>= 0.6`."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_missed": bool(self.threshold) and not _meets(self.value, self.threshold)}


@dataclass(frozen=True)
class Learned:
    """The verdict on a run's learning, from its records."""

    evidence: str
    is_red: bool = False
    next_step: str = ""
    """`{again}` and `{evaluate}` stand for the commands that train and evaluate the run again."""
    is_judged: bool = True
    """False if it is too short to say."""
    figures: tuple[ComparedFigure, ...] = ()
    """The figures for people to decide by: the judged one and those of the evaluation."""


def judge_learning(
    run: RecordedFacts,
    curves: Curves,
    *,
    begins_after: int,
    settings: Mapping[str, Any],
    evaluations: Sequence[RecordedFacts | None] = (),
    compared: ComparedRun | None = None,
) -> Learned:
    """Return whether the run learned, within the gates of `settings`, the content of its `config.yaml`."""
    found = [
        _judge_change(run, curves, begins_after, settings),
        _judge_limit(run, curves, setting(settings, "proof.learned.max_validation_loss")),
        _judge_comparison(run, curves, settings, compared),
        _judge_evaluation(run, settings, evaluations),
    ]
    results = [each for each in found if each is not None]
    red = [each for each in results if each.is_red]
    figures = _compare_figures(run, curves, settings, evaluations=evaluations, compared=compared)
    ordered = (*red, *(each for each in results if not each.is_red))
    return Learned(
        "; ".join(each.evidence for each in ordered),
        is_red=bool(red),
        next_step=red[0].next_step if red else "",
        is_judged=any(each.is_judged for each in results),
        figures=tuple(figures),
    )


def _compare_figures(
    run: RecordedFacts,
    curves: Curves,
    settings: Mapping[str, Any],
    *,
    evaluations: Sequence[RecordedFacts | None],
    compared: ComparedRun | None,
) -> Iterator[ComparedFigure]:
    beside = compared or ComparedRun("")
    if curves.last is not None:
        limit = setting(settings, "proof.learned.max_validation_loss")
        needs = f"<= {limit}" if is_finite_number(limit) and curves.judged == "val_loss" else ""
        yield ComparedFigure(curves.words, curves.last, beside.judged(curves.judged), needs)
    figures = evaluated_figures(run, evaluations, settings) or {}
    thresholds = thresholds_of(settings)
    for name in dict.fromkeys((*thresholds, *figures)):
        value = figures.get(name)
        known = value if is_finite_number(value) else None
        if known is not None or name in thresholds:
            yield ComparedFigure(name, known, beside.figure(name), thresholds.get(name, ""))


def thresholds_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the thresholds of the evaluation, by the name of the figure."""
    found = setting(settings, "evaluation.thresholds")
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, Mapping) else {}


def missed_thresholds(figures: Mapping[str, Any], thresholds: Mapping[str, str]) -> list[str]:
    """Return the figures that are missing or miss their threshold, in words."""
    return [
        f"{name} {_shown(figures.get(name))} (needs {text})"
        for name, text in thresholds.items()
        if not _meets(figures.get(name), text)
    ]


def _meets(figure: object, threshold: str) -> bool:
    match = _THRESHOLD.fullmatch(threshold.strip())
    if match is None or not is_finite_number(figure):
        return False
    try:
        return _COMPARISONS[match[1]](figure, float(match[2]))
    except ValueError:
        return False


def _judge_change(
    run: RecordedFacts, curves: Curves, begins_after: int, settings: Mapping[str, Any]
) -> Learned:
    if setting(settings, "proof.learned.figure") == "none":
        return Learned("not judged, as proof.learned.figure requests", is_judged=False)
    name = curves.words
    if not curves.rows and not section_or_empty(run, "outcome"):
        return Learned(f"no {name} and no outcome is on record", True, "{again}")
    has_weights = _starts_from_weights(run, settings, begins_after)
    change = change_of(curves, begins_after, has_weights=has_weights)
    if curves.chosen and not curves.rows:
        text = f"no {name} is on record, which proof.learned.figure names"
        how = f"let the program log it under this name, such as step 10: loss 2.31 {name} 0.5"
        return Learned(text, True, f"{how}: {{again}}")
    if change is None:
        rows = f"{curves.rows} row{'' if curves.rows == 1 else 's'}"
        text = f"too short to say: {rows} with a {name}, {FEWEST_ROWS} are needed"
        is_red = setting(settings, "proof.learned.required") is True
        step = "train for more steps, or set monitoring.log_steps to fewer: {again}"
        return Learned(text, is_red, step, is_judged=False)
    is_validation = change.figure == "val_loss" and curves.bits_per_byte is not None
    bits = f" ({curves.bits_per_byte:.2f} bits/byte)" if is_validation else ""
    name = FIGURES.get(change.figure, change.figure)
    start, end = (f"training {FIGURES[change.starts_from]}", f"{name} ") if change.starts_from else (name, "")
    step = _CHANGES_TO_TRY
    if is_program_run(run) and change.figure == "loss" and not curves.chosen:
        step = _FIGURES_TO_TRY + step
    outcome = section_or_empty(run, "outcome")
    source, level = source_in_words(outcome, change.figure), _shown(change.last)
    recorded = outcome.get(_OUTCOMES.get(change.figure, ""))
    shown = _shown(recorded) if is_finite_number(recorded) else level
    mean = f", {level} on average over the last tenth" if shown != level else ""
    mean += f", the last of {change.models} models that learned" if change.models > 1 else ""
    ends = f"{start} {_shown(change.first)} → {end}{shown}{bits}{source}{mean}"
    limit = _highest_loss(run, settings)
    if limit is not None and change.figure in ("loss", "val_loss") and change.last > limit:
        chance = f"{_shown(limit / _MOST_OF_CHANCE)} is the loss of a guess"
        return Learned(f"{ends}: it ended far above chance, {chance}", True, _CHANGES_TO_TRY)
    if change.is_worse:
        return Learned(f"{ends}: it ended worse than it started{_beyond(change)}", True, step)
    if change.is_better or has_weights:
        kept = "" if change.is_better else f", not worse than the given weights{_beyond(change, within=True)}"
        return Learned(ends + kept)
    return Learned(f"{ends}: it did not get better than it started{_beyond(change, within=True)}", True, step)


def _beyond(change: Change, *, within: bool = False) -> str:
    if change.noise is None:
        return " by more than noise explains"
    if within and abs(change.first - change.last) > SIGNIFICANT * change.noise:
        return f" by {LEAST_SHARE:.1%}"
    place = "within" if within else "beyond"
    return f", {place} its noise of {_shown(change.noise)}"


def _starts_from_weights(run: RecordedFacts, settings: Mapping[str, Any], begins_after: int) -> bool:
    """Return whether the run started from given weights or another run's checkpoint, not at random."""
    return bool(
        section_or_empty(run, "model")
        or section_or_empty(run, "parent")
        or begins_after
        or (is_program_run(run) and setting(settings, "model.path"))
    )


def _highest_loss(run: RecordedFacts, settings: Mapping[str, Any]) -> float | None:
    """Return the loss above which random weights of this repository's trainer have diverged."""
    size = integer_or_none(setting(settings, "model.architecture.vocab_size"))
    if is_program_run(run) or section_or_empty(run, "model") or size is None or size < 2:
        return None
    return _MOST_OF_CHANCE * math.log(size)


def _judge_limit(run: RecordedFacts, curves: Curves, limit: object) -> Learned | None:
    if not is_finite_number(limit):
        return None
    values = curves.values_of("val_loss")
    if not values:
        text = f"no validation loss is on record, and proof.learned.max_validation_loss is {limit}"
        how = "validate, for example with training.validation_steps"
        if is_program_run(run):
            how = "let the program print its validation loss, such as step 10: val_loss 2.31"
        return Learned(text, True, f"{how}: {{again}}")
    if values[-1] <= limit:
        return Learned(f"threshold {limit}")
    text = f"validation loss {_shown(values[-1])} is above proof.learned.max_validation_loss, {limit}"
    return Learned(text, True, "train longer or better, or raise the threshold: {again}")


def _judge_comparison(
    run: RecordedFacts, curves: Curves, settings: Mapping[str, Any], compared: ComparedRun | None
) -> Learned | None:
    wanted = setting(settings, "proof.learned.compare_with")
    if compared is None:
        return Learned(f"no run to compare with ({wanted})", is_judged=False) if wanted else None
    if compared.problem:
        is_red = isinstance(wanted, str) and wanted.startswith("run:")
        step = "name a run of this store with proof.learned.compare_with: {again}"
        return Learned(f"{compared.name} is not compared: {compared.problem}", is_red, step, is_judged=False)
    was = compared.judged(curves.judged)
    last = section_or_empty(run, "outcome").get(_OUTCOMES.get(curves.judged, ""), curves.last)
    if was is None or not is_finite_number(last):
        return Learned(f"{compared.name} has no {curves.words} on record", is_judged=False)
    beside = f"{compared.name}: {_shown(was)}"
    if not wanted:
        return Learned(beside, is_judged=False)
    fingerprints = [section_or_empty(each, "data").get("fingerprint") for each in (run, compared.facts)]
    if digest_or_none(fingerprints[0]) is None or fingerprints[0] != fingerprints[1]:
        text = f"{compared.name} ({_shown(was)}) had other data or another tokenizer, so it is not compared"
        return Learned(text, is_judged=False)
    tolerance = setting(settings, "proof.learned.tolerance")
    share = tolerance if is_finite_number(tolerance) else 0.0
    if curves.sign * (last - was) <= share * abs(was):
        return Learned(beside)
    than = f"{compared.name} ({_shown(was)})"
    text = f"{curves.words} {_shown(last)} is worse than that of {than} by more than {share:.1%}"
    return Learned(text, True, _CHANGES_TO_TRY)


def _judge_evaluation(
    run: RecordedFacts,
    settings: Mapping[str, Any],
    evaluations: Iterable[RecordedFacts | None],
) -> Learned | None:
    """Judge the evaluation of the checkpoint that the run ended with."""
    thresholds, figures = thresholds_of(settings), evaluated_figures(run, evaluations, settings)
    if figures is None:
        if not thresholds:
            return None
        has_one = section_or_empty(run, "outcome").get("checkpoint") is not None
        step = "{evaluate}" if has_one else "{again}"
        return Learned("its last checkpoint was not evaluated", True, step)
    if missed := missed_thresholds(figures, thresholds):
        text = f"trained, but not good enough: {', '.join(missed)}"
        return Learned(text, True, "train longer or better, or change evaluation.thresholds: {again}")
    words = [f"{name} {_shown(figures[name])} (needs {text})" for name, text in thresholds.items()]
    return Learned("; ".join(words)) if words else None


def evaluated_figures(
    run: RecordedFacts, evaluations: Iterable[RecordedFacts | None], settings: Mapping[str, Any]
) -> RecordedFacts | None:
    """Return the figures of the newest evaluation of the run's last checkpoint; None without one.

    An evaluation by another command than that of `settings` does not count.
    """
    saved = section_or_empty(section_or_empty(run, "outcome"), "checkpoint")
    digest, step = digest_or_none(saved.get("manifest_sha256")), integer_or_none(saved.get("step"))
    words = setting(settings, "evaluation.command")
    command = [str(word) for word in words] if isinstance(words, list) else None
    figures: RecordedFacts | None = None
    for each in evaluations:
        if each is None or each.get("checkpoint_sha256") != digest or each.get("step") != step:
            continue
        if command is None or each.get("command") == command:
            figures = section_or_empty(each, "figures") if digest else None
    return figures


def _shown(value: object) -> str:
    """Return `value` with about three significant digits; fewer would make different levels look equal."""
    if not is_finite_number(value):
        return "not on record" if value is None else str(value)
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.3g}"
