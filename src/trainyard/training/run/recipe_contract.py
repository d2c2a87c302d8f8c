"""The contract between the lifecycle of a run and a recipe: what a recipe adds, and in which order.

    Recipe: check, data --> RecipeSegment: length, weights, state --> train --> sample --> close

`lifecycle` does everything else: it joins the processes, locks and records, resumes, saves, stops, and writes
the outcome. A recipe is one module with a subclass of each of these two classes and an instance `RECIPE` of
its `Recipe`, and one line in `config.registries`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from trainyard.config.schema import Config
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.checkpoint.resume import ResumePoint
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.run.length import RunLength
from trainyard.training.run.run_context import RunContext
from trainyard.training.run.run_request import Request
from trainyard.training.run.step_loop import StepLoop
from trainyard.training.runtime.world import World
from trainyard.training.weights.weight_source import WeightSource


class RecipeSegment(ABC):
    """One segment of a run by a recipe. The lifecycle calls its methods in the order of this class."""

    length: RunLength
    """The planned length of the complete run."""
    sampling = "writing a sample"
    """The name of the work of `sample`, as it is shown."""

    @abstractmethod
    def fits(self, fingerprint: str) -> dict[str, Any]:
        """Return the values that a checkpoint must share to be resumed; `fingerprint` is that of the data."""

    @abstractmethod
    def starting_weights(self, point: ResumePoint | None) -> WeightSource | None:
        """Return the weights to start from; None for random ones, or where the checkpoint has them all."""

    @abstractmethod
    def build(
        self, weights: WeightSource | None, *, world: World, device: torch.device, resumes: bool
    ) -> TrainingState:
        """Build model and optimizer at step 0. With `resumes` a checkpoint replaces all values afterwards."""

    def plan_facts(self) -> Mapping[str, Any]:
        """Return facts for the plan in `run.json`, beside length and number of parameters."""
        return {}

    def start_from_state(self, state: TrainingState) -> None:  # noqa: B027 - most recipes have nothing to do
        """Continue after a checkpoint was loaded into `state`, or at step 0."""

    @abstractmethod
    def train(self, context: RunContext, loop: StepLoop) -> None:
        """Train to the last step. `loop` records, saves and stops around each step."""

    @abstractmethod
    def sample(self, context: RunContext) -> str:
        """Return text that shows a person what the model has learned."""

    def close(self) -> None:  # noqa: B027 - most recipes hold nothing
        """Release what the segment holds, such as a thread that reads ahead."""


class Recipe(ABC):
    """A method of training: its data and its segments."""

    def check(self, request: Request[Any]) -> None:  # noqa: B027 - most recipes train everywhere
        """Raise ConfigError when this machine or process cannot train `request` by this recipe."""

    @abstractmethod
    def ready_data(self, config: Config, progress: Progress) -> Any:
        """Return the data to train on, prepared if needed."""

    def data_at_hand(self, config: Config) -> Any | None:
        """Return the data without writing anything; None when it has to be prepared first."""
        return self.ready_data(config, UNSEEN)

    def plan_preparation(self, config: Config) -> dict[str, Any]:  # noqa: ARG002
        """Describe the preparation of data that is not at hand."""
        return {}

    @abstractmethod
    def open(self, request: Request[Any], *, processes: int) -> RecipeSegment:
        """Open a segment of `request` on `processes` processes. Nothing is built yet."""
