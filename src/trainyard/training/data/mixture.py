"""Mix several prepared datasets by weight; the order of samples is a function of seed and step alone.

Of every thousand sequences each part has exactly its share, in an order that the seed decides. Within a part
the sequences come as they would alone: each once per pass, in another order in each pass. So nothing has to
be saved to resume, and any step can be computed directly.

The idea of fixed shares instead of random draws is that of Megatron-LM's BlendedDataset.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.config.schema import Config, DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.data.batches import Permutation, StepBatches, TokenBatches
from trainyard.training.data.token_files import PreparedData
from trainyard.training.data.tokenize_corpus import find_prepared_data, prepare_data

BLOCK = 1000
"""The number of sequences in which each part has exactly its share, so one of them is the smallest share."""


def shares_of(weights: Sequence[float]) -> list[int]:
    """Return the sequences of each part in a block, by largest remainder; their sum is `BLOCK`."""
    total = math.fsum(weights)
    exact = [BLOCK * weight / total for weight in weights]
    shares = [math.floor(share) for share in exact]
    by_remainder = sorted(range(len(shares)), key=lambda index: shares[index] - exact[index])
    for index in by_remainder[: BLOCK - sum(shares)]:
        shares[index] += 1
    return shares


class MixedBatches(StepBatches):
    """The batches of a run, by step. `docs/data.md` describes the order."""

    def __init__(
        self, parts: Sequence[TokenBatches], shares: Sequence[int], *, batch_size: int, seed: int
    ) -> None:
        """`parts` have batches of one sequence; `batch_size` is the global batch."""
        self._parts, self._shares, self._batch_size, self._seed = parts, shares, batch_size, seed
        self.steps_per_epoch = max(1, sum(part.windows for part in parts) // batch_size)
        """An epoch has as many sequences as all parts together. Some may be read more often than others."""
        self._of_block = np.repeat(np.arange(len(parts)), shares)
        self._block: tuple[int, np.ndarray, np.ndarray] | None = None

    def batch(self, step: int) -> np.ndarray:
        first = step * self._batch_size
        places = (self.place(sequence) for sequence in range(first, first + self._batch_size))
        return np.concatenate([self._parts[part].batch(index) for part, index in places])

    def place(self, sequence: int) -> tuple[int, int]:
        """Return the part of the run's `sequence`, from 0, and its number among that part's sequences."""
        block, row = divmod(sequence, BLOCK)
        if self._block is None or self._block[0] != block:
            order = Permutation(BLOCK, seed=self._seed, epoch=block)(np.arange(BLOCK, dtype=np.uint64))
            parts = self._of_block[order]
            ranks = np.empty(BLOCK, dtype=np.int64)
            for part, share in enumerate(self._shares):
                ranks[parts == part] = np.arange(share)
            self._block = (block, parts, ranks)
        part = int(self._block[1][row])
        return part, block * self._shares[part] + int(self._block[2][row])


@dataclass(frozen=True)
class MixedData:
    """Prepared datasets, each with its share of a block."""

    parts: tuple[PreparedData, ...]
    weights: Mapping[str, float]
    """The weights of the configuration: path -> weight, in the order of `parts`."""

    @property
    def shares(self) -> list[int]:
        return shares_of(list(self.weights.values()))

    @property
    def name(self) -> str:
        percent = (
            f"{part.name} {share / BLOCK:.1%}" for part, share in zip(self.parts, self.shares, strict=True)
        )
        return " + ".join(percent)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of the parts and their shares."""
        facts = [[part.fingerprint, share] for part, share in zip(self.parts, self.shares, strict=True)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`: the sums, and each part with its share."""
        described = [part.to_json() for part in self.parts]
        names = ("train_tokens", "train_files", "validation_tokens", "validation_files", "skipped_files")
        sums = {name: total for name in names if (total := sum(each.get(name, 0) for each in described))}
        parts = [
            {**each, "path": path, "share": share / BLOCK}
            for each, path, share in zip(described, self.weights, self.shares, strict=True)
        ]
        return {"name": self.name, "fingerprint": self.fingerprint, **sums, "parts": parts}

    def batches(self, *, sequence_length: int, batch_size: int, seed: int) -> MixedBatches:
        """The training batches of a run. Raises DataError when a part has less than one sequence."""
        parts = [
            part.batches(sequence_length=sequence_length, batch_size=1, seed=seed) for part in self.parts
        ]
        return MixedBatches(parts, self.shares, batch_size=batch_size, seed=seed)

    def validation_windows(self, *, length: int, count: int) -> np.ndarray:
        """Up to `count` windows `[window, length + 1]`: of each part that has any its share, at least one."""
        held = [(part, share) for part, share in zip(self.parts, self.shares, strict=True) if part.validation]
        total = sum(share for _, share in held)
        found = [
            part.validation_windows(length=length, count=max(1, round(count * share / total)))
            for part, share in held
        ]
        return np.concatenate(found)[:count] if found else np.empty((0, length + 1), dtype=np.int64)

    def prompt(self, count: int) -> list[int]:
        """The first tokens of the first part."""
        return self.parts[0].prompt(count)

    def pinned_config(self, config: Config) -> Config:
        """`config` itself: how each part was split follows from its own files."""
        return config


def parts_of(data: DataConfig) -> dict[str, DataConfig]:
    """Return the configuration of each part of data.mixture, by its path.

    Each part holds out validation data of its own; a data.validation_path is read with the first one.
    """
    found: dict[str, DataConfig] = {}
    for path in data.mixture:
        changes: dict[str, Any] = {"mixture": {}, "train_path": path}
        if data.validation_path is not None and found:
            changes |= {"validation_path": None, "validation_fraction": 0.0}
        found[path] = data.model_copy(update=changes)
    return found


def prepare_mixture(data: DataConfig, model: ModelConfig, progress: Progress = UNSEEN) -> MixedData:
    """Prepare every part. Raises what `prepare_data` raises, with the path of the part."""
    parts = []
    for path, part in parts_of(data).items():
        try:
            parts.append(prepare_data(part, model, progress))
        except DataError as error:
            raise DataError(f"data.mixture, {path}: {error}") from None
    return MixedData(tuple(parts), data.mixture)


def find_prepared_mixture(data: DataConfig, model: ModelConfig) -> MixedData | None:
    """Return the mixture without writing anything; None if a part has to be prepared first."""
    found = [find_prepared_data(part, model) for part in parts_of(data).values()]
    parts = tuple(part for part in found if part is not None)
    return MixedData(parts, data.mixture) if len(parts) == len(found) else None
