"""Choose the recipe of a configuration: pretraining on prepared tokens, or GRPO on generated questions.

The recipes share the run directory and everything after it. `session` and `grpo` implement them. Each is
imported only when it is needed, because its imports take time.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from trainyard.config.mesh import require_own_recipe, require_processes
from trainyard.config.schema import Config
from trainyard.run.directory import RunDirectory
from trainyard.run.progress import UNSEEN, Progress

if TYPE_CHECKING:
    from trainyard.training.data.training_data import TrainingData
    from trainyard.training.grpo.questions import Questions
    from trainyard.training.run.run_context import Listener
    from trainyard.training.run.run_request import Request
    from trainyard.training.runtime.stop_signals import StopRequest
    from trainyard.training.runtime.world import World

RequestFor = Callable[[Any], "Request[Any]"]
"""Makes the request from the data, which is prepared last."""


def ready_data(config: Config, progress: Progress = UNSEEN) -> "TrainingData | Questions":
    """The training data of the recipe, prepared if needed. Raises what `training_data` raises."""
    if config.recipe == "grpo":
        from trainyard.training.grpo.questions import questions_of

        return questions_of(config)
    from trainyard.training.data.training_data import ready_data as ready_tokens

    return ready_tokens(config.data, config.model, progress)


def together(
    config: Config, directory: RunDirectory, *, told: Callable[[], bool], listener: "Listener"
) -> AbstractContextManager["World | None"]:
    """Join the other processes before the data is prepared, which may take longer than they would wait.

    None where a recipe trains in one process.
    """
    if config.recipe == "grpo":
        return nullcontext(None)
    from trainyard.training.run.lifecycle import together as join

    return join(config, directory, told=told, listener=listener)


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
    """Import and return the trainer of the recipe. Raises ConfigError for another program's recipe."""
    require_own_recipe(config)
    if config.recipe == "grpo":
        from trainyard.training.grpo.session import train_on_rewards

        return train_on_rewards
    from trainyard.training.run.lifecycle import train

    return train


def rehearse(config: Config, request_for: RequestFor, *, processes: int | None = None) -> dict[str, Any]:
    """Describe what `processes` processes would train or prepare first, without changing anything.

    The default for `processes` is the number that torchrun has started, or 1.
    """
    count = processes or int(os.environ.get("WORLD_SIZE", "1"))
    require_processes(config, count)
    if config.recipe == "grpo":
        from trainyard.training.grpo.questions import questions_of
        from trainyard.training.grpo.session import describe

        return describe(request_for(questions_of(config)))
    from trainyard.training.rehearsal import rehearse as rehearse_pretraining

    return rehearse_pretraining(config, request_for, processes=count)
