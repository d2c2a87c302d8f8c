"""The trials of a sweep in Optuna's journal: drawn, ended, pruned, and read again by another process."""

import importlib.util
from pathlib import Path

import pytest

from trainyard.sweep.search_space import read_space
from trainyard.sweep.sweep_study import SweepStudy

if importlib.util.find_spec("optuna") is None:
    pytest.skip("optuna is not installed (requirements-development.txt has it)", allow_module_level=True)

SPACE = read_space(
    ["training.learning_rate=log:1e-4..1e-2", "training.batch_size=8,16", "training.seed=1..9"]
)


def opened(folder: Path, *, sampler: str = "tpe", maximize: bool = False) -> SweepStudy:
    space = SPACE if sampler != "grid" else read_space(["a=1,2", "b=x,y"])
    return SweepStudy(folder, space, sampler=sampler, maximize=maximize, seed=0)


def test_settings_are_within_the_space_and_whole_where_it_is(tmp_path: Path) -> None:
    study = opened(tmp_path, sampler="random")
    for _ in range(20):
        settings = study.start().settings
        assert list(settings) == ["training.learning_rate", "training.batch_size", "training.seed"]
        assert 1e-4 <= float(settings["training.learning_rate"]) <= 1e-2
        assert settings["training.batch_size"] in ("8", "16")
        assert int(settings["training.seed"]) in range(1, 10)


def test_ended_trials_are_kept_and_the_others_continue_with_their_settings(tmp_path: Path) -> None:
    study = opened(tmp_path)
    first, second, third = study.start(), study.start(), study.start()
    study.record_end(first.number, "done", value=2.5)
    study.record_end(third.number, "failed", reason="the loss is not finite")
    again = opened(tmp_path)
    assert list(again.unfinished()) == [second]
    assert [(trial.state, trial.value, trial.reason) for trial in again.trials()] == [
        ("done", 2.5, ""),
        ("running", None, ""),
        ("failed", None, "the loss is not finite"),
    ]
    assert again.start().settings != first.settings, "the sampler must not start anew"


def test_settings_that_were_not_drawn_yet_are_drawn_later(tmp_path: Path) -> None:
    opened(tmp_path)._study.ask()  # killed before it drew
    (trial,) = opened(tmp_path).unfinished()
    assert set(trial.settings) == {each.key for each in SPACE}


@pytest.mark.parametrize(("maximize", "best"), [(False, 2.0), (True, 5.0)])
def test_the_best_is_first_and_failed_ones_are_last(tmp_path: Path, maximize: bool, best: float) -> None:
    study = opened(tmp_path, maximize=maximize)
    for value in (3.0, None, 2.0, 5.0):
        number = study.start().number
        study.record_end(number, "failed" if value is None else "done", value=value)
    ranking = study.ranking(study.trials())
    assert (ranking[0].value, ranking[-1].state) == (best, "failed")
    assert study.best() == ranking[0]


def test_a_grid_has_each_combination_once_also_when_it_is_opened_again(tmp_path: Path) -> None:
    drawn = []
    for _ in range(2):
        study = opened(tmp_path, sampler="grid")
        drawn += [tuple(study.start().settings.values()) for _ in range(2)]
    assert sorted(drawn) == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert {trial.state for trial in opened(tmp_path, sampler="grid").trials()} == {"running"}


def test_a_trial_that_is_worse_than_the_median_is_pruned(tmp_path: Path) -> None:
    study = opened(tmp_path)
    for value in (1.0, 1.1, 1.2, 1.3):
        number = study.start().number
        assert not study.should_prune(number, {10: value})
        study.record_end(number, "done", value=value)
    good, bad = study.start().number, study.start().number
    assert not study.should_prune(good, {10: 1.05})
    assert not study.should_prune(bad, {})
    assert study.should_prune(bad, {10: 4.0})
    assert not study.should_prune(bad, {10: 4.0, 20: 4.0}), "no other has a value there"
    study.record_end(bad, "pruned")
    assert study.trials()[bad].state == "pruned"
    assert study.trials()[bad].value is None
