"""When a run saves, what it keeps, and what it says of it.

How a checkpoint is written is `checkpoint`'s; when a step is due is the loop's.
"""

from contextlib import suppress

import torch

from trainyard.errors import CheckpointError, RecordError, TrainingFailedError
from trainyard.training.checkpoint import SaveOrigin, remove_old_checkpoints, save_checkpoint
from trainyard.training.parts import Segment
from trainyard.training.placement import own_part
from trainyard.training.resume import where_to_go_on

_GUESS_SECONDS = 5.0
"""What a save is assumed to take before the first one was measured."""


class Saver:
    """The checkpoints of one segment."""

    def __init__(self, parts: Segment) -> None:
        self._parts = parts
        self._state = parts.state
        self._saved_step = parts.state.step if parts.state.step else None
        self.seconds = _GUESS_SECONDS
        """What the last save took."""

    def save(self) -> None:
        """Save the state of this step, unless it is saved already, then remove what is no longer kept."""
        if self._saved_step == self._state.step:
            return
        parts, step = self._parts, self._state.step
        self._require_finite_weights()
        try:
            origin = SaveOrigin(parts.run_id, parts.fits)
            saved = save_checkpoint(parts.directory, self._state, origin=origin, world=parts.world)
        except CheckpointError as error:
            with suppress(RecordError):
                parts.event("checkpoint_failed", step=step, reason=str(error))
            raise
        self._saved_step, self.seconds = step, max(saved.seconds, 0.1)
        parts.event(
            "checkpoint_saved",
            step=step,
            bytes=saved.size,
            seconds=round(saved.seconds, 4),
            manifest_sha256=saved.manifest_sha256,
        )
        self.remove_old()

    def remove_old(self) -> None:
        """Remove the checkpoints beyond those kept, as a kill between saving and removing may leave them."""
        if not self._parts.world.is_main:
            return
        keep = self._parts.config.checkpointing.keep_last
        for old in remove_old_checkpoints(self._parts.directory, keep, newest=self._state.step):
            self._parts.event("checkpoint_removed", step=old, keep_last=keep)

    def _require_finite_weights(self) -> None:
        """A state that cannot be trained from must not replace one that can."""
        named = self._state.model.named_parameters()
        bad = next((name for name, values in named if not torch.isfinite(own_part(values)).all()), None)
        if (bad := self._parts.world.first_reason(bad)) is not None:
            raise TrainingFailedError(
                f"Step {self._state.step}: {bad} is not finite after the optimizer step; it is not saved.\n"
                f"Lower training.learning_rate. {where_to_go_on(self._parts.directory)}"
            )
