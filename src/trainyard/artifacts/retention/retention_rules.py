"""Decide which checkpoints of a run stay in the store, and why: rules and facts in, decisions out.

Nothing is read or removed here; `pruning_plan` gathers the facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.artifacts.record.checkpoints import Checkpoint
from trainyard.errors import ConfigError


@dataclass(frozen=True)
class RetentionRules:
    """The rules that the user gave. `keep_last` and `keep_every` keep checkpoints until `max_age`."""

    keep_last: int | None = None
    """Keep this many of the newest checkpoints."""
    keep_every: int | None = None
    """Keep checkpoints whose step is a multiple of this."""
    max_age: float | None = None
    """Seconds; older ones are removed in spite of the two rules above. Alone, it keeps all younger ones."""
    keep_promoted: bool = True
    even_parents: bool = False
    """Also remove checkpoints from which another run was started."""

    def __post_init__(self) -> None:
        if self.keep_last is None and self.keep_every is None and self.max_age is None:
            raise ConfigError("No rule: give --keep-last, --keep-every or --max-age. Nothing was removed.")
        for name, value in (("--keep-last", self.keep_last), ("--keep-every", self.keep_every)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: must be a whole number above 0")


@dataclass(frozen=True)
class CheckpointFacts:
    """The facts about a run's checkpoints."""

    newest_good: int | None
    """Step of the newest checkpoint that verifies; None if no checkpoint has a known step."""
    ages: Mapping[int, float]
    """Seconds since the store received it, by step."""
    promoted: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names that point at a checkpoint, by its digest."""
    children: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Runs that were started from a checkpoint, by its digest."""
    has_failed: bool = False
    """Whether the run failed: `max_age` then removes its newest checkpoint too."""


@dataclass(frozen=True)
class RetentionDecision:
    """The decision on a checkpoint."""

    checkpoint: Checkpoint
    keep: bool
    reason: str


def decide_retention(
    checkpoints: Sequence[Checkpoint], rules: RetentionRules, facts: CheckpointFacts
) -> list[RetentionDecision]:
    """Decide on each checkpoint, newest first. One whose step is unknown is always kept."""
    known = [each for each in checkpoints if each.step is not None]
    last = {each.step for each in known[: rules.keep_last or 0]}
    return [_decide(each, rules, facts, is_last=each.step in last) for each in checkpoints]


def _decide(
    checkpoint: Checkpoint, rules: RetentionRules, facts: CheckpointFacts, *, is_last: bool
) -> RetentionDecision:
    step, names = checkpoint.step, facts.promoted.get(checkpoint.digest, ())
    if step is None:
        return RetentionDecision(checkpoint, True, "its step is not known")
    is_old = rules.max_age is not None and facts.ages.get(step, 0.0) > rules.max_age
    if step == facts.newest_good and not (facts.has_failed and is_old):
        return RetentionDecision(checkpoint, True, "the newest that verifies")
    if names and rules.keep_promoted:
        return RetentionDecision(checkpoint, True, f"promoted as {', '.join(names)}")
    runs = ", ".join(str(number) for number in facts.children.get(checkpoint.digest, ()))
    if runs and not rules.even_parents:
        return RetentionDecision(checkpoint, True, f"run {runs} was started from it")
    keep, reason = _by_rule(step, rules, facts.ages.get(step, 0.0), is_last=is_last)
    if not keep:
        reason += f"; promoted as {', '.join(names)}" if names else ""
        reason += f"; run {runs} was started from it and loses its parent" if runs else ""
    return RetentionDecision(checkpoint, keep, reason)


def _by_rule(step: int, rules: RetentionRules, age: float, *, is_last: bool) -> tuple[bool, str]:
    if rules.max_age is not None and age > rules.max_age:
        return False, f"{age / 86400:.1f} days old"
    if is_last:
        return True, f"one of the last {rules.keep_last}"
    if rules.keep_every is not None and step % rules.keep_every == 0:
        return True, f"a multiple of {rules.keep_every}"
    if rules.keep_last is None and rules.keep_every is None:
        return True, f"{age / 86400:.1f} days old"
    return False, "no rule keeps it"
