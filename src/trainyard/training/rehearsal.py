"""Describe what a run would do, without changing anything, for `--dry-run`.

Data that is not prepared stays unprepared. The length of the run is then unknown, so the description says
what would be prepared instead.
"""

from collections.abc import Callable
from typing import Any

from trainyard.config.schema import Config
from trainyard.training.data.preparation import plan_preparation
from trainyard.training.data.training_data import TrainingData, data_at_hand
from trainyard.training.run.lifecycle import describe
from trainyard.training.run.run_request import Request

RequestFor = Callable[[TrainingData], Request]
"""Makes the request from the data, which is prepared last."""


def rehearse(config: Config, request_for: RequestFor, *, processes: int) -> dict[str, Any]:
    """Describe what `processes` processes would train, or under `prepares` what would be prepared first."""
    data = data_at_hand(config.data, config.model)
    if data is None:
        return {"prepares": plan_preparation(config.data, config.model).to_json()}
    return describe(request_for(data), processes)
