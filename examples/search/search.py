"""Search over keys of a configuration with Optuna: each trial is a run that is trained, stored and proven.

    pip install optuna
    python examples/search/search.py --config configs/smoke.yaml --trials 12

Copy this file, and change `suggest`. The trials are in DIR/search.db; the same command resumes a search that
was stopped or killed: trials that ended stay, the run of an unfinished trial resumes from its checkpoint.
"""

import argparse
import sys
from pathlib import Path

import optuna
from optuna.trial import TrialState

from trainyard.functions import train_model

STOPPED = (75, 130)  # exit codes of a run that a signal ended


def suggest(trial: optuna.Trial) -> list[str]:
    """Return the settings of one trial."""
    return [
        f"training.learning_rate={trial.suggest_float('learning_rate', 1e-4, 1e-2, log=True)}",
        f"training.batch_size={trial.suggest_categorical('batch_size', [8, 16])}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/smoke.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dir", type=Path, default=Path("runs/search"))
    parser.add_argument("--trials", type=int, default=12)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)

    def validation_loss(trial: optuna.Trial) -> float:
        name = trial.user_attrs.get("run", f"trial-{trial.number:04d}")
        trial.set_user_attr("run", name)
        run_dir = args.dir / name
        answer = train_model(args.config, run_dir=run_dir, set=[*args.set, *suggest(trial)])
        if answer["exit_code"] in STOPPED:
            sys.exit(answer["exit_code"])  # the trial stays unfinished
        if answer.get("outcome", {}).get("status") != "succeeded":
            raise optuna.TrialPruned(f"{run_dir} failed; its log states the cause")
        return float(answer["outcome"]["validation_loss"])

    study = optuna.create_study(
        study_name="search", storage=f"sqlite:///{args.dir / 'search.db'}", load_if_exists=True
    )
    for trial in study.get_trials(states=[TrialState.RUNNING]):  # the search was stopped during this one
        study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
        study.tell(trial.number, state=TrialState.FAIL)
    ended = len(study.get_trials(states=[TrialState.COMPLETE, TrialState.PRUNED]))
    study.optimize(validation_loss, n_trials=max(0, args.trials - ended))
    for trial in sorted(study.get_trials(states=[TrialState.COMPLETE]), key=lambda each: each.value or 0.0):
        print(f"{trial.value:.4f}  {trial.user_attrs['run']}  {trial.params}")


if __name__ == "__main__":
    main()
