"""Run a user's own command in a job: it is run unchanged in every pod.

On Ray it is the driver and runs once. `torchrun train.py` reads its place in the run from the variables of
PyTorchJobs and TrainJobs, so a fixed `--node_rank` is never needed there. HyperPod's operator sets others,
which its own `hyperpodrun` reads. No run directory is kept for it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from trainyard.jobs.job_kind import JobKind
from trainyard.jobs.job_plan import Program
from trainyard.jobs.recipes.recipe_order import RecipeOrder

NAME = "command"
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_MENTIONED = re.compile(r"\b(torchrun|torch\.distributed\.(run|launch))\b")
_PLACED = re.compile(r"--(nnodes|rdzv|master|node[-_]rank|standalone)\b.*|--(rdzv|master)[-_].*")
"""torchrun's options that name the nodes and where they meet."""


def problems(order: RecipeOrder) -> Iterator[str]:
    command = order.command
    if not command:
        yield "--recipe command: put the command after --, such as -- torchrun train.py"
    elif not _starts_torchrun(command):
        return
    elif order.kind.on_ray and order.nodes > 1:
        yield (
            f"-- torchrun: on Ray a command runs once, on the head, so {order.nodes - 1} of {order.nodes} "
            "nodes would do nothing; use --kind pytorchjob or trainjob, or a command that starts tasks on "
            "all of them"
        )
    elif order.kind.agent and not any(map(_PLACED.fullmatch, command)):
        yield (
            f"-- torchrun: it does not read the variables of {order.kind.api.installs}, so each pod would "
            f"train alone; use -- {order.kind.agent} --nnodes={order.nodes} "
            f"--nproc-per-node={order.processes}"
        )


def lacks_agent(command: Sequence[str], kind: JobKind) -> bool:
    """Return whether the pods seem to run torchrun, and not the agent that their operator needs."""
    words = " ".join(command)
    return bool(kind.agent) and kind.agent not in words and _MENTIONED.search(words) is not None


def program(order: RecipeOrder) -> Program:
    """The program that runs the command."""
    pod = order.config.cluster.pod
    return Program(
        NAME, order.command, once=order.kind.on_ray, directory=pod.directory or "", python=pod.python
    )


def _starts_torchrun(command: Sequence[str]) -> bool:
    """Return whether the command is `torchrun`, or `python -m` with its module, with or without their
    folder.
    """
    first = PurePosixPath(command[0]).name
    if not re.fullmatch(r"python[0-9.]*", first):
        return first == "torchrun"
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in _MODULES
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return False
    return False
