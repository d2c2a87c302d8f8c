"""Check that weights from a file fit `model.architecture`, and report every difference by tensor and by key.

It compares names, shapes and the keys that the file declares. It reads no tensor.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.config.keys import settings_text
from trainyard.config.schema import ArchitectureConfig
from trainyard.errors import ConfigError
from trainyard.training.weights.hugging_face_config import not_supported
from trainyard.training.weights.weight_source import WeightSource

OUTPUT = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Dimension:
    """One dimension of a parameter and the configuration keys that determine it."""

    size: int
    keys: str


def parameters_of(architecture: ArchitectureConfig) -> dict[str, tuple[Dimension, ...]]:
    """The parameters of our model by name; a tied output is not a separate parameter."""
    a = architecture
    head = a.hidden_size // a.num_attention_heads
    width = Dimension(a.hidden_size, f"hidden_size {a.hidden_size}")
    inner = Dimension(a.intermediate_size, f"intermediate_size {a.intermediate_size}")
    words = Dimension(a.vocab_size, f"vocab_size {a.vocab_size}")
    keys = Dimension(
        a.num_key_value_heads * head, f"num_key_value_heads {a.num_key_value_heads} of {head} each"
    )
    layer = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }
    output = {} if a.tie_word_embeddings else {OUTPUT: (words, width)}
    layers = {f"model.layers.{n}.{part}.weight": s for n in range(a.num_layers) for part, s in layer.items()}
    return {_EMBEDDING: (words, width), **layers, "model.norm.weight": (width,), **output}


def layers_in(names: Iterable[str]) -> int:
    """The number of layers that the parameters `names` belong to."""
    return len({match[1] for name in names if (match := _LAYER.match(name))})


def require_fit(source: WeightSource, architecture: ArchitectureConfig) -> None:
    """Raise ConfigError naming every difference between the file and `model.architecture`."""
    if found := _differences(source, architecture):
        raise ConfigError(
            f"model.path: {source.path} does not fit model.architecture:\n"
            + "".join(f"  {line}\n" for line in found)
            + f"{_remedy(source, architecture)} To start from random weights: --set model.path=null. "
            "Nothing was started."
        )


def _differences(source: WeightSource, architecture: ArchitectureConfig) -> list[str]:
    return [
        *_contradicted_keys(source, architecture),
        *source.contradictions(architecture),
        *_different_tensors(source, architecture),
    ]


def _remedy(source: WeightSource, architecture: ArchitectureConfig) -> str:
    """Return the settings with which the weights fit, or else that no setting does."""
    try:
        fitting = ArchitectureConfig.model_validate(_keys_of(source, architecture))
    except ValueError:
        fitting = architecture
    remaining = _differences(source, fitting)
    if not remaining:
        ours = architecture.model_dump()
        changed = {k: value for k, value in fitting.model_dump().items() if not _is_same(value, ours[k])}
        return f"To take what the weights have: {settings_text({'model.architecture': changed})}."
    if all(": not in the file;" in line for line in remaining):
        return "The file lacks parts of the model: download or export it again."
    return f"No setting of model.architecture describes these weights: {not_supported(source.path)}."


def _keys_of(source: WeightSource, architecture: ArchitectureConfig) -> dict[str, Any]:
    """Return `architecture` with every key that the file declares or that its shapes show."""
    names, found = set(source.names()), architecture.model_dump()
    if _EMBEDDING in names and len(source.shape(_EMBEDDING)) == 2:
        found["vocab_size"], found["hidden_size"] = source.shape(_EMBEDDING)
    if (gate := "model.layers.0.mlp.gate_proj.weight") in names:
        found["intermediate_size"] = source.shape(gate)[0]
    return found | dict(source.declared)


def _contradicted_keys(source: WeightSource, architecture: ArchitectureConfig) -> Iterator[str]:
    ours = architecture.model_dump()
    for key, value in source.declared.items():
        if not _is_same(value, ours[key]):
            actual, wanted = _text(value), _text(ours[key])
            yield f"model.architecture.{key}: the file has {actual}, the configuration {wanted}"


def _is_same(value: Any, ours: Any) -> bool:
    """Return whether two values are equal, up to float32 rounding.

    All kinds of default rotary scaling are equal.
    """
    if isinstance(value, dict) and isinstance(ours, dict):
        if value.get("rope_type") == ours.get("rope_type") == "default":
            return True
        return value.keys() == ours.keys() and all(_is_same(value[key], ours[key]) for key in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(ours, int | float):
        return bool(value == ours)
    return math.isclose(value, ours, rel_tol=1e-6)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # rope_scaling; the default kind has no values to show
        kind, rest = value.get("rope_type"), {k: v for k, v in value.items() if k != "rope_type"}
        values = ", ".join(f"{key} {_text(rest[key])}" for key in rest)
        return f"{kind} ({values})" if values and kind != "default" else str(kind)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _different_tensors(source: WeightSource, architecture: ArchitectureConfig) -> Iterator[str]:
    """Yield one line per kind of difference, even if several layers have it."""
    expected = parameters_of(architecture)
    names = set(source.names())
    depth = min(source.declared.get("num_layers", architecture.num_layers), architecture.num_layers)
    tie_differs = source.declared.get("tie_word_embeddings") != architecture.tie_word_embeddings
    lines: dict[str, list[str]] = {}
    for name in sorted(names | expected.keys(), key=_sort_key):
        layer = _LAYER.match(name)
        if layer and int(layer[1]) >= depth:
            continue  # the number of layers differs, which another line reports
        if name == OUTPUT and (tie_differs or architecture.tie_word_embeddings):
            continue  # the line for tie_word_embeddings reports it, or it is a copy of the embedding
        if line := _difference(source, name, expected.get(name)):
            lines.setdefault(_NUMBER.sub("N", line, count=1) if layer else line, []).append(line)
    for line, each in lines.items():
        yield each[0] if len(each) == 1 else f"{line}, in {len(each)} layers"


def _sort_key(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _difference(source: WeightSource, name: str, expected: tuple[Dimension, ...] | None) -> str | None:
    stored = source.stored_name(name)
    if expected is None:
        return f"{stored}: no part of the model; {list(source.shape(name))} in the file"
    wanted = [dimension.size for dimension in expected]
    if name not in source.names():
        return f"{stored}: not in the file; the configuration has {wanted}"
    shape = list(source.shape(name))
    if shape == wanted:
        return None
    same_rank = len(shape) == len(wanted)
    different = [d.keys for i, d in enumerate(expected) if not same_rank or shape[i] != d.size]
    keys = ", ".join(dict.fromkeys(different))
    return f"{stored}: {shape} in the file, {wanted} in the configuration ({keys})"
