"""Run another program in a job: `scripts/run_pod.py` starts it and keeps a run directory for it.

The command is in a file of the job, `program.json`. So no shell reads its words, and the printed plan shows
all of them.
"""

import json
import math
from collections.abc import Mapping, Sequence

from trainyard.config.load import dump_yaml
from trainyard.jobs.job_plan import FILES_DIRECTORY, Program
from trainyard.jobs.recipes.program_description import ProgramDescription
from trainyard.jobs.recipes.recipe_order import RecipeOrder

PROGRAM_FILE = "program.json"
CONFIG_FILE = "config.yaml"
_MARGIN_SECONDS = 15
"""The time between a program's last save and the end of its pod."""


def kept_program(
    recipe: str,
    order: RecipeOrder,
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
    pod = order.config.cluster.pod
    sheet = ProgramDescription(
        recipe,
        tuple(command),
        torchrun=torchrun,
        steps=order.steps,
        checkpoints=order.own_checkpoints,
        environment={"PYTHONUNBUFFERED": "1", **(environment or {})},
    )
    return Program(
        recipe,
        run_pod_command(order, "--program", f"{FILES_DIRECTORY}/{PROGRAM_FILE}"),
        once=once,
        directory=pod.directory or "",
        python=pod.python,
        files={
            CONFIG_FILE: dump_yaml(order.config),
            PROGRAM_FILE: json.dumps(sheet.to_json(), indent=1) + "\n",
            **(files or {}),
        },
    )


def run_pod_command(order: RecipeOrder, *program: str) -> tuple[str, ...]:
    """The command of a pod that keeps a run directory; the words `program` name another program to run."""
    pod = order.config.cluster.pod
    return (
        *(pod.python, "scripts/run_pod.py"),
        *("--config", f"{FILES_DIRECTORY}/{CONFIG_FILE}", *program),
        *("--run-dir", order.run_directory),
        *("--nproc-per-node", str(order.processes)),
        *("--grace", f"{save_seconds(pod.grace_seconds)}s"),
    )


def grace_seconds(saving: float) -> int:
    """The grace period of a pod whose program has `saving` seconds for a last save."""
    return math.ceil(saving) + _MARGIN_SECONDS


def save_seconds(grace_seconds: int) -> int:
    """The share of the pod's grace period that is left for a last save."""
    return max(15, grace_seconds - _MARGIN_SECONDS)
