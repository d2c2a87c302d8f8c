"""The layout of a run directory, which connects any trainer to all later steps.

    <run>/run.json  config.yaml  metrics.jsonl  events.jsonl  evaluations.jsonl
          checkpoints/step-00000500/  logs/  tensorboard/  report/  output/

Only names and existence; `identity`, `records` and `checkpoint_manifest` know the contents of the files.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from trainyard.run.atomic_files import make_folder

_STEP_NAME = re.compile(r"step-([0-9]{8,18})")


def is_run_directory(folder: Path) -> bool:
    """Return whether the folder holds a run; one in a store has `identity.json` from its start."""
    is_stored = folder.name.startswith("run-") and (folder / "identity.json").is_file()
    return is_stored or ((folder / "run.json").is_file() and (folder / "config.yaml").is_file())


def step_of(name: str) -> int | None:
    """Return the step in the checkpoint directory's name; None for a name that `step_name` never gives."""
    match = _STEP_NAME.fullmatch(name)
    step = int(match[1]) if match else None
    return step if step is not None and step_name(step) == name else None


def step_name(step: int) -> str:
    """Return the directory name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


class _Place:
    """A file or a folder of a run directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunDirectory", _: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory. Nothing is created until `create`."""

    path: Path

    run_file = _Place("run.json")
    config_file = _Place("config.yaml")
    metrics_file = _Place("metrics.jsonl")
    events_file = _Place("events.jsonl")
    # Missing if no checkpoint of the run was evaluated.
    evaluations_file = _Place("evaluations.jsonl")
    checkpoints = _Place("checkpoints")
    logs = _Place("logs")
    # For what another program writes itself; nothing else does.
    output = _Place("output")
    tensorboard = _Place("tensorboard")
    report = _Place("report")

    @property
    def own_paths(self) -> tuple[Path, ...]:
        """What Trainyard writes; another program may write anything else."""
        files = (self.metrics_file, self.events_file, self.evaluations_file)
        return (*files, self.checkpoints, self.logs, self.tensorboard, self.report)

    def checkpoint(self, step: int) -> Path:
        """Return the directory of the checkpoint after `step` steps."""
        return self.checkpoints / step_name(step)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps that have a directory under `checkpoints/`, oldest first, complete or not."""
        if not self.checkpoints.is_dir():
            return []
        steps = (step_of(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir())
        return sorted(step for step in steps if step is not None)

    def create(self) -> None:
        """Create the directory and its folders; existing ones are kept. Raises ConfigError when it cannot."""
        for folder in (self.checkpoints, self.logs, self.tensorboard, self.report):
            make_folder(folder)
