"""Run `recipe: command` in a job: a run directory is stored and proven.

Every pod runs `trainyard pod`, which starts the program of the configuration: directly, or by torchrun if
there are several processes. The image needs the packages of the program and, beside them, Trainyard's core
(`pip install git+https://github.com/OWNER/REPOSITORY`).
"""

from collections.abc import Iterator

from trainyard.config.schema import Config
from trainyard.jobs.job_spec import JobSpec, Program
from trainyard.jobs.kinds import find_kind
from trainyard.jobs.recipes.pod_program import pod_program

NAME = "program"


def ray_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield why a program that uses one node cannot run on several nodes of Ray."""
    if find_kind(plan.kind).on_ray and plan.nodes > 1:
        yield (
            f"recipe {config.recipe}: on Ray it runs once, on the head, so {plan.nodes - 1} of "
            f"{plan.nodes} nodes would do nothing; use --kind pytorchjob or trainjob"
        )


def problems(config: Config, plan: JobSpec) -> Iterator[str]:
    yield from ray_problems(config, plan)
    if not config.checkpointing.shared:
        yield (
            "checkpointing.shared: false is for the trainer of this repository; leave it out with this recipe"
        )


def program(config: Config, plan: JobSpec) -> Program:
    """The program that runs the command in a run directory of the job's name."""
    return pod_program(NAME, config, plan, once=find_kind(plan.kind).on_ray)
