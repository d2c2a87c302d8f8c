"""Convert a Llama's `config.json` of Hugging Face to and from `model.architecture`.

It reads the formats of transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`), and writes
the former, which both versions read. It handles no weights and no tokenizers.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.config.schema import ArchitectureConfig, RopeScalingConfig
from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.untrusted_files import read_json

CONFIG_NAME = "config.json"


def read_config(path: Path) -> dict[str, Any]:
    """Read a `config.json`. Raises ConfigError when it is not that of a Llama."""
    try:
        value = read_json(path)
    except (OSError, DamagedFileError) as error:
        raise ConfigError(f"model.path: {path} is not readable as JSON ({error})") from None
    kind = value.get("model_type") if isinstance(value, dict) else None
    if kind != "llama":
        raise _refusal(path, f"has the model_type {kind!r}; this trainer has llama only")
    if value.get("hidden_act", "silu") != "silu":
        raise _refusal(path, f"has the hidden_act {value['hidden_act']!r}; this trainer has silu")
    for key in ("attention_bias", "mlp_bias"):
        if value.get(key):
            raise _refusal(path, f"has {key}; the layers of this trainer's model have no bias")
    head, width, heads = (value.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    is_whole = isinstance(head, int) and isinstance(width, int) and isinstance(heads, int) and heads
    if is_whole and width % heads == 0 and head * heads != width:
        raise _refusal(
            path,
            f"has the head_dim {head}; heads of this trainer's model have hidden_size / num_attention_heads, "
            f"{width / heads:g}",
        )
    if "quantization_config" in value:
        raise ConfigError(f"model.path: {path} describes quantised weights; name a folder of float ones")
    return dict(value)


def not_supported(path: Path) -> str:
    """Return the sentence about a model that only another trainer can train."""
    return (
        f"not supported here. examples/sft trains any causal model of transformers: "
        f"python train.py --model {shlex.quote(str(path))}"
    )


def _refusal(path: Path, difference: str) -> ConfigError:
    return ConfigError(f"model.path: {path} {difference}: {not_supported(path.parent)}. Nothing was started.")


def declared_architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `model.architecture` that tensor shapes do not show; defaults are those of LlamaConfig."""
    heads = config.get("num_attention_heads", 32)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {
        "num_layers": config.get("num_hidden_layers", 32),
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "rope_theta": rope.get("rope_theta") or config.get("rope_theta", 10000.0),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "rope_scaling": _declared_scaling(rope),
    }


def architecture_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """All of `model.architecture`; defaults are those of LlamaConfig."""
    sizes = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
    }
    given = {key: config.get(key) for key in sizes}
    known = {key: default if given[key] is None else given[key] for key, default in sizes.items()}
    return known | declared_architecture(config)


def _declared_scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `RopeScalingConfig` that have an effect; all keys for a kind that our model lacks."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "llama3":
        return {key: rope.get(key) for key in RopeScalingConfig.model_fields} | {"rope_type": kind}
    return {"rope_type": kind} | {
        k: v for k, v in rope.items() if k not in ("rope_theta", "rope_type", "type")
    }


def hugging_face_config(architecture: ArchitectureConfig) -> dict[str, Any]:
    """The `config.json` from which transformers builds the same model."""
    scaling = architecture.rope_scaling
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate_size,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_attention_heads,
        "num_key_value_heads": architecture.num_key_value_heads,
        "head_dim": architecture.hidden_size // architecture.num_attention_heads,
        "max_position_embeddings": architecture.max_position_embeddings,
        "rope_theta": architecture.rope_theta,
        "rope_scaling": None if scaling.rope_type == "default" else scaling.model_dump(),
        "rms_norm_eps": architecture.rms_norm_eps,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        "initializer_range": architecture.initializer_range,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
