"""The description of another program: what `scripts/run_program.py` runs, and what it records of the run.

The plan writes it into a file of the job (`wrapped_program`); the script reads it in the pod.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.jobs.job_plan import FILES_DIRECTORY
from trainyard.run.untrusted_files import parse_json_object, read_bytes

_KINDS = {
    "recipe": str,
    "command": list,
    "torchrun": bool,
    "steps": int,
    "checkpoints": str,
    "environment": dict,
}


@dataclass(frozen=True)
class ProgramDescription:
    """A program, and the facts of its run that the plan knows."""

    recipe: str
    command: tuple[str, ...]
    torchrun: bool
    """Whether `command` is a script and its arguments, which torchrun starts once per GPU."""
    steps: int
    """Optimizer steps of the whole run."""
    checkpoints: str
    """The folder of the program's own checkpoints."""
    environment: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"command": list(self.command), "environment": dict(self.environment)}


def read_description(path: Path, recipes: Collection[str]) -> ProgramDescription:
    """Read the description of a program of one of `recipes`. Raises ConfigError for anything else.

    The folder of `path` replaces FILES_DIRECTORY in the command, because a pod may mount it elsewhere.
    """
    try:
        sheet = parse_json_object(read_bytes(path), str(path))
    except (OSError, DamagedFileError) as error:
        raise ConfigError(f"--program {path}: cannot be read ({error})") from None
    for name, kind in _KINDS.items():
        if not isinstance(sheet.get(name), kind):
            raise ConfigError(f"--program {path}: {name} is missing or no {kind.__name__}")
    if sheet["recipe"] not in recipes:
        raise ConfigError(f"--program {path}: {sheet['recipe'][:80]!r} is none of {', '.join(recipes)}")
    words = tuple(str(word).replace(FILES_DIRECTORY, str(path.parent)) for word in sheet["command"])
    return ProgramDescription(**{name: sheet[name] for name in _KINDS} | {"command": words})
