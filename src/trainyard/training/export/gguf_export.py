"""Write a run's model as one GGUF file for llama.cpp, tensor by tensor, with the `gguf` package.

    model.layers.N.…  --names, rows of q and k interleaved-->  blk.N.attn_q  …

It is the inverse of `gguf_weights`. Norms stay float32, because llama.cpp requires that.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.export.gguf_tokenizer import GgufTokenizer
from trainyard.training.model.model import rotary_frequencies
from trainyard.training.weights.gguf_weights import (
    FREQUENCIES,
    SCALING_KEY,
    VOCABULARY_KEY,
    Floats,
    gguf_name,
)
from trainyard.training.weights.weight_source import WeightSource

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

GGUF_NAME = "weights.gguf"


def rows_by_pairs(weights: Floats, heads: int) -> Floats:
    """Order the rows for llama.cpp's rotary positions. It is the inverse of `rows_by_halves`."""
    halves = weights.reshape(heads, 2, -1, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def write_gguf(
    path: Path,
    model: ModelConfig,
    weights: WeightSource,
    *,
    names: list[str],
    dtype: str,
    tokenizer: GgufTokenizer | None,
    origin: dict[str, str],
    progress: Progress = UNSEEN,
) -> None:
    """Write the tensors `names` of `weights` to `path`, matrices in `dtype`.

    `origin` holds facts of the run, which are stored as `trainyard.*`. Without a tokenizer, llama.cpp takes
    only token ids.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    try:
        _add_architecture(writer, model, dtype)
        for key, value in origin.items():
            writer.add_string(f"trainyard.{key}", value)
        _add_tokenizer(writer, model, tokenizer)
        kinds = {name: _kind(dtype, len(weights.shape(name))) for name in names}
        for name in names:
            shape = weights.shape(name)
            _announce(writer, gguf_name(name), shape, kinds[name])
        divisors = _divisors(model.architecture)
        if divisors is not None:
            _announce(writer, FREQUENCIES, divisors.shape, _kind("float32", 1))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in names:
            values = _stored_array(weights.read(name), name, model.architecture, kinds[name])
            writer.write_tensor_data(values)
            progress.advance(values.nbytes)
        if divisors is not None:
            writer.write_tensor_data(divisors)
    finally:
        writer.close()


def _add_architecture(writer: "GGUFWriter", model: ModelConfig, dtype: str) -> None:
    from gguf import LlamaFileType

    shape = model.architecture
    file_types = {
        "float32": LlamaFileType.ALL_F32,
        "float16": LlamaFileType.MOSTLY_F16,
        "bfloat16": LlamaFileType.MOSTLY_BF16,
    }
    writer.add_name(model.name)
    writer.add_file_type(file_types[dtype])
    writer.add_vocab_size(shape.vocab_size)
    writer.add_context_length(shape.max_position_embeddings)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_block_count(shape.num_layers)
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.hidden_size // shape.num_attention_heads)
    if shape.rope_scaling.rope_type != "default":
        writer.add_string(SCALING_KEY, shape.rope_scaling.model_dump_json())


def _add_tokenizer(writer: "GGUFWriter", model: ModelConfig, tokenizer: GgufTokenizer | None) -> None:
    if model.tokenizer is None:
        writer.add_string(VOCABULARY_KEY, "bytes")
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_token_scores(tokenizer.scores)
    writer.add_add_space_prefix(tokenizer.prepends_space)
    writer.add_add_bos_token(tokenizer.bos is not None)
    writer.add_add_eos_token(False)
    if tokenizer.bos is not None:
        writer.add_bos_token_id(tokenizer.bos)
    if tokenizer.eos is not None:
        writer.add_eos_token_id(tokenizer.eos)
    if tokenizer.unknown is not None:
        writer.add_unk_token_id(tokenizer.unknown)


def _announce(writer: "GGUFWriter", name: str, shape: tuple[int, ...], kind: "GGMLQuantizationType") -> None:
    width = 4 if kind.name == "F32" else 2
    # When a kind is given, gguf only checks whether the numpy type is a byte type.
    writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(shape)) * width, kind)


def _kind(dtype: str, dimensions: int) -> "GGMLQuantizationType":
    from gguf import GGMLQuantizationType as Kind

    kinds = {"float32": Kind.F32, "float16": Kind.F16, "bfloat16": Kind.BF16}
    return Kind.F32 if dimensions == 1 else kinds[dtype]


def _stored_array(
    tensor: Tensor, name: str, shape: ArchitectureConfig, kind: "GGMLQuantizationType"
) -> np.ndarray[Any, Any]:
    values: Floats = tensor.numpy()
    heads = {"q_proj": shape.num_attention_heads, "k_proj": shape.num_key_value_heads}
    if (count := heads.get(name.split(".")[-2])) is not None:
        values = rows_by_pairs(values, count)
    if kind.name == "F32":
        return values
    if kind.name == "F16":
        return values.astype(np.float16)
    # numpy has no bfloat16, so return the bits as two-byte integers.
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.int16).numpy()


def _divisors(shape: ArchitectureConfig) -> Floats | None:
    """The divisors that llama.cpp applies to the rotary frequencies; None when they are not scaled."""
    if shape.rope_scaling.rope_type == "default":
        return None
    plain = rotary_frequencies(shape.model_copy(update={"rope_scaling": RopeScalingConfig()}))
    divisors: Floats = (plain / rotary_frequencies(shape)).numpy()
    return divisors
