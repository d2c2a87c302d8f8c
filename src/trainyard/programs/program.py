"""A program, the facts that its configuration gives, and how it is started on a node: `recipe: command`."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.config.load import values_sha256
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.programs.inputs import find_lock, lock_fault
from trainyard.programs.observations import OBSERVER
from trainyard.programs.own_files import OUTPUT_VARIABLE, RUN_DIRECTORY, in_run, names_run
from trainyard.run.atomic_files import make_folder, write_bytes_atomically
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import identity_in
from trainyard.run.launch_environment import NodeLauncher, launcher_options, nccl_log, nccl_log_variables

CHECKPOINT_WORD = "{checkpoint}"
CHECKPOINTS_FOLDER, FILES_FOLDER = "program", "files"
"""The folders in a run directory for a program's own checkpoints, and for the files of its preset."""
EVENTS_FILE, STOP_FILE = "program-events.jsonl", "stop-requested"
_NO_EFFECT_ON_WORKERS = ("-u", "-B")
"""Options of Python that torchrun's workers have anyway, or do not need."""
_KEY = re.compile(r"\{([a-z_]+(?:\.[a-z0-9_]+)+)\}")
"""A dotted key of the configuration in braces."""
_WANDB_RUN = ("WANDB_RUN_ID", "WANDB_RESUME")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "composer", "hyperpodrun", "mpirun", "srun")


@dataclass(frozen=True)
class Program:
    recipe: str
    command: tuple[str, ...]
    """The program and its arguments, without those for a resume."""
    directory: Path
    """The folder in which it runs, absolute."""
    environment: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None
    """The file that pins its packages; None if there is none."""
    data: tuple[str, ...] | None = None
    """Patterns of the files that it reads; None if that is not known."""
    steps: int | None = None
    """Optimizer steps of the complete run; None if the program decides."""
    metrics: str = "auto"
    checkpoints: str = "auto"
    resume: tuple[str, ...] = ()
    """Arguments that are added to resume; `{checkpoint}`, if one has it, stands for the path."""
    processes: int = 1
    """Processes per machine."""
    torchrun: bool | None = None
    """Whether torchrun starts the command; None: only if there are several processes."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that its preset writes into FILES_FOLDER of the run directory: text by name."""
    observe: bool = True
    """Whether the observer is on the path of its Pythons."""

    @property
    def picks_checkpoint(self) -> bool:
        """Whether it searches the checkpoint to resume from itself, because no argument names one."""
        return not any(CHECKPOINT_WORD in word for word in self.resume)

    @property
    def facts(self) -> dict[str, Any]:
        facts = {
            "command": list(self.command),
            "resume": list(self.resume) or None,
            "directory": str(self.directory),
            "lock": self.lock and os.path.relpath(self.lock, self.directory),
            "data": None if self.data is None else list(self.data),
            "processes": self.processes,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def sha256_in(self, run_directory: Path) -> str:
        """Return the digest of the command and its variables, as if the run directory were anywhere else."""
        facts: dict[str, Any] = {
            "command": list(self.command),
            "environment": dict(self.environment),
            "resume": list(self.resume),
            "processes": self.processes,
        }
        if self.files:
            facts["files"] = dict(self.files)
        path = json.dumps(str(run_directory))[1:-1]
        return values_sha256(json.loads(json.dumps(facts).replace(path, RUN_DIRECTORY)))

    def with_words(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> "Program":
        """Return the program with the texts that `change` makes of its own, which it gets by their key."""
        names = ("command", "environment", "resume", "files")
        changed = change({f"program.{name}": getattr(self, name) for name in names})
        command, environment, resume, files = (changed[f"program.{name}"] for name in names)
        return replace(
            self, command=tuple(command), environment=environment, resume=tuple(resume), files=files
        )

    @property
    def searched(self) -> Path | None:
        """The folder that is searched for its files; None if it has them in the run directory."""
        return None if names_run(self.command) else self.directory

    def resumed_from(self, checkpoint: Path | None) -> tuple[str, ...]:
        """Return the command, with the arguments that resume from `checkpoint`; None starts anew."""
        if checkpoint is None:
            return self.command
        return (*self.command, *(word.replace(CHECKPOINT_WORD, str(checkpoint)) for word in self.resume))


@dataclass(frozen=True)
class ProgramLaunch:
    """The start of a program on this node."""

    program: Program
    directory: RunDirectory
    node: NodeLauncher
    nodes: int = 1
    """Nodes that the program uses, even if it is started on only one of them."""
    grace: float = 30.0
    """Seconds from SIGTERM until it is killed."""

    @property
    def number(self) -> int:
        """The number of this node; the first one writes the records."""
        return self.node.rank or 0

    @property
    def machines(self) -> int:
        """Machines that the program uses; Ray starts the program on only one of them."""
        return max(self.node.nodes, self.nodes)

    @property
    def processes(self) -> int:
        return self.node.processes if isinstance(self.node.processes, int) else self.program.processes

    @property
    def has_torchrun(self) -> bool:
        several = self.processes * self.node.nodes > 1
        return several if self.program.torchrun is None else self.program.torchrun

    def command(self, checkpoint: Path | None) -> list[str]:
        run = str(self.directory.path)
        words = tuple(in_run(word, run) for word in self.program.resumed_from(checkpoint))
        if not self.has_torchrun:
            return list(words)
        options = launcher_options(self.node, self.processes, grace_seconds=max(1, int(self.grace)))
        script = without_interpreter(words)
        worker = script or ("--no-python", *words)
        # The interpreter of the program has torch; the one that runs Trainyard may not.
        python = words[0] if script else sys.executable
        launcher = [self.node.agent[0]] if self.node.agent else [python, "-m", "torch.distributed.run"]
        return [*launcher, *options, *worker]

    def environment(self, checkpoint: Path | None) -> dict[str, str]:
        logs = self.directory.logs
        ours = {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TRAINYARD_EVENTS": str(logs / EVENTS_FILE),
            "TRAINYARD_STOP_FILE": str(logs / STOP_FILE),
            "TRAINYARD_CHECKPOINT": str(checkpoint or ""),
            OUTPUT_VARIABLE: str(self.directory.output),
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(self.grace) - 1)),
        }
        found = identity_in(self.directory.path)
        if found is not None and found.key and os.environ.keys().isdisjoint(_WANDB_RUN):
            ours |= zip(_WANDB_RUN, (found.key, "allow"), strict=True)  # one run of W&B in each attempt
        if self.node.nodes > 1:
            ours |= nccl_log_variables(nccl_log(logs, self.node.log_name), os.environ)
        given = self.program.environment
        if not self.program.observe:
            return {**ours, **given}
        path = given.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        return {**ours, **given, "PYTHONPATH": os.pathsep.join(filter(None, (str(OBSERVER), path)))}

    def write_files(self) -> None:
        """Write the files of its preset into the run directory."""
        for name, text in self.program.files.items():
            make_folder(self.directory.path / FILES_FOLDER)
            write_bytes_atomically(self.directory.path / FILES_FOLDER / name, text.encode())


