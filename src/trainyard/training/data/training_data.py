"""The training data of a run: prepared token files, or a stream that is read during training."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from trainyard.config.schema import Config, DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.data.hugging_face import open_stream
from trainyard.training.data.tokenize_corpus import find_prepared_data, prepare_data
from trainyard.training.runtime.world import DataShare, World


class Batches(Protocol):
    """Training samples by step."""

    @property
    def steps_per_epoch(self) -> int | None:
        """None when the length of the data is not known."""

    def share(self, step: int, groups: DataShare, *, size: int) -> tuple[list[np.ndarray], int]:
        """The tokens `[size, sequence_length + 1]` of this process's forward passes at `step`, from 0.

        Also returns the number of targets that count in the loss, over all processes.
        """

    def position(self, step: int) -> dict[str, Any] | None:
        """The data that a checkpoint needs to resume at `step`; None when the step number is enough."""

    def restore(self, positions: Sequence[dict[str, Any]]) -> None:
        """Continue from the values that `position` returned on all processes."""

    def close(self) -> None:
        """Stop reading ahead."""


class TrainingData(Protocol):
    """Tokens that are ready to train on."""

    @property
    def fingerprint(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...

    def pinned_config(self, config: Config) -> Config: ...

    @property
    def name(self) -> str: ...

    def batches(self, *, sequence_length: int, batch_size: int, seed: int) -> Batches: ...

    def validation_windows(self, *, length: int, count: int) -> np.ndarray: ...

    def prompt(self, count: int) -> list[int]: ...


def ready_data(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> TrainingData:
    """Prepare or open the data of a run. Raises what `prepare_data` and `open_stream` raise."""
    if data.hugging_face.dataset:
        progress.begin(f"opening {data.hugging_face.dataset}")
        return open_stream(data, model)
    return prepare_data(data, model, progress)


def data_at_hand(data: DataConfig, model: ModelConfig) -> TrainingData | None:
    """Like `ready_data`, but write nothing; return None when the data has to be prepared first."""
    if data.hugging_face.dataset:
        return open_stream(data, model)
    return find_prepared_data(data, model)


def agreed_fingerprint(data: TrainingData, world: World) -> str:
    """Compare the fingerprint of `data` over all machines and return it.

    One process per machine computes it, which may read all of the data. Raises DataError when a machine has
    other data than the first, because each process takes its share of the same data.
    """
    found = world.gather(data.fingerprint if world.local_rank == 0 else None)
    first: str = found[0]
    other = next((rank for rank, its in enumerate(found) if its not in (first, None)), None)
    if other is not None:
        raise DataError(
            f"Rank {other} found other data than rank 0 (fingerprints {found[other][:12]}… and "
            f"{first[:12]}…). Give every machine the same files, or set data.hugging_face.revision "
            "to one commit. Nothing was started."
        )
    return first
