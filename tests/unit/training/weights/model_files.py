"""Files of weights as other programs write them: a Hugging Face folder, and a .gguf file."""

import json
from collections.abc import Mapping
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


def add_matrices(writer: gguf.GGUFWriter, values: Mapping[str, np.ndarray], kind: Types) -> None:
    """Add tensors under their names in our model, matrices in `kind`."""
    for name, value in values.items():
        used = Types.F32 if value.ndim == 1 else kind
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(value, used), raw_dtype=used)


def random_values(shape: ArchitectureConfig, deviation: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(size, dtype=np.float32) * np.float32(deviation)
        for name, size in parameters_of(shape).items()
    }
