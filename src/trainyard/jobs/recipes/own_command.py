"""A user's own command as the program of a job: it is run as it stands, in every pod.

On Ray it is the driver, and runs once. `torchrun train.py` finds its place by the variables that the
operators set, so that a fixed `--node_rank` is never needed.
"""

from collections.abc import Sequence

from trainyard.config.cluster import ClusterPodConfig
from trainyard.jobs.job_plan import Program

NAME = "command"
ON_RAY = ("raycluster", "rayjob")


def own_program(command: Sequence[str], pod: ClusterPodConfig, *, kind: str) -> Program:
    """The program that runs `command`."""
    return Program(
        NAME,
        tuple(command),
        once=kind in ON_RAY,
        directory=pod.directory or "",
        python=pod.python,
    )
