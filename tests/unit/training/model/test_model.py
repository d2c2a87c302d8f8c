import torch
from tests.unit.training.model.worlds import SMALL

from trainyard.training.checkpoint.training_state import digest_tensors
from trainyard.training.model.model import build_model, parameter_count


def test_weights_are_a_pure_function_of_shape_and_seed() -> None:
    torch.manual_seed(123)
    first = build_model(SMALL, seed=7)
    torch.randn(100)
    assert digest_tensors(first.state_dict()) == digest_tensors(build_model(SMALL, seed=7).state_dict())
    assert digest_tensors(first.state_dict()) != digest_tensors(build_model(SMALL, seed=8).state_dict())


def test_tied_weights_are_one_tensor_and_counted_once() -> None:
    tied = build_model(SMALL.model_copy(update={"tie_word_embeddings": True}), seed=1)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert parameter_count(tied) == parameter_count(build_model(SMALL, seed=1)) - 64 * 32
