"""Measure a model's validation loss and bits per byte, and let it write a short text."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.config.schema import Config
from trainyard.training.data.batches import count_targets
from trainyard.training.data.training_data import TrainingData
from trainyard.training.data.vocabulary import Vocabulary, load_vocabulary
from trainyard.training.model.loss import summed_loss
from trainyard.training.runtime.world import DataShare

_CHARACTERS = 300
_TEMPERATURE = 0.7


class Validation:
    """A fixed set of batches, each `[batch, seq + 1]` token ids."""

    def __init__(self, batches: list[np.ndarray], *, text_bytes: Callable[[np.ndarray], int]) -> None:
        """`text_bytes` returns the number of text bytes of target tokens, 0 when it is not known."""
        self._batches = [torch.from_numpy(batch) for batch in batches]
        self._tokens = max(1, sum(count_targets(batch) for batch in batches))
        self._bytes = sum(_target_bytes(batch, text_bytes) for batch in batches)

    @torch.no_grad()
    def run(
        self, forward: Callable[[Tensor], Tensor], stop_reason: Callable[[], str | None], share: DataShare
    ) -> dict[str, float] | None:
        """Return the figures, or None when a stop was requested meanwhile; the resumed run validates again.

        `val_loss` is the mean cross-entropy in nats per token.

        `forward` takes token ids `[batch, seq]` and returns logits `[batch, seq, vocab]`. The processes share
        the batches. A process without a batch in the last round runs one that does not count, because every
        process must take part in the collectives.
        """
        total = 0.0
        for first in range(0, len(self._batches), share.size):
            if stop_reason():
                return None
            index = first + share.rank
            batch = self._batches[min(index, len(self._batches) - 1)]
            logits = forward(batch[:, :-1])
            if index < len(self._batches):
                total += summed_loss(logits, batch[:, 1:].to(logits.device)).item()
        total = share.total(total)
        figures = {"val_loss": total / self._tokens}
        if self._bytes:
            figures["val_bits_per_byte"] = total / math.log(2) / self._bytes
        return figures


def open_validation(config: Config, data: TrainingData, samples_per_step: int) -> Validation | None:
    """Return the validation of a run; None when the validation tokens do not fill one sequence."""
    count = samples_per_step * config.training.validation_batches
    windows = data.validation_windows(length=config.data.sequence_length, count=count)
    if not len(windows):
        return None
    size = config.training.batch_size
    batches = [windows[i : i + size] for i in range(0, len(windows), size)]
    return Validation(batches, text_bytes=load_vocabulary(config.model).text_bytes)


def _target_bytes(batch: np.ndarray, text_bytes: Callable[[np.ndarray], int]) -> int:
    """The bytes of the targets that count, without the first token of each later document in a sample."""
    targets = batch[:, 1:]
    if not (targets < 0).any():
        return text_bytes(targets)
    documents = (part for row in targets for part in np.split(row, np.flatnonzero(row < 0)))
    return sum(text_bytes(part[part >= 0]) for part in documents if (part >= 0).any())


@torch.no_grad()
def write_sample(
    model: nn.Module,
    vocabulary: Vocabulary,
    *,
    device: torch.device,
    prompt: Sequence[int],
    context: int,
    seed: int,
) -> str:
    """Continue `prompt` (token ids) by 300 characters; a pure function of weights, prompt and seed.

    `context` is the longest input that the model takes.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    model.eval()
    text = ""
    for _ in range(_CHARACTERS):
        window = torch.tensor([tokens[-context:]], device=device)
        logits = model(window)[0, -1].float().cpu() / _TEMPERATURE
        tokens.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        text = vocabulary.decode(tokens[len(prompt) :])
        if len(text) >= _CHARACTERS:
            break
    model.train()
    return text[:_CHARACTERS]
