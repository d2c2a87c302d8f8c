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


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory. Nothing is created until `create`."""

    path: Path

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def evaluations_file(self) -> Path:
        """Missing if no checkpoint of the run was evaluated."""
        return self.path / "evaluations.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def output(self) -> Path:
        """The folder for what another program writes itself; nothing else does."""
        return self.path / "output"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def report(self) -> Path:
        return self.path / "report"

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
