"""Explain that a path is not a run or a checkpoint, and name what was meant, if the disk shows it.

Only names and existence are read. Nothing is opened, and no run is judged.
"""

from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.run.checkpoint_retention import complete_steps
from trainyard.run.directory import RunDirectory
from trainyard.run.suggested_commands import from_here

# A longer list is cut to its newest entries.
_MOST_NAMED = 3
_MOST_STEPS = 8


def require_run(path: Path) -> None:
    """Raise ConfigError with the run that was meant, if `path` has no `run.json`."""
    if not _is_run(path):
        raise not_a_run(path)


def not_a_run(path: Path) -> ConfigError:
    """Return the error for `path`, which is not a run directory."""
    return ConfigError(f"{path / 'run.json'}: missing, so {path} is not a run directory. {advice(path)}")


def advice(path: Path) -> str:
    """Return the sentence that names the run that was meant, or the command that makes one."""
    around = next((each for each in path.absolute().parents if _is_run(each)), None)
    if around is not None and path.exists():
        return f"It is inside the run {from_here(around)}; name that directory"
    folder = path if _runs_in(path) else path.parent
    names = _runs_in(folder)
    if not names:
        return "Name the directory of a run, such as runs/ID; `trainyard run` makes one"
    meant = get_close_matches(path.name, names, n=1) or names[-_MOST_NAMED:]
    return f"Name one of the {len(names)} runs in {folder}, such as {', '.join(meant)}"


def other_inputs(directory: RunDirectory, differences: Sequence[str]) -> ConfigError:
    """Return the error of a start in the directory of a run that had other inputs, and stays as it is."""
    listed = "".join(f"\n  {each}" for each in differences)
    steps = _complete_steps(directory)
    last = directory.checkpoint(steps[-1]) if steps else ""
    begin = f", or begin one from its last checkpoint: --resume {last}" if steps else ""
    return ConfigError(
        f"{directory.path} holds a run with other inputs:{listed}\n"
        f"It stays as it is. For a new run choose another --run-dir{begin}. Nothing was started."
    )


def checkpoint_advice(path: Path) -> str:
    """Return what to give instead of `path`, which is no checkpoint."""
    return checkpoint_meant(path) or "name a checkpoint (…/checkpoints/step-00000500), auto or none"


def checkpoint_meant(path: Path) -> str | None:
    """Return what to give instead of `path`, if the disk shows which checkpoint was meant."""
    for run in map(RunDirectory, (path, *path.parents[:3])):
        if steps := _complete_steps(run):
            listed = ", ".join(str(step) for step in steps[-_MOST_STEPS:])
            return f"{run.path} has step {listed}; name one, such as {run.checkpoint(steps[-1])}"
        if _is_run(run.path):
            return f"the run {run.path} has no complete checkpoint; --resume none starts at step 0"
    return None


def _complete_steps(directory: RunDirectory) -> list[int]:
    with suppress(OSError):
        return complete_steps(directory)
    return []


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _runs_in(folder: Path) -> list[str]:
    """Return the names of the runs in `folder`, sorted, so that the newest is last."""
    with suppress(OSError):
        return sorted(each.name for each in folder.iterdir() if _is_run(each))
    return []
