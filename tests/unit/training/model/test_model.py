import torch

from trainyard.config.schema import ArchitectureConfig
from trainyard.training.checkpoint.training_state import digest_tensors
from trainyard.training.model.model import build_model, parameter_count

SHAPE = ArchitectureConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
)


def test_weights_are_a_pure_function_of_shape_and_seed() -> None:
    torch.manual_seed(123)
    first = build_model(SHAPE, seed=7)
    torch.randn(100)
    assert digest_tensors(first.state_dict()) == digest_tensors(build_model(SHAPE, seed=7).state_dict())
    assert digest_tensors(first.state_dict()) != digest_tensors(build_model(SHAPE, seed=8).state_dict())


def test_tied_weights_are_one_tensor_and_counted_once() -> None:
    tied = build_model(SHAPE.model_copy(update={"tie_word_embeddings": True}), seed=1)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert parameter_count(tied) == parameter_count(build_model(SHAPE, seed=1)) - 64 * 32
