"""Decide whether a run learned: whether it ended better than it started, by more than its noise.

    rows ──> the judged figure (reward, else validation loss, else loss) ──> first and last level ──> Change

The first level is the first validation loss if the run validated within the first tenth of its steps, else
the first training losses: a validation late in a run shows no start. The last level is the last validation
loss; without validation, and for rewards, it is the mean over the last tenth of the rows. A run that starts
from given weights may stay as it was, but must not end worse. Fewer than ten rows are too short to say.

The noise of one value is the spread of its distance from the line between its two neighbours, which removes
any trend, as a median absolute deviation, which ignores single spikes (Gasser, Sroka and Jennen-Steinmetz,
Residual variance and residual pattern in nonlinear regression, Biometrika 73, 1986). Neighbours that rise and
fall together would make it too small, so the same is computed from the means of ten parts, and the larger of
the two counts. A difference within the noise is no difference: see `SIGNIFICANT`.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from trainyard.proof.recorded_facts import RecordedFacts, integer_or_none, is_finite_number

FEWEST_ROWS = 10
# A difference counts from this many of its standard errors. The rates of wrong verdicts that follow
# are in docs/decisions/0040-learned.md.
SIGNIFICANT = 3.0
# The first row alone is often unusual, for example in a warm-up: a fall from it has to be larger.
SIGNIFICANT_FROM_ONE = 4.0
# The figures that show learning, the first that is logged decides, and its sign: rewards should rise.
FIGURES = {"reward": ("reward", -1), "val_loss": ("validation loss", 1), "loss": ("loss", 1)}


@dataclass
class Curve:
    """The finite values of one figure, with their steps."""

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass
class Curves:
    """The figures of a run that show its learning."""

    by_name: dict[str, Curve] = field(default_factory=lambda: {name: Curve() for name in FIGURES})
    bits_per_byte: float | None = None
    """Of the last validation."""
    chosen: str = ""
    """The figure that decides; empty: the first of `FIGURES` that has values."""

    def collect(self, rows: Iterable[RecordedFacts | None]) -> Iterator[RecordedFacts | None]:
        """Yield the rows unchanged, and keep their figures."""
        for row in rows:
            step = None if row is None else integer_or_none(row.get("step"))
            if row is not None and step is not None:
                self._add(step, row)
            yield row

    def _add(self, step: int, row: RecordedFacts) -> None:
        for name, curve in self.by_name.items():
            if is_finite_number(value := row.get(name)):
                curve.steps.append(step)
                curve.values.append(value)
        if "val_loss" in row:
            bits = row.get("val_bits_per_byte")
            self.bits_per_byte = bits if is_finite_number(bits) else None

    def start_with(self, events: Iterable[RecordedFacts | None], begins_after: int) -> None:
        """Put the validation before the first step, if an event has one, in front of the others."""
        for event in events:
            if event is None or event.get("event") != "validated" or event.get("step") != begins_after:
                continue
            if is_finite_number(loss := event.get("val_loss")):
                self.by_name["val_loss"].steps.insert(0, begins_after)
                self.by_name["val_loss"].values.insert(0, loss)
                return

    @property
    def judged(self) -> str:
        """The name of the figure that decides."""
        return self.chosen or next((name for name, curve in self.by_name.items() if curve.values), "loss")

    @property
    def rows(self) -> int:
        """The number of rows that the judgement is based on."""
        rows = len(self.by_name[self.judged].values)
        return max(rows, len(self.by_name["loss"].values)) if rows and self.judged == "val_loss" else rows

    @property
    def last(self) -> float | None:
        """The level of the judged figure at the end; None without any value."""
        values = self.by_name[self.judged].values
        if not values:
            return None
        return values[-1] if self.judged == "val_loss" else fmean(values[-_tenth(values) :])


@dataclass(frozen=True)
class Change:
    """The change of the judged figure from the start of the run to its end."""

    first: float
    last: float
    noise: float
    """The standard error of the difference."""
    is_better: bool
    is_worse: bool
    figure: str = "loss"


def change_of(curves: Curves, begins_after: int, *, has_weights: bool) -> Change | None:
    """Return the change over the run, which started from step `begins_after`; None if it is too short.

    `has_weights`: it started from given weights and not from random ones.
    """
    name = curves.judged
    if curves.rows < FEWEST_ROWS:
        return None
    if name == "val_loss":
        validation, training = curves.by_name["val_loss"], curves.by_name["loss"]
        return _change_of_validation(validation, training, begins_after, has_weights=has_weights)
    sign = FIGURES[name][1]
    found = _change_of_rows([sign * value for value in curves.by_name[name].values])
    return replace(found, first=sign * found.first, last=sign * found.last, figure=name)


def noise_of_one(values: Sequence[float], *, is_robust: bool = True) -> float:
    """Return the standard deviation of the values around their local trend; 0 for fewer than three."""
    # (a + c) / 2 - b has 1.5 times the variance of one value.
    found = [abs((a + c) / 2 - b) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    if not found:
        return 0.0
    spread = 1.4826 * median(found) if is_robust else 0.0
    return (spread or math.sqrt(fmean(each * each for each in found))) / math.sqrt(1.5)


def noise_of_tenth(values: Sequence[float]) -> float:
    """Return the standard error of the mean of a tenth of the values."""
    count = _tenth(values)
    tenths = [fmean(values[i * len(values) // 10 : (i + 1) * len(values) // 10]) for i in range(10)]
    return max(noise_of_one(values) / math.sqrt(count), noise_of_one(tenths))


def _tenth(values: Sequence[float]) -> int:
    return max(1, len(values) // 10)


def _compare(values: Sequence[float], last: float, of_last: float, of_head: float) -> Change:
    """Compare the level `last` with the first row and with the mean of the first tenth; smaller is better."""
    first, head = values[0], fmean(values[: _tenth(values)])
    alone, apart = math.hypot(noise_of_one(values), of_last), math.hypot(of_head, of_last)
    falls_from_first = first - last > SIGNIFICANT_FROM_ONE * alone
    exceeds_first = last - first > SIGNIFICANT * alone
    has_diverged = head - first > SIGNIFICANT * math.hypot(noise_of_one(values), of_head)
    level = first if has_diverged or falls_from_first or exceeds_first else head
    is_better = (falls_from_first or level - last > SIGNIFICANT * apart) and not exceeds_first
    is_worse = exceeds_first or (last - head > SIGNIFICANT * apart and not falls_from_first)
    return Change(level, last, apart, is_better, is_worse)


def _change_of_rows(values: Sequence[float]) -> Change:
    noise = noise_of_tenth(values)
    return _compare(values, fmean(values[-_tenth(values) :]), noise, noise)


def _change_of_validation(curve: Curve, training: Curve, begins_after: int, *, has_weights: bool) -> Change:
    values, last = curve.values, curve.values[-1]
    noise, fall = _noise_of_validation(values, training.values), values[0] - last
    apart = noise * math.sqrt(2)
    change = Change(
        values[0], last, apart, fall > SIGNIFICANT * apart, -fall > SIGNIFICANT * apart, "val_loss"
    )
    of_training = _change_of_rows(training.values) if len(training.values) >= FEWEST_ROWS else None
    if of_training is None or change.is_worse or curve.steps[0] <= begins_after:
        return change
    above = of_training.last - training.values[0]
    alone = math.hypot(noise_of_one(training.values), noise_of_tenth(training.values))
    if above > SIGNIFICANT * alone:  # the run diverged, if only before its first validation
        return replace(of_training, first=training.values[0], is_better=False, is_worse=True)
    end = max(curve.steps[-1], training.steps[-1])
    if curve.steps[0] <= begins_after + (end - begins_after) / 10:
        return change
    if has_weights:  # validation data may be harder than training data by more than the run changes
        return of_training
    noise = max(noise, noise_of_one(training.values))
    found = _compare(training.values, last, noise, noise_of_tenth(training.values))
    return replace(found, figure="val_loss")


def _noise_of_validation(values: Sequence[float], training: Sequence[float]) -> float:
    """Return the standard deviation of one validation loss; of few, at most that of a training row."""
    if len(values) >= FEWEST_ROWS:
        return noise_of_one(values)
    limit = noise_of_one(training)
    return min(limit, noise_of_one(values, is_robust=False)) if len(values) >= 5 else limit
