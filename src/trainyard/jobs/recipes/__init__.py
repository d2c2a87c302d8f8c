"""The recipes say what pods run: the trainer, any program, a preset of a program, or a command after `--`.

In: a `RecipeOrder`. Out: a `Program`. A new program is a preset, `configs/programs/NAME.yaml`.
"""

from trainyard.config.kind import RunKind
from trainyard.config.registries import COMMAND
from trainyard.config.schema import Config
from trainyard.jobs.recipes import any_program, own_command, trainyard_trainer
from trainyard.jobs.recipes.preset_recipe import PresetRecipe
from trainyard.jobs.recipes.recipe_order import JobRecipe
from trainyard.programs.presets import load_preset


def find_job_recipe(config: Config, *, own: bool) -> JobRecipe:
    """Return the recipe of a configuration, or of the user's own command."""
    if own:
        return own_command
    if config.recipe == COMMAND:
        return any_program
    return trainyard_trainer if config.kind is RunKind.TRAINER else PresetRecipe(load_preset(config.recipe))
