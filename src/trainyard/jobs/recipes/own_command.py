"""Run a user's own command in a job: it is run unchanged in every pod.

On Ray it is the driver and runs once. `torchrun train.py` reads its place in the run from the operators'
variables, so a fixed `--node_rank` is never needed. No run directory is kept for it.
"""

from collections.abc import Iterator

from trainyard.jobs.job_plan import Program
from trainyard.jobs.recipes.recipe_order import RAY_KINDS, RecipeOrder

NAME = "command"


def problems(order: RecipeOrder) -> Iterator[str]:
    if not order.command:
        yield "--recipe command: put the command after --, such as -- torchrun train.py"


def program(order: RecipeOrder) -> Program:
    """The program that runs the command."""
    pod = order.config.cluster.pod
    return Program(
        NAME, order.command, once=order.kind in RAY_KINDS, directory=pod.directory or "", python=pod.python
    )
