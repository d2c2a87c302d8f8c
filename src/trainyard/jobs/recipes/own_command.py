"""Run a user's own command in a job: it is run unchanged in every pod.

On Ray it is the driver and runs once. `torchrun train.py` reads its place in the run from the variables of
PyTorchJobs and TrainJobs, so a fixed `--node_rank` is never needed there. HyperPod's operator sets others,
which its own `hyperpodrun` reads. No run directory is kept for it.
"""

import re
from collections.abc import Iterator

from trainyard.config.schema import Config
from trainyard.jobs.job_spec import JobSpec, Program
from trainyard.jobs.kinds import KINDS

NAME = "command"
_STARTED = re.compile(r"(\S*/)?(torchrun|python[\d.]*( -\w+)* -m torch\.distributed\.(run|launch))( |$)")
_PLACED = re.compile(r"--(nnodes|rdzv|master|node[-_]rank|standalone)\b.*|--(rdzv|master)[-_].*")
"""torchrun's options that name the nodes and where they meet."""


def problems(_config: Config, plan: JobSpec) -> Iterator[str]:
    command, kind = plan.program.command, KINDS[plan.kind]
    if not command:
        yield "--recipe command: put the command after --, such as -- torchrun train.py"
    elif not _STARTED.match(" ".join(command)):
        return
    elif kind.on_ray and plan.nodes > 1:
        yield (
            f"-- torchrun: on Ray a command runs once, on the head, so {plan.nodes - 1} of {plan.nodes} "
            "nodes would do nothing; use --kind pytorchjob or trainjob, or a command that starts tasks on "
            "all of them"
        )
    elif kind.agent and not any(map(_PLACED.fullmatch, command)):
        yield (
            f"-- torchrun: it does not read the variables of {kind.api.installs}, so each pod would "
            f"train alone; use -- {kind.agent} --nnodes={plan.nodes} "
            f"--nproc-per-node={plan.processes_per_node}"
        )


def program(config: Config, plan: JobSpec) -> Program:
    """The program that runs the command."""
    pod, once = config.cluster.pod, KINDS[plan.kind].on_ray
    return Program(NAME, plan.program.command, once=once, directory=pod.directory or "", python=pod.python)
