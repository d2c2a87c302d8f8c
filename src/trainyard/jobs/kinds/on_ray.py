"""The command line that is handed to Ray for a program.

A program that runs in every pod is started on each node by `scripts/run_on_ray.py`, which also sets what
other operators set: the number of nodes, the node's rank, and the address of the first. Ray's own drivers run
once.

KubeRay pastes the entrypoint into a shell script of its submitter, and Ray hands it to another shell on the
head. Shell syntax would therefore take effect in the wrong place: of `cd a && b` Ray runs only `cd a`, and
the job succeeds. So an entrypoint has plain words only.

KubeRay restarts a command whatever its exit code is. So the entrypoint restarts what `scripts/run_pod.py`
runs, which has exit codes that are final; only a command without it is left to KubeRay.
"""

import re
from collections.abc import Iterator

from trainyard.jobs.job_plan import JobPlan

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def entrypoint_of(plan: JobPlan) -> str:
    """The entrypoint, made of words that passed `entrypoint_problems`."""
    return " ".join(_words(plan))


def entrypoint_problems(plan: JobPlan) -> Iterator[str]:
    """Words of the command that two shells would change."""
    for word in _words(plan):
        if not _PLAIN.fullmatch(word):
            yield (
                f"{word[:60]!r}: Ray hands a command through two shells, so its words may have only letters, "
                "digits and _@%+=:,./-; put what you want to run into a script in the image"
            )


def _words(plan: JobPlan) -> tuple[str, ...]:
    program = plan.program
    restarts = ("--restarts", str(plan.restarts)) if program.keeps_run and plan.restarts else ()
    if program.once:
        return (*program.command, *restarts)
    place = ("--directory", program.directory) if program.directory else ()
    folder = f"{program.directory.rstrip('/')}/" if program.directory else ""
    return (
        *(program.python, f"{folder}scripts/run_on_ray.py"),
        *("--num-nodes", str(plan.nodes), "--nproc-per-node", str(plan.processes_per_node)),
        *("--gpu-per-node", str(plan.resources.gpus), *place, *restarts, "--", *program.command),
    )
