"""Read the weights of a model tensor by tensor, and check that they fit `model.architecture`.

One module per format implements `WeightSource`. The check compares names, shapes and the keys that the file
declares. It reads no tensor.
"""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from trainyard.config.schema import ArchitectureConfig
from trainyard.errors import ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.training.weights.hugging_face_config import not_supported


class WeightSource(Protocol):
    """The weights of one model under the names of Hugging Face's Llama. Opening reads only headers."""

    path: Path
    """The path that `model.path` names."""
    declared: Mapping[str, Any]
    """The keys of `model.architecture` that the file declares, with its values."""

    def names(self) -> Collection[str]:
        """The name of every tensor in the file; one that is not part of a Llama keeps the file's name."""

    def stored_name(self, name: str) -> str:
        """The name of the tensor `name` in the file."""
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading the tensor."""

    def read(self, name: str) -> Tensor:
        """Read one tensor in float32 on the CPU, in the layout of our model. No other tensor is kept."""

    def contradictions(self, _architecture: ArchitectureConfig, /) -> Iterator[str]:
        """Yield the contradictions between the file and an architecture that are specific to the format."""
        yield from ()

    def digest(self) -> str:
        """The SHA-256 over all bytes of the weights. It reads all of them."""


def digest_of_files(paths: Iterable[Path]) -> str:
    """The SHA-256 of one file, or of the lines `sha256  name` of several, in order of name."""
    files = sorted(paths)
    if len(files) == 1:
        return sha256_of_file(files[0])
    lines = (f"{sha256_of_file(path)}  {path.name}\n" for path in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


OUTPUT = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")
_Shape = tuple[int, ...]
_SHAPED, _MISSING = " in the configuration", ": not in the file"
_SHOWN = 8  # differences that a refusal lists; as many again per layer would hide the first


def parameters_of(architecture: ArchitectureConfig) -> dict[str, _Shape]:
    """The shapes of the parameters of our model by name; a tied output is not a separate parameter."""
    a = architecture
    width, inner = a.hidden_size, a.intermediate_size
    keys = a.num_key_value_heads * (width // a.num_attention_heads)
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
    table = (a.vocab_size, width)
    output = {} if a.tie_word_embeddings else {OUTPUT: table}
    layers = {f"model.layers.{n}.{part}.weight": s for n in range(a.num_layers) for part, s in layer.items()}
    return {_EMBEDDING: table, **layers, "model.norm.weight": (width,), **output}


def layers_in(names: Iterable[str]) -> int:
    """The number of layers that the parameters `names` belong to."""
    return len({match[1] for name in names if (match := _LAYER.match(name))})


def require_fit(source: WeightSource, architecture: ArchitectureConfig) -> None:
    """Raise ConfigError naming the differences between the file and `model.architecture`.

    Tensors are compared where the declared keys are equal: other keys have other tensors.
    """
    ours = architecture.model_dump()
    lines = [
        f"model.architecture.{key}: the file has {_text(value)}, the configuration {_text(ours[key])}"
        for key, value in source.declared.items()
        if not _is_same(value, ours[key])
    ]
    lines += source.contradictions(architecture)
    lines = lines or list(_different_tensors(source, architecture))
    if not lines:
        return
    if any(line.startswith("model.architecture.") or _SHAPED in line for line in lines):
        fix = f"To take what the weights have: --set {shlex.quote(f'model.path={source.path}')}."
    elif all(_MISSING in line for line in lines):
        fix = "The file lacks parts of the model: download or export it again."
    else:
        fix = f"No setting of model.architecture describes these weights: {not_supported(source.path)}."
    more = [f"… and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    raise ConfigError(
        f"model.path: {source.path} does not fit model.architecture:\n"
        + "".join(f"  {line}\n" for line in (*lines[:_SHOWN], *more))
        + f"{fix} To start from random weights: --set model.path=null. Nothing was started."
    )


def _is_same(value: Any, ours: Any) -> bool:
    """Return whether two values are equal, up to float32 rounding.

    All kinds of default rotary scaling are equal.
    """
    if isinstance(value, dict) and isinstance(ours, dict):
        if value.get("rope_type") == ours.get("rope_type") == "default":
            return True
        return value.keys() == ours.keys() and all(_is_same(value[key], ours[key]) for key in value)
    if isinstance(value, float):
        return math.isclose(value, ours, rel_tol=1e-6)
    return bool(value == ours)


def _text(value: Any) -> str:
    return json.dumps(float(f"{value:.6g}") if isinstance(value, float) else value)


def _different_tensors(source: WeightSource, architecture: ArchitectureConfig) -> Iterator[str]:
    expected, names = parameters_of(architecture), set(source.names())
    for name in sorted(names | expected.keys()):
        stored, wanted = source.stored_name(name), expected.get(name)
        if wanted is None:
            if name != OUTPUT:  # beside tied weights it is a copy of the embedding
                yield f"{stored}: no part of the model; {list(source.shape(name))} in the file"
        elif name not in names:
            yield f"{stored}{_MISSING}; the configuration has {list(wanted)}"
        elif source.shape(name) != wanted:
            yield f"{stored}: {list(source.shape(name))} in the file, {list(wanted)}{_SHAPED}"
