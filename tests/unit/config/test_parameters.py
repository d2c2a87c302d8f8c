"""The arithmetic of parameters against the model that is built."""

import pytest
import torch

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import ArchitectureConfig
from trainyard.training.model.model import Block, Llama, parameter_count


def build_model(shape: ArchitectureConfig) -> Llama:
    with torch.device("meta"):
        return Llama(shape)


@pytest.mark.parametrize("tied", [True, False])
def test_every_part_is_that_of_the_model(tied: bool) -> None:
    shape = ArchitectureConfig(num_layers=3, hidden_size=64, num_attention_heads=8, tie_word_embeddings=tied)
    model, count = build_model(shape), count_parameters(shape)
    block = next(module for module in model.modules() if isinstance(module, Block))
    assert count.total == parameter_count(model)
    assert count.embedding == model.model.embed_tokens.weight.numel()
    assert count.head == model.lm_head.weight.numel()
    assert count.attention == parameter_count(block.self_attn)
    assert count.feed_forward == parameter_count(block.mlp)
    assert count.norms == sum(p.numel() for p in model.parameters() if p.ndim == 1)


def test_a_tied_output_is_counted_once_and_multiplied_all_the_same() -> None:
    tied = count_parameters(ArchitectureConfig(tie_word_embeddings=True))
    untied = count_parameters(ArchitectureConfig())
    assert untied.total - tied.total == untied.output == tied.embedding
    assert untied.multiplied == tied.multiplied
