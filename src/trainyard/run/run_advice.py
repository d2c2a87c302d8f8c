"""Explain that a path is not a run or a checkpoint, and name what was meant, if the disk shows it.

Only names and existence are read. Nothing is opened, and no run is judged.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory

# A longer list is cut to its newest entries.
MOST_NAMED = 3
MOST_STEPS = 8


def require_run(path: Path) -> None:
    """Raise ConfigError with the run that was meant, if `path` has no `run.json`."""
    if not (path / "run.json").is_file():
        raise not_a_run(path)


def not_a_run(path: Path) -> ConfigError:
    """Return the error for `path`, which is not a run directory."""
    if path.is_dir():
        cause = f"{path / 'run.json'}: missing, so {path} is not a run directory"
    elif path.exists():
        cause = f"{path}: is a file, so it is not a run directory"
    else:
        cause = f"{path / 'run.json'}: missing, so {path} is not a run directory: there is no such folder"
    return ConfigError(f"{cause}. {advice(path)}")


def advice(path: Path) -> str:
    """Return the sentence that names the run that was meant, or the command that makes one."""
    around = next((each for each in path.absolute().parents if _is_run(each)), None)
    if around is not None and path.exists():
        return f"It is inside the run {_as_given(around, path)}; name that directory"
    below = _runs_in(path)
    if below:
        names = [str(path / name) for name in below[-MOST_NAMED:]]
        more = f" ({len(below)} runs in all)" if len(below) > MOST_NAMED else ""
        return f"It holds runs; name one: {', '.join(names)}{more}"
    if not path.exists():
        beside = _runs_in(path.parent)
        near = get_close_matches(path.name, beside, n=1)
        if near:
            return f"Did you mean {path.parent / near[0]}?"
        if beside:
            return f"The newest of the runs there is {path.parent / beside[-1]}"
    return "Name the directory of a run, such as runs/ID; `trainyard run` makes one"


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
    around = next((each for each in path.parents if (each / MANIFEST_NAME).is_file()), None)
    if around is not None and path.exists():
        return f"it is inside the checkpoint {around}; name that directory"
    for run in (path, path.parent, path.parent.parent):
        steps = _complete_steps(RunDirectory(run))
        if steps:
            listed = ", ".join(str(step) for step in steps[-MOST_STEPS:])
            return f"{run} has step {listed}; name one, such as {RunDirectory(run).checkpoint(steps[-1])}"
        if _is_run(run):
            return f"the run {run} has no complete checkpoint; --resume none starts at step 0"
    return None


def _complete_steps(directory: RunDirectory) -> list[int]:
    try:
        steps = directory.checkpoint_steps()
    except OSError:
        return []
    return [step for step in steps if (directory.checkpoint(step) / MANIFEST_NAME).is_file()]


def _as_given(run: Path, path: Path) -> Path:
    """Return `run`, a parent of `path`, relative to the working directory if `path` was."""
    here = Path.cwd()
    return run.relative_to(here) if not path.is_absolute() and run.is_relative_to(here) else run


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _runs_in(folder: Path) -> list[str]:
    """Return the names of the runs in `folder`, sorted, so that the newest is last."""
    try:
        return sorted(each.name for each in folder.iterdir() if _is_run(each))
    except OSError:
        return []
