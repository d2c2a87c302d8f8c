"""Read weights from a GGUF file of the architecture `llama`, and dequantise them tensor by tensor.

    token_embd  blk.N.attn_q  …  --names, rows of q and k reordered-->  model.embed_tokens  model.layers.N.…

The tokenizer in such a file is not read; `model.tokenizer` names one.
"""

import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.constants import GGUFValueType
from torch import Tensor

from trainyard.config.schema import ArchitectureConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.training.model.model import rotary_frequencies
from trainyard.training.weights.native_dequantization import DEFAULT_TILE_BYTES, dequantize
from trainyard.training.weights.weight_fit import WeightSource, digest_of_files

if TYPE_CHECKING:
    from gguf import ReaderTensor

Floats = npt.NDArray[np.float32]
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The divisors of the rotary frequencies; llama.cpp's converter stores Llama 3's scaling this way.
FREQUENCIES = "rope_freqs.weight"

_KIND_AND_COUNT = struct.Struct("<IQ")
_LENGTH = struct.Struct("<Q")


def our_name(name: str) -> str:
    """The parameter of our model that GGUF calls `name`; an unknown one keeps its name."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return _OUTER.get(name, name)


def gguf_name(name: str) -> str:
    """The inverse of `our_name`."""
    outer = {ours: theirs for theirs, ours in _OUTER.items()}
    layer = {ours: theirs for theirs, ours in _LAYER.items()}
    parts = name.split(".")
    middle = ".".join(parts[3:-1])
    return f"blk.{parts[2]}.{layer[middle]}.{parts[-1]}" if middle in layer else outer.get(name, name)


def rows_by_halves(weights: Floats, heads: int) -> Floats:
    """Undo llama.cpp's order of the rows `[heads × head_dim, width]` of queries and keys.

    Its rotary positions rotate neighbouring rows (0, 1), (2, 3), …; ours and Hugging Face's rotate row i with
    row i + head_dim / 2. Its converter therefore interleaves the two halves of each head.
    """
    pairs = weights.reshape(heads, -1, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


class GgufWeights(WeightSource):
    """A `.gguf` file; `tile_bytes` of it are dequantised at a time."""

    def __init__(self, path: Path, *, tile_bytes: int = DEFAULT_TILE_BYTES) -> None:
        self.path = path
        self._tile_bytes = tile_bytes
        reader = _open(path)
        self._tensors = {our_name(tensor.name): tensor for tensor in reader.tensors}
        self._frequencies = self._tensors.pop(FREQUENCIES, None)
        self.declared = self._declared_keys(reader)
        self._longest = _value(reader, "context_length", 2048)
        self._turned = _value(reader, "rope.dimension_count", 0)
        self._heads = {
            "attn_q": self.declared["num_attention_heads"],
            "attn_k": self.declared["num_key_value_heads"],
        }

    def _declared_keys(self, reader: GGUFReader) -> dict[str, Any]:
        heads = _value(reader, "attention.head_count")
        # A rotary scaling in the metadata is one that our model does not support (linear, yarn, …).
        scaling = _value(reader, "rope.scaling.type", "none")
        return {
            "num_layers": _value(reader, "block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": _value(reader, "attention.head_count_kv", heads),
            "rope_theta": _value(reader, "rope.freq_base", 10000.0),
            "rms_norm_eps": _value(reader, "attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            **({} if scaling == "none" else {"rope_scaling": {"rope_type": scaling}}),
        }

    def architecture(self) -> dict[str, Any]:
        """The keys of `model.architecture` in the header; sizes are those of the tensors."""
        vocabulary, width = self.shape("model.embed_tokens.weight")
        found = {
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": self.shape("model.layers.0.mlp.gate_proj.weight")[0],
            "max_position_embeddings": self._longest,
            **self.declared,
        }
        if self._frequencies is not None:
            # Only the divisors are stored. The other values are the same in every Llama 3 with scaling, and
            # `contradictions` compares the resulting divisors with the file.
            factor = float(_frequency_divisors(self._frequencies).max())
            found["rope_scaling"] = {"rope_type": "llama3", "factor": factor}
        return found

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def stored_name(self, name: str) -> str:
        return gguf_name(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def read(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        values = _dequantise(tensor, tile_bytes=self._tile_bytes)
        heads = self._heads.get(tensor.name.split(".")[-2])
        return torch.from_numpy(rows_by_halves(values, heads) if heads else values)

    def contradictions(self, architecture: ArchitectureConfig, /) -> Iterator[str]:
        turned = 2 * rotary_frequencies(architecture).numel()
        if (self._turned or turned) != turned:
            yield f"the file rotates {self._turned} dimensions per head by position, our model all {turned}"
        plain = rotary_frequencies(architecture.model_copy(update={"rope_scaling": RopeScalingConfig()}))
        ours = plain / rotary_frequencies(architecture)
        theirs = (
            torch.ones_like(ours) if self._frequencies is None else _frequency_divisors(self._frequencies)
        )
        if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-4):
            yield (
                f"model.architecture.rope_scaling: the file divides the rotary frequencies by "
                f"{theirs.min():g} to {theirs.max():g} ({FREQUENCIES}), the configuration by {ours.min():g} "
                f"to {ours.max():g}"
            )

    def digest(self) -> str:
        return digest_of_files([self.path])


def _dequantise(tensor: "ReaderTensor", *, tile_bytes: int = DEFAULT_TILE_BYTES) -> Floats:
    """Dequantise a tensor into new memory, separate from the mapped file."""
    kind, threads = tensor.tensor_type.name, torch.get_num_threads()
    return dequantize(tensor.data, kind, tile_bytes=tile_bytes, threads=threads)


def _frequency_divisors(tensor: "ReaderTensor") -> Tensor:
    return torch.from_numpy(_dequantise(tensor))


def _open(path: Path) -> "GgufHeader":
    try:
        reader = GgufHeader(path)
        field = reader.get_field("general.architecture")
        kind = field.contents() if field else None
    except (ValueError, IndexError, KeyError, OSError, struct.error) as error:
        raise ConfigError(
            f"model.path: {path} is not a GGUF file that the installed gguf can read ({error}); "
            "download it again, or update gguf"
        ) from None
    if reader.byte_order != "I":
        raise ConfigError(f"model.path: {path} has another byte order than this machine; convert it")
    if kind != "llama":
        raise ConfigError(f"model.path: {path} is of the architecture {kind!r}; this trainer has llama only")
    parts = reader.get_field("split.count")
    if parts is not None and int(parts.contents()) > 1:
        raise ConfigError(
            f"model.path: {path} is a part of a split model, which is not supported. Join the parts with "
            f"llama.cpp (llama-gguf-split --merge FIRST_PART COMPLETE.gguf), and name the complete file. "
            "Nothing was started."
        )
    return reader


def _value(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(f"llama.{key}")
    value = field.contents() if field else default
    if value is None:
        raise ConfigError(f"model.path: the file has no llama.{key}, so it is not a complete model")
    return value


class GgufHeader(GGUFReader):
    """Reads scalars and strings of the metadata and the locations of tensors; arrays have no contents."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order != "I":
            return super()._get_field_parts(orig_offs, raw_type)
        kind, count = _KIND_AND_COUNT.unpack_from(self.data.data, orig_offs)
        start = orig_offs + _KIND_AND_COUNT.size
        if kind == GGUFValueType.STRING:
            end = self._after_strings(start, count)
        elif kind in self.gguf_scalar_to_np:
            end = start + count * self.gguf_scalar_to_np[GGUFValueType(kind)]().itemsize
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return end - orig_offs, [], [], [GGUFValueType.ARRAY]

    def _after_strings(self, offset: int, count: int) -> int:
        content = self.data.data
        for _ in range(count):
            offset += _LENGTH.size + _LENGTH.unpack_from(content, offset)[0]
        return offset
