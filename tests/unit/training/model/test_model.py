import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainyard.config.schema import ArchitectureConfig
from trainyard.training.checkpoint.training_state import digest_tensors
from trainyard.training.model.model import Llama, build_model, parameter_count, rotary_table, rotate

SHAPE = ArchitectureConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
)


def reference_logits(model: Llama, tokens: Tensor, shape: ArchitectureConfig) -> Tensor:
    """The same decoder written out by its equations, position by position and head by head."""
    weights = dict(model.state_dict())
    heads, groups = shape.num_attention_heads, shape.num_key_value_heads
    size = shape.hidden_size // heads

    def norm(x: Tensor, name: str) -> Tensor:
        scale = torch.sqrt((x * x).mean(-1, keepdim=True) + shape.rms_norm_eps)
        return torch.mul(x / scale, weights[name])

    def rotated(x: Tensor, position: int) -> Tensor:
        result = torch.empty_like(x)
        half = size // 2
        for i in range(half):
            angle = position * shape.rope_theta ** (-2 * i / size)
            a, b = x[i], x[i + half]
            result[i] = a * math.cos(angle) - b * math.sin(angle)
            result[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return result

    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        y = norm(x, prefix + "input_layernorm.weight")
        q = (y @ weights[prefix + "self_attn.q_proj.weight"].T).view(-1, heads, size)
        k = (y @ weights[prefix + "self_attn.k_proj.weight"].T).view(-1, groups, size)
        v = (y @ weights[prefix + "self_attn.v_proj.weight"].T).view(-1, groups, size)
        mixed = torch.zeros(len(tokens), heads, size)
        for head in range(heads):
            group = head // (heads // groups)
            for here in range(len(tokens)):
                scores = torch.stack(
                    [
                        rotated(q[here, head], here) @ rotated(k[there, group], there)
                        for there in range(here + 1)
                    ]
                )
                shares = functional.softmax(scores / math.sqrt(size), dim=0)
                mixed[here, head] = shares @ v[: here + 1, group]
        x = x + mixed.flatten(1) @ weights[prefix + "self_attn.o_proj.weight"].T
        y = norm(x, prefix + "post_attention_layernorm.weight")
        gate = y @ weights[prefix + "mlp.gate_proj.weight"].T
        up = y @ weights[prefix + "mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[prefix + "mlp.down_proj.weight"].T
    return torch.matmul(norm(x, "model.norm.weight"), weights["lm_head.weight"].T)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 4}, {"tie_word_embeddings": True}])
@torch.no_grad()
def test_logits_are_those_of_the_written_out_equations(changes: dict[str, object]) -> None:
    shape = SHAPE.model_copy(update=changes)
    # Larger weights than at the start, so that attention and rotation matter.
    model = build_model(shape.model_copy(update={"initializer_range": 0.3}), seed=1)
    tokens = torch.tensor([5, 60, 3, 3, 17, 42, 0])
    torch.testing.assert_close(
        model(tokens[None])[0], reference_logits(model, tokens, shape), rtol=1e-4, atol=1e-4
    )


@torch.no_grad()
def test_a_token_does_not_see_those_after_it() -> None:
    model = build_model(SHAPE, seed=1)
    tokens = torch.randint(0, 64, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 8:] = 1
    assert torch.equal(model(tokens)[:, :8], model(changed)[:, :8])
    assert not torch.equal(model(tokens)[:, 8:], model(changed)[:, 8:])


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    cosines, sines = rotary_table(SHAPE)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 1, 8, generator=generator).expand(1, 1, 16, 8) for _ in range(2))
    turned_q, turned_k = rotate(q, cosines, sines), rotate(k, cosines, sines)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    scores = (turned_q @ turned_k.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[5, 2], scores[12, 9])
    assert abs(scores[5, 2] - scores[5, 4]) > 1e-3


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
