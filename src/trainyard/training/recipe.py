"""Which training a configuration asks for: pretraining on prepared tokens, or GRPO on generated questions.

The recipes share the run directory and everything after it. They are `session`'s and `grpo`'s.
"""

import os
from collections.abc import Callable
from typing import Any

from trainyard.config.launch import require_processes
from trainyard.config.schema import Config
from trainyard.training.grpo import session as grpo
from trainyard.training.grpo.questions import Questions, questions_of
from trainyard.training.parts import Listener
from trainyard.training.rehearsal import rehearse as rehearse_pretraining
from trainyard.training.segment import Request
from trainyard.training.session import train as pretrain
from trainyard.training.stop import StopRequest
from trainyard.training.training_data import TrainingData
from trainyard.training.training_data import ready_data as ready_tokens

RequestFor = Callable[[Any], Request[Any]]
"""All of a request but the data, which is prepared last."""


def ready_data(config: Config) -> TrainingData | Questions:
    """What the recipe trains on, prepared where it has to be. Raises what `training_data` raises."""
    return questions_of(config) if config.recipe == "grpo" else ready_tokens(config.data, config.model)


def train(request: Request[Any], *, stop: StopRequest, listener: Listener) -> dict[str, Any]:
    """Train until done; returns the outcome. Raises StoppedError after an early stop with a checkpoint."""
    recipe = grpo.train_on_rewards if request.config.recipe == "grpo" else pretrain
    return recipe(request, stop=stop, listener=listener)


def rehearse(config: Config, request_for: RequestFor, *, processes: int | None = None) -> dict[str, Any]:
    """What `processes` would train, or what would be prepared first; nothing is changed.

    Without a number they are those that torchrun has started, or this one.
    """
    count = processes or int(os.environ.get("WORLD_SIZE", "1"))
    require_processes(config, count)
    if config.recipe == "grpo":
        return grpo.describe(request_for(questions_of(config)))
    return rehearse_pretraining(config, request_for, processes=count)
