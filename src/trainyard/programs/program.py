"""A program and the facts that its configuration gives: `recipe: command`, resolved for one machine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.config.load import values_sha256
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.programs.inputs import find_lock

CHECKPOINT_WORD = "{checkpoint}"


@dataclass(frozen=True)
class Program:
    """A program."""

    recipe: str
    command: tuple[str, ...]
    """The program and its arguments, without those for a resume."""
    directory: Path
    """The folder in which it runs, absolute."""
    environment: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None
    """The file that pins its packages; None if there is none."""
    data: tuple[str, ...] | None = None
    """Patterns of the files that it reads; None if nobody said."""
    steps: int | None = None
    """Optimizer steps of the complete run; None if the program decides."""
    metrics: str = "auto"
    checkpoints: str = "auto"
    resume: tuple[str, ...] = ()
    """Arguments that are added to resume; `{checkpoint}` stands for the path."""
    processes: int = 1
    """Processes per machine."""

    @property
    def sha256(self) -> str:
        """The digest of the command, the variables and the folder within the repository."""
        return values_sha256(
            {
                "command": list(self.command),
                "environment": dict(self.environment),
                "resume": list(self.resume),
                "processes": self.processes,
            }
        )

    def resumed_from(self, checkpoint: Path | None) -> tuple[str, ...]:
        """Return the command, with the arguments that resume from `checkpoint`; None starts anew."""
        if checkpoint is None:
            return self.command
        return (*self.command, *(word.replace(CHECKPOINT_WORD, str(checkpoint)) for word in self.resume))


def program_of(config: Config, base: Path) -> Program:
    """Return the program of a configuration with `recipe: command`. `base` is what its folder is relative to.

    Raises ConfigError for a folder or a lock that is not there.
    """
    given = config.program
    directory = (base / Path(given.directory).expanduser()).resolve()
    if not directory.is_dir():
        raise ConfigError(
            f"program.directory: {given.directory} is not a folder in {base}. Name the folder in which the "
            "program runs, relative to the folder in which this command was started."
        )
    lock = find_lock(directory)
    if given.lock is not None:
        lock = directory / Path(given.lock).expanduser()
        if not lock.is_file():
            raise ConfigError(
                f"program.lock: there is no file {lock}. Name the file that pins the packages, such as "
                "uv.lock or requirements.txt, relative to program.directory."
            )
    assert given.command is not None  # config.combinations requires it
    return Program(
        recipe=config.recipe,
        command=given.command,
        directory=directory,
        environment=given.environment,
        lock=lock,
        data=given.data,
        steps=given.steps,
        metrics=given.metrics,
        checkpoints=given.checkpoints,
        resume=given.resume or (),
        processes=given.processes,
    )


def without_interpreter(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return a Python command without its interpreter, as torchrun takes it; None for any other program.

    `python train.py --x` gives `train.py --x`, and `python -m pkg.train` gives `-m pkg.train`.
    """
    name = Path(command[0]).name
    if not (name.startswith("python") and name.removeprefix("python").replace(".", "").isdecimal() or name == "python"):
        return None
    rest = list(command[1:])
    while rest and rest[0] in ("-u", "-O", "-OO", "-B", "-I", "-s", "-S", "-E"):
        rest.pop(0)
    return tuple(rest) if rest and (rest[0] == "-m" or not rest[0].startswith("-")) else None


def launcher_of(command: tuple[str, ...]) -> list[str]:
    """Return how torchrun is started for a Python command: by the command's own interpreter.

    The interpreter of the program has torch; the one that runs Trainyard may not.
    """
    is_python = without_interpreter(command) is not None
    return [command[0] if is_python else sys.executable, "-m", "torch.distributed.run"]
