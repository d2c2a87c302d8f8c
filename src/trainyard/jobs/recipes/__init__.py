"""The recipes say what pods run: the trainer, any program, a preset of a program, or a command after `--`.

In: a configuration and a `JobSpec` without its program. Out: the `Program`. A new program is a preset, a
module of `programs/presets/`.
"""

from collections.abc import Iterator
from typing import Protocol

from trainyard.config.registries import COMMAND
from trainyard.config.schema import Config
from trainyard.jobs.job_spec import JobSpec, Program
from trainyard.jobs.recipes import any_program, own_command, preset_recipe, trainyard_trainer


class JobRecipe(Protocol):
    """A module of this folder.

    The plan that it receives has the user's own command as its program.
    """

    def problems(self, config: Config, plan: JobSpec, /) -> Iterator[str]:
        """Yield the reasons why this recipe cannot run the job."""
        ...

    def program(self, config: Config, plan: JobSpec, /) -> Program:
        """Return the program that the pods run, for a job without problems."""
        ...


def find_job_recipe(config: Config, *, own: bool) -> JobRecipe:
    """Return the recipe of a configuration, or of the user's own command."""
    if own:
        return own_command
    if config.recipe == COMMAND:
        return any_program
    return preset_recipe if config.is_program else trainyard_trainer
