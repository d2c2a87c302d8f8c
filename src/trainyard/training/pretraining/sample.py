"""A short text written by the model, so that a person sees what it learned."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

CHARACTERS = 300
_TEMPERATURE = 0.7


class TextCodec(Protocol):
    """Text to token ids and back."""

    def decode(self, tokens: list[int]) -> str: ...


@torch.no_grad()
def write_sample(
    model: nn.Module,
    codec: TextCodec,
    *,
    device: torch.device,
    prompt: Sequence[int],
    context: int,
    seed: int,
) -> str:
    """Continue `prompt` (token ids) by 300 characters; a pure function of weights, prompt and seed.

    `context` is the longest input that the model takes. The run's own random generators are not used.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    model.eval()
    text = ""
    for _ in range(CHARACTERS):
        window = torch.tensor([tokens[-context:]], device=device)
        logits = model(window)[0, -1].float().cpu() / _TEMPERATURE
        tokens.append(int(torch.multinomial(logits.softmax(-1), 1, generator=generator)))
        text = codec.decode(tokens[len(prompt) :])
        if len(text) >= CHARACTERS:
            break
    model.train()
    return text[:CHARACTERS]
