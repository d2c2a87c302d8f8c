"""Pretraining: prepared or streamed tokens, in one process or many.

    batches of tokens --> steps (`step`) --> validation --> a sample of text

The lifecycle around it is `training.lifecycle`, which calls the methods of the segment in their order.
"""

from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from trainyard.config.mesh import mesh_shape
from trainyard.training.checkpoint.resume import ResumePoint, values_to_fit
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import Parallel, put_on_devices
from trainyard.training.pretraining.step import TrainStep
from trainyard.training.pretraining.validation import Validation, write_sample
from trainyard.training.run.length import RunLength, global_batch, plan_length
from trainyard.training.run.run_context import RunContext
from trainyard.training.run.run_request import Request
from trainyard.training.run.step_loop import StepLoop
from trainyard.training.runtime.world import World
from trainyard.training.weights.starting_weights import load_weights, open_starting_weights
from trainyard.training.weights.weight_source import WeightSource

_PROMPT_TOKENS = 16


class PretrainingSegment:
    """One segment of a pretraining run."""

    length: RunLength
    """The planned length of the complete run."""
    _parallel: Parallel
    """The model on the devices of the world; set by `build`."""

    def __init__(self, request: Request, processes: int) -> None:
        config = request.config
        groups = mesh_shape(config.compute, processes).data
        self._config, self._data = config, request.data
        self._batches = request.data.batches(
            sequence_length=config.data.sequence_length,
            batch_size=global_batch(config.training, groups),
            seed=config.training.seed,
        )
        self.length = plan_length(
            config.training, config.data, steps_per_epoch=self._batches.steps_per_epoch, groups=groups
        )

    def fits(self, fingerprint: str) -> dict[str, Any]:
        """Return the values that a checkpoint must share to be resumed; `fingerprint` is that of the data."""
        return values_to_fit(self._config, fingerprint, self.length.samples_per_step)

    def starting_weights(self, point: ResumePoint | None) -> WeightSource | None:
        """Return the weights to start from; None for random ones, or where the checkpoint has them all."""
        if point is not None:
            return None
        tile_bytes = self._config.kernel_optimization.tile_bytes
        return open_starting_weights(self._config.model, tile_bytes=tile_bytes)

    def build(
        self, weights: WeightSource | None, *, world: World, device: torch.device, resumes: bool
    ) -> TrainingState:
        """Build model and optimizer at step 0. With `resumes` a checkpoint replaces all values afterwards."""
        self._parallel = parallel = put_on_devices(self._config, world, device, draw=not resumes)
        parallel.model.model.separates_documents = self._config.data.packing == "separate"
        if weights:
            load_weights(parallel.model, weights)
        optimizer = build_optimizer(parallel.model, self._config.training)
        exchange = parallel.compressed.tensors if parallel.compressed else None
        return TrainingState(parallel.model, optimizer, exchange=exchange)

    def plan_facts(self) -> dict[str, Any]:
        """Return facts for the plan in `run.json`, beside length and number of parameters."""
        compressed = self._parallel.compressed
        return {"gradient_compression": asdict(compressed.compression)} if compressed else {}

    def start_from_state(self, state: TrainingState) -> None:
        """Continue after a checkpoint was loaded into `state`, or at step 0."""
        if state.restored_positions:
            self._batches.restore(state.restored_positions)
            state.data_position = self._batches.position(state.step)

    def train(self, context: RunContext, loop: StepLoop) -> None:
        context.state.model.train()
        step = TrainStep(context, loop.saver, parallel=self._parallel, batches=self._batches)
        step.warm_up_reducer()
        validation = self._validation()
        validate = partial(validation.run, step.forward, share=self._parallel.share) if validation else None
        loop.run(step.run, validate=validate)

    def sample(self, context: RunContext) -> str:
        """Return the text that the model writes after the first tokens of the validation data."""
        return write_sample(
            self._parallel.model,
            load_vocabulary(self._config.model),
            device=context.device,
            prompt=self._data.prompt(_PROMPT_TOKENS),
            context=self._config.data.sequence_length,
            seed=self._config.training.seed,
        )

    def close(self) -> None:
        self._batches.close()

    def _validation(self) -> Validation | None:
        """None when the validation tokens do not fill one sequence."""
        training, length = self._config.training, self._config.data.sequence_length
        count = self.length.samples_per_step * training.validation_batches
        windows = self._data.validation_windows(length=length, count=count)
        if not len(windows):
            return None
        size = training.batch_size
        batches = [windows[i : i + size] for i in range(0, len(windows), size)]
        return Validation(batches, text_bytes=load_vocabulary(self._config.model).text_bytes)
