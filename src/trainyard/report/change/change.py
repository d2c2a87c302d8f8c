"""Compare short runs of a change's base and head: their figures, and whether any got worse.

    rules + runs of the base + runs of the head  ──>  Comparison  ──>  figures, each with a verdict

Machines are noisy: a figure is worse only beyond its limit *and* when every run of the head is worse than
every run of the base. On a CPU losses repeat to the bit, so the change causes any difference in them. The
caller makes the runs; `change_markdown` writes the comparison for people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

from trainyard.errors import ConfigError
from trainyard.report.facts.history import finite_or_none
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.records import read_rows
from trainyard.run.run_settings import read_settings

SCHEMA = 1
_WARM_UP = 0.25
"""The share of the first rows whose speed is ignored: caches are cold and the allocator still grows."""


@dataclass(frozen=True)
class ChangeRules:
    """The runs to make, and the limits beyond which a figure is a regression: shares of the base's figure."""

    config: str = "configs/smoke.yaml"
    overrides: tuple[str, ...] = ("training.max_steps=40", "model.device=cpu")
    repeats: int = 3
    """Runs per side; base and head take turns."""
    minutes: float = 5.0
    """Time limit of one run."""
    loss: float = 0.01
    tokens_per_second: float = 0.25
    memory: float = 0.10


@dataclass(frozen=True)
class Measured:
    """The figures of one short run; None where a figure is not known."""

    steps: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    memory_bytes: float | None
    """Peak resident memory of the training process."""
    weights_sha256: str | None


@dataclass(frozen=True)
class Side:
    """The base or the head."""

    commit: str
    runs: tuple[Measured, ...]
    problem: str = ""
    """Why its runs did not end; empty when they did."""

    def values(self, name: str) -> tuple[float, ...]:
        """The figure `name` of every run that has it."""
        found = (getattr(run, name) for run in self.runs)
        return tuple(value for value in found if value is not None)


class ChangeVerdict(StrEnum):
    """How the head's figure compares with the base's."""

    EQUAL = "equal"
    WITHIN = "within"
    """Different, but within the limit or the noise."""
    BETTER = "better"
    """Better by more than the limit, in every run."""
    WORSE = "worse"


@dataclass(frozen=True)
class ComparedFigure:
    """One figure, from all runs of both sides."""

    name: str
    base: tuple[float, ...]
    head: tuple[float, ...]
    limit: float
    higher_is_better: bool = False

    @property
    def change(self) -> float:
        """The change from the base's median to the head's, as a share of the base's."""
        before, after = median(self.base), median(self.head)
        return (after - before) / abs(before) if before else float(after != before)

    @property
    def verdict(self) -> ChangeVerdict:
        if set(self.base) == set(self.head):
            return ChangeVerdict.EQUAL
        rises, falls = min(self.head) > max(self.base), max(self.head) < min(self.base)
        worse, better = (falls, rises) if self.higher_is_better else (rises, falls)
        if abs(self.change) <= self.limit or not (worse or better):
            return ChangeVerdict.WITHIN
        return ChangeVerdict.WORSE if worse else ChangeVerdict.BETTER


@dataclass(frozen=True)
class Comparison:
    """Base and head under the same rules."""

    rules: ChangeRules
    base: Side
    head: Side

    @property
    def figures(self) -> tuple[ComparedFigure, ...]:
        """The figures that both sides have."""
        rules = self.rules
        every = (
            self._compared("loss", "loss", rules.loss),
            self._compared("validation loss", "validation_loss", rules.loss),
            self._compared("tokens/s", "tokens_per_second", rules.tokens_per_second, higher_is_better=True),
            self._compared("memory", "memory_bytes", rules.memory),
        )
        return tuple(figure for figure in every if figure.base and figure.head)

    def _compared(
        self, name: str, key: str, limit: float, *, higher_is_better: bool = False
    ) -> ComparedFigure:
        return ComparedFigure(name, self.base.values(key), self.head.values(key), limit, higher_is_better)

    @property
    def worse(self) -> tuple[str, ...]:
        """The names of the figures that got worse."""
        return tuple(figure.name for figure in self.figures if figure.verdict is ChangeVerdict.WORSE)

    @property
    def refused(self) -> bool:
        """Whether the change should not be merged: it cannot train, or a figure got worse."""
        return bool(self.head.problem or self.worse)

    @property
    def same_weights(self) -> bool:
        """Whether every run of both sides ended with the same weights, to the bit."""
        digests = {run.weights_sha256 for side in (self.base, self.head) for run in side.runs}
        return len(digests) == 1 and None not in digests and bool(self.base.runs and self.head.runs)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def read_rules(text: str, name: str) -> ChangeRules:
    """The rules in a YAML text; absent keys have their defaults. Raises ConfigError for unknown keys."""
    return _rules(read_settings(text), name)