def program_of(config: Config, base: Path) -> Program:
    """Return the program of a configuration with `recipe: command`; program.directory is relative to `base`.

    Raises ConfigError for a folder or a lock that does not exist.
    """
    assert config.program.command is not None  # config.combinations requires it
    return program_with(config, base, fill_in(config.program.command, config))


def program_with(config: Config, base: Path, command: tuple[str, ...]) -> Program:
    """Return the program that runs `command` by section program. Raises ConfigError as `program_of`."""
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
        if fault := lock_fault(lock):
            raise ConfigError(
                f"program.lock: {given.lock} {fault}. Pin each package to one "
                "version (pip freeze > requirements.lock writes all), and name that file."
            )
    if given.processes > 1 and (name := Path(command[0]).name) in _LAUNCHERS:
        raise ConfigError(
            f"program.processes: {given.processes}, but {name} starts the processes itself. Set it to 1, or "
            "give torchrun's part to Trainyard: command: [python, train.py, …]."
        )
    return Program(
        recipe=config.recipe,
        command=command,
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


def fill_in(words: tuple[str, ...], config: Config) -> tuple[str, ...]:
    """Return `words` with `{section.key}` replaced by that value of the configuration.

    Other braces, such as `{checkpoint}` or JSON, are kept. Raises ConfigError for a key without a value.
    """
    values = config.to_plain()

    def value(match: re.Match[str]) -> str:
        found: Any = values
        for name in match[1].split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found is None or isinstance(found, dict | list):
            raise ConfigError(
                f"program.command: {match[0]} has no value in the configuration. Name a key such as "
                "{training.max_steps}, and give it a value."
            )
        return str(found).lower() if isinstance(found, bool) else str(found)

    return tuple(_KEY.sub(value, word) for word in words)


def without_interpreter(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return a Python command without its interpreter, as torchrun takes it; None for any other program.

    `python train.py --x` gives `train.py --x`, and `python -m pkg.train` gives `-m pkg.train`.
    """
    if not re.fullmatch(r"python[0-9.]*", Path(command[0]).name):
        return None
    rest = list(command[1:])
    while rest and rest[0] in _NO_EFFECT_ON_WORKERS:
        rest.pop(0)
    return tuple(rest) if rest and (rest[0] == "-m" or not rest[0].startswith("-")) else None
