"""The trials of a sweep, in Optuna's journal, which stays usable however the process that writes it ends.

A trial is `running` from the moment its settings are drawn until its end is recorded: after an interruption
these are the ones to continue. Nothing is trained here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError
from trainyard.sweep.search_space import Choices, Dimension, combinations, format_number

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

JOURNAL = "journal.log"
SAMPLERS = ("tpe", "random", "grid")
_STATES = {
    "COMPLETE": "done",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "running",
    "WAITING": "waiting",
}
_REASON = "reason"
_FIRST_TRIALS = 4
"""Trials that have to end before others are compared with their median."""


@dataclass(frozen=True)
class Trial:
    """One training of a sweep."""

    number: int
    state: str
    """done, pruned, failed, running or waiting."""
    settings: Mapping[str, str]
    """Key -> value, as `--set` takes it."""
    value: float | None
    """The figure that is compared; None if the training did not end with one."""
    reason: str
    """Why it failed; empty otherwise."""

    @property
    def has_ended(self) -> bool:
        return self.state in ("done", "pruned", "failed")

    def to_json(self) -> dict[str, Any]:
        known = {"value": self.value, "reason": self.reason or None}
        facts = {"trial": self.number, "state": self.state, "settings": dict(self.settings)}
        return facts | {name: value for name, value in known.items() if value is not None}


class SweepStudy:
    """The trials of one sweep."""

    def __init__(
        self, folder: Path, space: Sequence[Dimension], *, sampler: str, maximize: bool, seed: int
    ) -> None:
        """Open the journal in `folder`, or create it. Raises ConfigError if Optuna is not installed."""
        try:
            import optuna
        except ImportError:
            raise ConfigError(
                "Optuna is not installed; docs/evaluation.md#a-sweep-over-settings has the command"
            ) from None
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
            study_name="sweep",
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        # A sampler that starts with the same seed again would draw the first settings again.
        study.sampler = _new_sampler(sampler, seed + len(study.get_trials(deepcopy=False)))
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=_FIRST_TRIALS)
        self._study: Study = study
        if sampler == "grid":
            for settings in combinations(space):
                study.enqueue_trial(settings, skip_if_exists=True)

    def trials(self) -> list[Trial]:
        return [_trial(each) for each in self._study.get_trials(deepcopy=False)]

    def unfinished(self) -> Iterator[Trial]:
        """Yield the trials to continue; draw settings that were not drawn before an interruption."""
        for trial in self.trials():
            if trial.state == "running":
                yield self._draw(trial.number)

    def start(self) -> Trial:
        """Return a new trial, with its settings."""
        return self._draw(self._study.ask().number)

    def _draw(self, number: int) -> Trial:
        from optuna.trial import Trial as OpenTrial

        open_trial = OpenTrial(self._study, self._frozen(number)._trial_id)
        for each in self._space:
            if isinstance(each, Choices):
                open_trial.suggest_categorical(each.key, each.values)
            elif each.is_whole:
                open_trial.suggest_int(each.key, int(each.low), int(each.high), log=each.is_log)
            else:
                open_trial.suggest_float(each.key, each.low, each.high, log=each.is_log)
        return _trial(self._frozen(number))

    def should_prune(self, number: int, values: Mapping[int, float]) -> bool:
        """Report the values of a running trial; return whether it is worse than the median of the others."""
        from optuna.trial import Trial as OpenTrial

        open_trial = OpenTrial(self._study, self._frozen(number)._trial_id)
        known = self._frozen(number).intermediate_values
        for step in sorted(values.keys() - known.keys()):
            open_trial.report(values[step], step)
        return bool(values) and open_trial.should_prune()

    def record_end(self, number: int, state: str, *, value: float | None = None, reason: str = "") -> None:
        """Record how a trial ended: `done` with its value, `pruned`, or `failed` with a reason."""
        from optuna.trial import TrialState

        states = {ours: TrialState[theirs] for theirs, ours in _STATES.items()}
        if reason:
            self._study._storage.set_trial_user_attr(self._frozen(number)._trial_id, _REASON, reason)
        self._study.tell(number, value if state == "done" else None, state=states[state])

    def best(self) -> Trial | None:
        done = [trial for trial in self.trials() if trial.state == "done"]
        return self.ranking(done)[0] if done else None

    def ranking(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials with a value, the best first, and then the others."""
        sign = -1 if self._study.direction.name == "MAXIMIZE" else 1
        known = [trial for trial in trials if trial.state == "done" and trial.value is not None]
        others = [trial for trial in trials if trial not in known]
        return [*sorted(known, key=lambda trial: sign * (trial.value or 0.0)), *others]

    def _frozen(self, number: int) -> "FrozenTrial":
        return self._study.get_trials(deepcopy=False)[number]


def _new_sampler(name: str, seed: int) -> "BaseSampler":
    from optuna.samplers import RandomSampler, TPESampler

    return TPESampler(seed=seed) if name == "tpe" else RandomSampler(seed=seed)


def _trial(frozen: "FrozenTrial") -> Trial:
    settings = {
        key: value if isinstance(value, str) else format_number(value) for key, value in frozen.params.items()
    }
    state = _STATES[frozen.state.name]
    value = frozen.value if state == "done" else None
    return Trial(frozen.number, state, settings, value, str(frozen.user_attrs.get(_REASON, "")))
