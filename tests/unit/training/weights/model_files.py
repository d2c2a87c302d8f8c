"""Files of weights as other programs write them: a Hugging Face folder, and a .gguf file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from trainyard.config.schema import ArchitectureConfig
from trainyard.training.export import byte_tokenizer
from trainyard.training.model.model import build_model
from trainyard.training.weights.gguf_weights import gguf_name
from trainyard.training.weights.hugging_face_config import hugging_face_config
from trainyard.training.weights.weight_fit import parameters_of

Types = gguf.GGMLQuantizationType


def tensors_of(shape: ArchitectureConfig) -> dict[str, Tensor]:
    """Random weights by name; a tied output is left out."""
    tensors = build_model(shape, seed=0).state_dict()
    return {name: tensors[name].clone() for name in parameters_of(shape)}


def write_folder(
    folder: Path, shape: ArchitectureConfig, tensors: Mapping[str, Tensor] | None = None, **config: Any
) -> Path:
    """Write weights, config.json with changes, and a tokenizer into `folder`."""
    folder.mkdir(exist_ok=True)
    save_file(dict(tensors or tensors_of(shape)), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hugging_face_config(shape) | config))
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    return folder


def finish_gguf(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_metadata(shape: ArchitectureConfig) -> dict[str, Any]:
    return {
        "llama.context_length": shape.max_position_embeddings,
        "llama.block_count": shape.num_layers,
        "llama.attention.head_count": shape.num_attention_heads,
        "llama.attention.head_count_kv": shape.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": shape.rms_norm_eps,
        "llama.rope.freq_base": shape.rope_theta,
        "llama.rope.dimension_count": shape.hidden_size // shape.num_attention_heads,
    }


def write_gguf(
    path: Path,
    shape: ArchitectureConfig,
    values: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, Any] | None = None,
    kind: Types = Types.Q8_0,
    extra: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
    tokens: Sequence[str] = (),
) -> Path:
    """Write `values` by name in our model, matrices in `kind`, and `extra` tensors as they are.

    `metadata` changes what describes the shape; None leaves a key out.
    """
    writer = gguf.GGUFWriter(path, architecture)
    if tokens:
        writer.add_token_list(tokens)
        writer.add_token_scores([0.5] * len(tokens))
        writer.add_token_types([1] * len(tokens))
    for key, value in (gguf_metadata(shape) | dict(metadata or {})).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    for name, value in values.items():
        used = Types.F32 if value.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(value, used), raw_dtype=used)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    finish_gguf(writer)
    return path


def random_values(shape: ArchitectureConfig, deviation: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(size, dtype=np.float32) * np.float32(deviation)
        for name, size in parameters_of(shape).items()
    }
