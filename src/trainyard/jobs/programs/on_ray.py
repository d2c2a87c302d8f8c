"""The command line that is handed to Ray for a program.

A program that runs in every pod is started on each node by `scripts/run_on_ray.py`, which also sets what
other operators set: the number of nodes, the node's rank, and the address of the first. Ray's own drivers run
once.
"""

import shlex

from trainyard.jobs.job_plan import JobPlan


def entrypoint_of(plan: JobPlan) -> str:
    """The entrypoint, as Ray's shell on the head takes it."""
    program = plan.program
    command = list(program.command)
    if not program.once:
        command = [
            *(program.python, "scripts/run_on_ray.py"),
            *("--num-nodes", str(plan.nodes), "--nproc-per-node", str(plan.processes_per_node)),
            *("--gpu-per-node", str(plan.resources.gpus), "--", *command),
        ]
    line = shlex.join(command)
    return f"cd {shlex.quote(program.directory)} && exec {line}" if program.directory else line
