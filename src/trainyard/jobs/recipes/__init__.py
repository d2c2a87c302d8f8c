"""The recipes say what pods run: one module per recipe, with one protocol (`recipe_order.JobRecipe`).

In: a `RecipeOrder`. Out: a `Program`. A new recipe is a module here and its line in RECIPES. If it is another
program of which a run directory is kept, it also has a line in RECORDED.
"""

from collections.abc import Mapping

from trainyard.config import registries
from trainyard.config.schema import Config
from trainyard.jobs.recipes import (
    any_program,
    deepspeed,
    megatron,
    nemo,
    own_command,
    torchtitan,
    trainyard_trainer,
    verl,
)
from trainyard.jobs.recipes.recipe_order import JobRecipe, RecordedRecipe

RECORDED: Mapping[str, RecordedRecipe] = {
    recipe.NAME: recipe for recipe in (megatron, nemo, verl, torchtitan, deepspeed)
}
RECIPES: Mapping[str, JobRecipe] = {
    **{recipe.NAME: recipe for recipe in (trainyard_trainer, any_program, own_command)},
    **RECORDED,
}


def find_job_recipe(config: Config, *, own: bool) -> JobRecipe:
    """The recipe of a configuration, or of the user's own command."""
    if own:
        return RECIPES[own_command.NAME]
    if config.recipe == registries.COMMAND:
        return RECIPES[any_program.NAME]
    return RECIPES[trainyard_trainer.NAME if config.recipe in registries.RECIPES else config.recipe]