def comparison_from(value: Any) -> Comparison:
    """Read what `to_json` wrote. Every part is checked, because the writer may be code not reviewed yet.

    Raises ConfigError when it is not a comparison.
    """
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ConfigError(
            f"the comparison does not have schema {SCHEMA}: compare again with the current scripts"
        )
    try:
        rules = _rules(value["rules"], "the comparison")
        return Comparison(rules, _side(value["base"]), _side(value["head"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"the comparison cannot be read: {type(error).__name__} {str(error)[:100]}"
        ) from None


def measure_run(run_directory: Path, memory_bytes: int | None) -> Measured:
    """The figures of a short run that has ended. Raises what `read_run` raises."""
    layout = RunDirectory(run_directory)
    run, rows = read_run(layout.run_file), read_rows(layout.metrics_file)
    outcome = run.get("outcome", {})
    settled = rows[int(len(rows) * _WARM_UP) :]
    speeds = [speed for row in settled if (speed := finite_or_none(row.get("tokens_per_second"))) is not None]
    digests = outcome.get("state_sha256")
    return Measured(
        steps=int(finite_or_none(outcome.get("steps")) or 0),
        loss=finite_or_none(outcome.get("final_loss")),
        validation_loss=finite_or_none(outcome.get("validation_loss")),
        tokens_per_second=median(speeds) if speeds else None,
        memory_bytes=None if memory_bytes is None else float(memory_bytes),
        weights_sha256=str(digests["model"]) if isinstance(digests, Mapping) and "model" in digests else None,
    )


def _rules(value: Mapping[str, Any], where: str) -> ChangeRules:
    known = {field.name for field in fields(ChangeRules)}
    for key, given in value.items():
        if key not in known:
            raise ConfigError(f"{where}: {key}: unknown key; there are {', '.join(sorted(known))}")
        if not _fits(key, given):
            default = getattr(ChangeRules(), key)
            raise ConfigError(f"{where}: {key}: {str(given)[:80]!r} does not fit; the default is {default}")
    words = {"overrides": tuple(value["overrides"])} if "overrides" in value else {}
    return ChangeRules(**{**value, **words})


def _fits(key: str, given: object) -> bool:
    if key == "overrides":
        if isinstance(given, str) or not isinstance(given, Sequence):
            return False
        return all(isinstance(word, str) for word in given)
    if key == "config":
        return isinstance(given, str) and bool(given)
    figure = finite_or_none(given)
    if figure is None or (key == "repeats" and not (isinstance(given, int) and 1 <= given <= 20)):
        return False
    return 0 < figure <= 60 if key == "minutes" else figure >= 0


def _side(value: Mapping[str, Any]) -> Side:
    runs = tuple(_measured(run) for run in value["runs"][:20])
    return Side(str(value["commit"])[:64], runs, str(value["problem"])[:2000])


def _measured(value: Mapping[str, Any]) -> Measured:
    figures = {name: finite_or_none(value[name]) for name in ("loss", "validation_loss", "tokens_per_second")}
    digest = value["weights_sha256"]
    return Measured(
        steps=int(value["steps"]),
        memory_bytes=finite_or_none(value["memory_bytes"]),
        weights_sha256=None if digest is None else str(digest)[:64],
        **figures,
    )
