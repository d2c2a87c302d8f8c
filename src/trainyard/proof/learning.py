"""Decide whether a run learned: whether it ended better than it started, by more than its noise.

    rows ──> the judged figure (reward, else validation loss, else loss) ──> first and last level ──> Change

`proof.learned.figure` may name any other figure. The first level is the first validation loss if the run
validated within the first tenth of its steps, else the first training losses: a validation late in a run
shows no start. The last level is the last validation loss; for other figures, and without validation, it is
the mean over the last tenth of the rows. A run that starts from given weights may stay as it was, but must
not end worse. Fewer than ten rows are too short to say.

A difference within the noise is no difference: see `SIGNIFICANT`, and `noise` for how it is measured. A fall
is measured against the noise of the complete run, a rise against that of its calm part, because a divergence
must not be excused by its own swings.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from trainyard.proof.noise import (
    Noise,
    falls_by,
    falls_by_median,
    has_left_start,
    is_far_above,
    mean_square_noise,
    noise_of,
    tenth,
)
from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, is_finite_number
from trainyard.run.run_settings import setting

FEWEST_ROWS = 10
# A difference counts from this many of its standard errors. The rates of wrong verdicts that follow
# are in docs/decisions/0040-learned.md.
SIGNIFICANT = 3.0
# The first row alone is often unusual, for example in a warm-up: a fall from it has to be larger.
SIGNIFICANT_FROM_ONE = 4.0
# Few validations of a run that swings have no noise of their own. It is then at most this share of the first:
# a validation reads the same text each time.
MOST_OF_VALIDATION = 0.15
# The figures that show learning, in words. The first that is logged decides, unless another one is named.
FIGURES = {"reward": "reward", "val_loss": "validation loss", "loss": "loss"}


@dataclass
class Curve:
    """The finite values of one figure, with their steps."""

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass
class Curves:
    """The figures of a run that show its learning."""

    by_name: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in FIGURES})
    without_step: dict[str, list[float]] = field(default_factory=dict)
    """The values of rows without a step, which have another axis, such as epochs."""
    bits_per_byte: float | None = None
    """Bits per byte of the last validation."""
    starts: tuple[int, ...] = ()
    """The steps after which the training of another model began."""
    chosen: str = ""
    """The name of the figure that decides; empty means the first of `FIGURES` that has values."""
    rising: frozenset[str] = frozenset({"reward"})
    """The figures that are better if they are higher."""

    def collect(self, rows: Iterable[RecordedFacts | None]) -> Iterator[RecordedFacts | None]:
        """Yield the rows unchanged, and keep their figures."""
        for row in rows:
            if row is not None:
                self._add(integer_or_none(row.get("step")), row)
            yield row

    def _add(self, step: int | None, row: RecordedFacts) -> None:
        for name, curve in self.by_name.items():
            if is_finite_number(value := row.get(name)):
                if step is None:
                    self.without_step.setdefault(name, []).append(value)
                else:
                    curve.steps.append(step)
                    curve.values.append(value)
        if "val_loss" in row:
            bits = row.get("val_bits_per_byte")
            self.bits_per_byte = bits if is_finite_number(bits) else None

    def start_with(self, events: Iterable[RecordedFacts | None], begins_after: int) -> None:
        """Take the starts of further models, and put a validation before the first step first."""
        known = [event for event in events if event is not None]
        steps = (integer_or_none(event.get("step")) for event in known if event.get("event") == "model_began")
        self.starts = tuple(step for step in steps if step is not None)
        for event in known:
            if event.get("event") != "validated" or event.get("step") != begins_after:
                continue
            if is_finite_number(loss := event.get("val_loss")):
                self.by_name["val_loss"].steps.insert(0, begins_after)
                self.by_name["val_loss"].values.insert(0, loss)
                return

    @property
    def last_validated(self) -> float | None:
        """The step of the last validation loss; None without any."""
        return max(self.by_name["val_loss"].steps, default=None)

    def best_step(self, steps: int) -> tuple[float, str] | None:
        """Return the step with the best value of the figure by which a program may choose what it keeps.

        Its words, too; None if the last value is the best. Values of epochs have equal shares of `steps`.
        """
        name = "val_loss" if self.judged == "loss" else self.judged
        values = [-value if name in self.rising else value for value in self.values_of(name)]
        if not values or values[-1] <= min(values):
            return None
        place, found = values.index(min(values)), self.by_name[name].steps
        return found[place] if found else (place + 1) * steps / len(values), FIGURES.get(name, name)

    @property
    def judged(self) -> str:
        """The name of the figure that decides; one that has steps goes before one of epochs."""
        logged = (name for name, curve in self.by_name.items() if curve.values)
        return self.chosen or next(logged, None) or next(iter(self.without_step), "loss")

    @property
    def words(self) -> str:
        """The judged figure in words."""
        return FIGURES.get(self.judged, self.judged)

    @property
    def sign(self) -> int:
        """-1 if the judged figure should rise, else 1."""
        return -1 if self.judged in self.rising else 1

    def values_of(self, name: str) -> Sequence[float]:
        """Return the values of a figure, those of rows without a step if no others are there."""
        return self.by_name[name].values or self.without_step.get(name, ())

    def of_models(self, name: str) -> list[Sequence[float]]:
        """Return the values of a figure for each model that was trained, in their order."""
        curve, ends = self.by_name[name], [*self.starts, math.inf]
        places = [0, *(bisect_right(curve.steps, end) for end in ends)]
        return [curve.values[start:end] for start, end in pairwise(places)]

    @property
    def rows(self) -> int:
        """The number of rows that the judgement is based on."""
        rows = len(self.values_of(self.judged))
        return max(rows, len(self.by_name["loss"].values)) if rows and self.judged == "val_loss" else rows

    @property
    def last(self) -> float | None:
        """The level of the judged figure at the end; None without any value."""
        values = self.values_of(self.judged)
        if not values:
            return None
        return values[-1] if self.judged == "val_loss" else fmean(values[-tenth(values) :])


def curves_of(settings: Mapping[str, Any]) -> Curves:
    """Return empty curves of the figures that the configuration judges."""
    figure, is_rising = (setting(settings, f"proof.learned.{key}") for key in ("figure", "higher_is_better"))
    if not isinstance(figure, str) or figure in ("auto", "none"):
        return Curves()
    rising = Curves().rising - {figure} if is_rising is False else Curves().rising
    names = dict.fromkeys((*FIGURES, figure))
    rising |= {figure} if is_rising is True else frozenset()
    return Curves({name: Curve() for name in names}, chosen=figure, rising=rising)


@dataclass(frozen=True)
class Change:
    """The change of the judged figure from the start of the run to its end."""

    first: float
    last: float
    noise: float | None
    """The standard error of the difference; None if it ended worse by more than any noise explains."""
    is_better: bool
    is_worse: bool
    figure: str = "loss"
    models: int = 1
    """How many models were trained one after the other and all learned; it is that of the last one."""
    starts_from: str = ""
    """The figure of `first` if that is not `figure`: the training loss before a late first validation."""


def change_of(curves: Curves, begins_after: int, *, has_weights: bool) -> Change | None:
    """Return the change over the run, which started from step `begins_after`; None if it is too short.

    `has_weights`: it started from given weights and not from random ones.
    """
    name = curves.judged
    if curves.rows < FEWEST_ROWS:
        return None
    if name == "val_loss" and curves.by_name[name].values:
        validation, training = curves.by_name["val_loss"], curves.by_name["loss"]
        return _change_of_validation(validation, training, begins_after, has_weights=has_weights)
    sign = curves.sign
    found = _change_of_rows([sign * value for value in curves.values_of(name)])
    parts = curves.of_models(name)
    if not found.is_better and len(parts) > 1 and min(map(len, parts)) >= FEWEST_ROWS:
        changes = [_change_of_rows([sign * value for value in part]) for part in parts]
        if all(each.is_better for each in changes):
            found = replace(changes[-1], models=len(parts))
    return replace(found, first=sign * found.first, last=sign * found.last, figure=name)


def _compare(
    values: Sequence[float], last: float, noise: Noise, *, of_last: float, calm_last: float
) -> Change:
    """Compare the level `last` with the first row and with the mean of the first tenth; smaller is better.

    `noise` is that of the rows, the other two are that of `last`.
    """
    first, head = values[0], fmean(values[: tenth(values)])
    alone, apart = math.hypot(noise.one, of_last), math.hypot(noise.tenth, of_last)
    calm_apart = math.hypot(noise.calm_tenth, calm_last)
    falls_from_first = falls_by(first, last, SIGNIFICANT_FROM_ONE * alone)
    exceeds_first = _is_above(last, values, math.hypot(noise.calm_one, calm_last))
    has_diverged = _is_above(head, values, math.hypot(noise.calm_one, noise.calm_tenth))
    level = first if has_diverged or falls_from_first or exceeds_first else head
    falls = falls_by(level, last, SIGNIFICANT * apart) or (
        level > last and falls_by_median(values, SIGNIFICANT)
    )
    stays_above = first <= min(values[len(values) // 2 :])
    is_better = falls_from_first or (falls and not exceeds_first and not stays_above)
    is_worse = exceeds_first or (last - head > SIGNIFICANT * calm_apart and not falls_from_first)
    shown = _shown_noise(last - level, calm_apart) if is_worse else apart
    return Change(level, last, shown, is_better, is_worse)


def _is_above(level: float, values: Sequence[float], noise: float) -> bool:
    """Return whether `level` exceeds the first value beyond the noise, or by more than any noise explains."""
    rise = level - values[0]
    return rise > 0 and (rise > SIGNIFICANT * noise or is_far_above(level, values) or has_left_start(values))


def _shown_noise(rise: float, noise: float) -> float | None:
    return noise if rise > SIGNIFICANT * noise else None


def _change_of_rows(values: Sequence[float]) -> Change:
    noise = noise_of(values)
    last = fmean(values[-tenth(values) :])
    return _compare(values, last, noise, of_last=noise.tenth, calm_last=noise.calm_tenth)


def _change_of_validation(curve: Curve, training: Curve, begins_after: int, *, has_weights: bool) -> Change:
    values, last = curve.values, curve.values[-1]
    rows = noise_of(training.values) if len(training.values) >= FEWEST_ROWS else None
    of_one, calm_of_one = _noise_of_validation(values, rows)
    noise, calm = math.sqrt(2) * of_one, math.sqrt(2) * calm_of_one
    fall, is_worse = values[0] - last, _is_above(last, values, calm)
    shown = _shown_noise(-fall, calm) if is_worse else noise
    is_better = falls_by(values[0], last, SIGNIFICANT * noise)
    change = Change(values[0], last, shown, is_better, is_worse, "val_loss")
    if rows is None or is_worse or curve.steps[0] <= begins_after:
        return change
    of_training = _change_of_rows(training.values)
    if _is_above(of_training.last, training.values, math.hypot(rows.calm_one, rows.calm_tenth)):
        # The run diverged, if only before its first validation.
        return replace(of_training, first=training.values[0], is_better=False, is_worse=True)
    end = max(curve.steps[-1], training.steps[-1])
    if curve.steps[0] <= begins_after + (end - begins_after) / 10:
        return change
    if has_weights:  # validation data may be harder than training data by more than the run changes
        return of_training
    of_last, calm_last = max(of_one, rows.one), max(calm_of_one, rows.calm_one)
    found = _compare(training.values, last, rows, of_last=of_last, calm_last=calm_last)
    return replace(found, figure="val_loss", starts_from="loss")


def _noise_of_validation(values: Sequence[float], rows: Noise | None) -> tuple[float, float]:
    """Return the noise of one validation loss and the calm one; `rows` is that of the training rows.

    Few validations have at most the noise of a training row.
    """
    if len(values) >= FEWEST_ROWS:
        own = noise_of(values)
        return own.one, own.calm_one
    limit = rows.one if rows else 0.0
    noise = min(limit, mean_square_noise(values)) if len(values) >= 5 else limit
    most = MOST_OF_VALIDATION * values[0] if min(values) > 0 else math.inf
    return noise, min(noise, rows.calm_one if rows else 0.0, most)
