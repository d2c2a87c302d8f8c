"""Run another program in a job: `trainyard pod` starts it and keeps a run directory for it.

The plan writes the command and the facts of the run into a file of the job, `program.json`, which is read in
the pod. So no shell reads its words, and the printed plan shows them all.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from trainyard.config.load import dump_yaml
from trainyard.config.registries import PRESETS
from trainyard.config.schema import Config
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.jobs.job_spec import FILES_DIRECTORY, JobSpec, Program
from trainyard.programs.presets.preset import load_preset
from trainyard.programs.program import CHECKPOINTS_FOLDER
from trainyard.programs.program import Program as RunProgram
from trainyard.run.launch_environment import nccl_log
from trainyard.run.record_models import validate_record
from trainyard.run.untrusted_files import parse_json_object, read_bytes

PROGRAM_FILE = "program.json"
CONFIG_FILE = "config.yaml"
# The parts of the proof that decide how the job of another program ends; all decide that of the trainer.
PROVEN_OF_PROGRAMS = ("trained", "learned", "stored")
_MARGIN_SECONDS = 15
"""The time between a program's last save and the end of its pod."""


@dataclass(frozen=True)
class ProgramDescription:
    """A program, and the facts of its run that the plan knows."""

    recipe: str
    command: tuple[str, ...]
    torchrun: bool
    """Whether `command` is a script and its arguments, which torchrun starts once per GPU."""
    steps: int
    """Optimizer steps of the complete run."""
    checkpoints: str
    """The folder of the program's own checkpoints."""
    environment: Mapping[str, str]
    nodes: int
    """Nodes that the program uses, also if it is started on one of them."""

    def program(self, directory: Path) -> RunProgram:
        """Return the program for the machine that runs it; `directory` holds the locks of its images."""
        preset = load_preset(self.recipe)
        return RunProgram(
            recipe=self.recipe,
            command=self.command,
            directory=Path.cwd(),
            environment=self.environment,
            lock=directory / preset.lock,
            steps=self.steps,
            checkpoints=f"{self.checkpoints}/{preset.checkpoints}",
            torchrun=self.torchrun,
            log_form=preset.log,
            rows_on_first_node=preset.rows_on_first_node,
        )


def make_described_program(
    recipe: str,
    config: Config,
    plan: JobSpec,
    command: Sequence[str],
    *,
    torchrun: bool = True,
    once: bool = False,
    environment: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> Program:
    """Return the program that runs `command` and keeps a run directory for it.

    With `torchrun` the command is a script and its arguments, run in a process per GPU. With `once` it runs
    in one place. `files` are further files beside `program.json`, by name.
    """
    log = ""
    if once and plan.nodes > 1:
        log = nccl_log(PurePosixPath(plan.run_directory, "logs"), 0)
    sheet = ProgramDescription(
        recipe,
        tuple(command),
        torchrun=torchrun,
        steps=config.training.max_steps or 0,
        checkpoints=f"{plan.run_directory}/{CHECKPOINTS_FOLDER}",
        environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
        nodes=plan.nodes,
    )
    words = ("--program", f"{FILES_DIRECTORY}/{PROGRAM_FILE}")
    sheets = {PROGRAM_FILE: json.dumps(asdict(sheet), indent=1) + "\n", **(files or {})}
    return pod_program(recipe, config, plan, *words, once=once, files=sheets, nccl_log=log)


def pod_program(
    name: str,
    config: Config,
    plan: JobSpec,
    *words: str,
    once: bool = False,
    files: Mapping[str, str] | None = None,
    nccl_log: str = "",
) -> Program:
    """Return the program of pods that run `trainyard pod` with the further `words`."""
    pod = config.cluster.pod
    return Program(
        name,
        run_pod_command(config, plan, *words),
        once=once,
        directory=pod.directory or "",
        python=pod.python,
        files={CONFIG_FILE: dump_yaml(config), **(files or {})},
        nccl_log=nccl_log,
    )


def read_description(path: Path) -> ProgramDescription:
    """Read the description that a plan wrote of a program. Raises ConfigError for anything else.

    The folder of `path` replaces FILES_DIRECTORY in the command, because a pod may mount it elsewhere.
    """
    try:
        sheet = validate_record(ProgramDescription, parse_json_object(read_bytes(path), str(path)))
    except (OSError, ValueError, DamagedFileError) as error:
        raise ConfigError(f"--program {path}: cannot be read ({error})") from None
    if sheet.recipe not in PRESETS:
        raise ConfigError(f"--program {path}: {sheet.recipe[:80]!r} is not one of {', '.join(PRESETS)}")
    return replace(sheet, command=tuple(w.replace(FILES_DIRECTORY, str(path.parent)) for w in sheet.command))


def run_pod_command(config: Config, plan: JobSpec, *program: str) -> tuple[str, ...]:
    """The command of a pod that keeps a run directory; the words `program` name another program to run."""
    pod = config.cluster.pod
    return (
        # -P: a module of the program, such as its `datasets.py`, must not replace one that Trainyard imports.
        *(pod.python, "-P", "-m", "trainyard", "pod"),
        *("--config", f"{FILES_DIRECTORY}/{CONFIG_FILE}", *program),
        *("--run-dir", plan.run_directory),
        *("--nproc-per-node", str(plan.processes_per_node)),
        *("--grace", f"{save_seconds(pod.grace_seconds)}s"),
    )


def grace_seconds(saving: float) -> int:
    """The grace period of a pod whose program has `saving` seconds for a last save."""
    return math.ceil(saving) + _MARGIN_SECONDS


def save_seconds(grace_seconds: int) -> int:
    """The share of the pod's grace period that is left for a last save."""
    return max(15, grace_seconds - _MARGIN_SECONDS)
