"""What a run would do, told without changing anything: for `--dry-run`.

Data that is not prepared yet is not prepared for it: how long the run is then follows from nothing, and what
would be prepared is told instead.
"""

from collections.abc import Callable
from typing import Any

from trainyard.config.schema import Config
from trainyard.training.preparation import plan_preparation
from trainyard.training.segment import Request
from trainyard.training.session import describe
from trainyard.training.training_data import TrainingData, data_at_hand

RequestFor = Callable[[TrainingData], Request]
"""All of a request but the data, which is prepared last."""


def rehearse(config: Config, request_for: RequestFor, *, processes: int) -> dict[str, Any]:
    """What `processes` would train, or, where the data comes first, `prepares`: what would be prepared."""
    data = data_at_hand(config.data, config.model)
    if data is None:
        return {"prepares": plan_preparation(config.data, config.model).to_json()}
    return describe(request_for(data), processes)
