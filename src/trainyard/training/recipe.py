"""Find the recipe of a configuration, and prepare, rehearse or train by it.

`config.registries` lists the recipes. Each is imported only when it is needed, because its imports take time.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.config.mesh import require_own_recipe, require_processes
from trainyard.config.registries import RECIPES
from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.progress import UNSEEN, Progress

if TYPE_CHECKING:
    from trainyard.training.run.recipe_contract import Recipe
    from trainyard.training.run.run_context import Listener
    from trainyard.training.run.run_request import Request
    from trainyard.training.runtime.stop_signals import StopRequest
    from trainyard.training.runtime.world import World

RequestFor = Callable[[Any], "Request[Any]"]
"""Makes the request from the data, which is prepared last."""


def import_recipe(config: Config) -> "Recipe":
    """Import and return the recipe of a configuration."""
    recipe: Recipe = import_module(RECIPES[config.recipe].module).RECIPE
    return recipe


def ready_data(config: Config, progress: Progress = UNSEEN) -> Any:
    """Return the training data of the recipe, prepared if needed."""
    return import_recipe(config).ready_data(config, progress)


def join_processes(
    config: Config, directory: RunDirectory, *, is_stopping: Callable[[], bool], listener: "Listener"
) -> AbstractContextManager["World"]:
    """Join the other processes before the data is prepared, which may take longer than they would wait."""
    from trainyard.training.run import lifecycle

    return lifecycle.join_processes(config, directory, is_stopping=is_stopping, listener=listener)


class Trainer(Protocol):
    """Trains to the end and returns the outcome.

    Raises StoppedError after an early stop with a checkpoint.
    """

    def __call__(
        self,
        request: "Request[Any]",
        *,
        stop: "StopRequest",
        listener: "Listener",
        world: "World | None" = None,
    ) -> dict[str, Any]: ...


def trainer_of(config: Config) -> Trainer:
    """Import the recipe and return its trainer. Raises ConfigError for another program's recipe."""
    require_own_recipe(config)
    from trainyard.training.run import lifecycle

    return partial(lifecycle.train, import_recipe(config))


def rehearse(config: Config, request_for: RequestFor, *, processes: int | None = None) -> dict[str, Any]:
    """Describe what `processes` processes would train, without changing anything, for `--dry-run`.

    Data that is not prepared stays unprepared. The length of the run is then unknown, so the description says
    under `prepares` what would be prepared first. The default for `processes` is the number that torchrun has
    started, or 1.
    """
    from trainyard.training.run import lifecycle

    count = processes or int(os.environ.get("WORLD_SIZE", "1"))
    require_processes(config, count)
    recipe = import_recipe(config)
    data = recipe.data_at_hand(config)
    if data is None:
        return {"prepares": recipe.plan_preparation(config)}
    return lifecycle.describe(recipe, request_for(data), processes=count)
