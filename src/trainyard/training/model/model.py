"""A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied output.

Parameter names and the rotary convention (halves, not pairs) are those of Hugging Face's Llama, so that its
weights fit. It computes logits; loss, precision and device belong to the loop.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainyard.config.schema import ArchitectureConfig
from trainyard.training.model.attention import (
    LONGEST_WRITTEN_OUT,
    causal_attention,
    is_written_out,
    unpack,
    unseen_keys,
)
from trainyard.training.model.shard_assignment import draw_normal, own_part


def rotary_frequencies(architecture: ArchitectureConfig) -> Tensor:
    """Rotary frequencies in radians per position, `[head_dim / 2]`, float32 (arXiv:2104.09864).

    `rope_scaling` is Llama 3.1's: it divides low frequencies by `factor`, keeps high ones and blends those
    in between.
    """
    head_dim = architecture.hidden_size // architecture.num_attention_heads
    plain = architecture.rope_theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    scaling = architecture.rope_scaling
    if scaling.rope_type == "default":
        return plain
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def fixed_tables(architecture: ArchitectureConfig) -> dict[str, Tensor]:
    """The constant tables of a decoder: the causal mask, and the rotary positions `[position, head_dim]`."""
    positions = torch.arange(architecture.max_position_embeddings, dtype=torch.float32)
    angles = torch.outer(positions, rotary_frequencies(architecture)).repeat(1, 2)
    length = min(architecture.max_position_embeddings, LONGEST_WRITTEN_OUT)
    return {"cosines": angles.cos(), "sines": angles.sin(), "unseen": unseen_keys(length)}


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the queries or keys `x` `[batch, heads, seq, head_dim]` by their positions."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cosines + turned * sines).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, architecture: ArchitectureConfig) -> None:
        super().__init__()
        width = architecture.hidden_size
        self.head_dim = width // architecture.num_attention_heads
        key_width = architecture.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, key_width, bias=False)
        self.v_proj = nn.Linear(width, key_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, visible: Tensor | None = None) -> Tensor:
        """`visible` is the mask for `causal_attention`; None means a causal mask."""
        q, k, v = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        joined: Tensor = self.o_proj(causal_attention(q, k, v, visible).transpose(1, 2).flatten(2))
        return joined

    def _heads(self, x: Tensor) -> Tensor:
        """`[batch, seq, width]` to `[batch, heads, seq, head_dim]`."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, architecture: ArchitectureConfig) -> None:
        super().__init__()
        width, inner = architecture.hidden_size, architecture.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def _run_block(block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return block(*inputs)


class Block(nn.Module):
    """One pre-norm decoder layer."""

    run: Callable[..., Tensor] = staticmethod(_run_block)
    """Calls the block's computation with its inputs. Activation recomputation replaces it.

    It is within `forward`, so that compiling the block compiles the recomputation with it, and so that the
    hooks of FSDP run once and not again for the recomputation.
    """

    def __init__(self, architecture: ArchitectureConfig) -> None:
        super().__init__()
        width, eps = architecture.hidden_size, architecture.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Attention(architecture)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = FeedForward(architecture)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, *visible: Tensor) -> Tensor:
        return self.run(self._compute, x, cosines, sines, *visible)

    def _compute(self, x: Tensor, cosines: Tensor, sines: Tensor, *visible: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines, *visible)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Decoder(nn.Module):
    """Embedding, layers and final norm."""

    cosines: Tensor
    sines: Tensor
    unseen: Tensor
    separates_documents = False
    """Whether the tokens mark document starts and documents are masked from each other (`packing`)."""

    def __init__(self, architecture: ArchitectureConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(architecture.vocab_size, architecture.hidden_size)
        self.layers = nn.ModuleList(Block(architecture) for _ in range(architecture.num_layers))
        self.norm = nn.RMSNorm(architecture.hidden_size, eps=architecture.rms_norm_eps)
        for name, table in fixed_tables(architecture).items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions: Tensor | slice = slice(tokens.shape[1])
        visible: tuple[Tensor, ...] = ()
        if self.separates_documents:
            tokens, places, mask = unpack(tokens)
            positions, visible = places[:, None], (mask,)
        elif is_written_out(tokens.device, tokens.shape[1]):
            visible = (self.unseen[: tokens.shape[1], : tokens.shape[1]],)
        x = self.embed_tokens(tokens)
        cosines, sines = self.cosines[positions], self.sines[positions]
        for layer in self.layers:
            x = layer(x, cosines, sines, *visible)
        result: Tensor = self.norm(x)
        return result


class Llama(nn.Module):
    """Tokens `[batch, seq]` to logits `[batch, seq, vocab]`."""

    def __init__(self, architecture: ArchitectureConfig) -> None:
        super().__init__()
        self.model = Decoder(architecture)
        self.lm_head = nn.Linear(architecture.hidden_size, architecture.vocab_size, bias=False)
        if architecture.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.model(tokens))
        return logits


def build_model(architecture: ArchitectureConfig, *, seed: int) -> Llama:
    """Build a model on the CPU with random weights, which are a pure function of shape and seed."""
    model = Llama(architecture)
    initialize(model, architecture, seed=seed)
    return model


@torch.no_grad()
def initialize(model: Llama, architecture: ArchitectureConfig, *, seed: int) -> None:
    """Fill every parameter and table of `model`, sharded or not, with the same values.

    Weights are normal with standard deviation `initializer_range`. For the projections into the residual
    stream it is divided by the square root of twice the number of layers (GPT-2, section 2.3).
    """
    generator = torch.Generator().manual_seed(seed)
    residual = architecture.initializer_range / math.sqrt(2 * architecture.num_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            own_part(parameter).fill_(1.0)
            continue
        into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        deviation = residual if into_residual else architecture.initializer_range
        draw_normal(parameter, deviation, generator=generator)
    fill_tables(model, architecture)


@torch.no_grad()
def fill_tables(model: Llama, architecture: ArchitectureConfig) -> None:
    """Fill the constant tables of a model that was created empty."""
    for name, table in fixed_tables(architecture).items():
        model.model.get_buffer(name).copy_(table)


def parameter_count(model: nn.Module) -> int:
    """The number of trained parameters; tied weights count once."""
    return sum(parameter.numel() for parameter in model.parameters())
