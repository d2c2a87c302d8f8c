"""Convert a run's tokenizer to the form that llama.cpp stores in a GGUF file, or refuse with the reason.

    bytes                      gpt2: the 256 byte-level characters, and one merge that never applies
    tokenizer.json, byte level gpt2, if llama.cpp has the same pre-tokenizer
    tokenizer.json, Llama 2's  llama: pieces with scores in the order of the merges

llama.cpp has a fixed list of pre-tokenizers, which it knows by name (`tokenizer.ggml.pre`). A tokenizer with
another pre-tokenizer is refused: it would load, but give other tokens than the model was trained on.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.config.schema import ModelConfig
from trainyard.errors import ConfigError
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.export.exported_tokenizer import byte_tokenizer
from trainyard.training.weights.pretrained import tokenizer_file

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class GgufTokenizer:
    """The fields `tokenizer.ggml.*`."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    bos: int | None
    """The token that begins a text; None unless the tokenizer adds one itself."""
    eos: int | None
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    unknown: int | None = None
    prepends_space: bool = False


def gguf_tokenizer(model: ModelConfig) -> GgufTokenizer:
    """Convert the tokenizer of a run.

    Raises ConfigError when llama.cpp has no tokenizer that gives the same tokens.
    """
    eos = load_vocabulary(model).eos
    size = model.architecture.vocab_size
    if model.tokenizer is None:
        value = json.loads(byte_tokenizer())
        # llama.cpp refuses a file without merges. Two zero bytes in a row do not occur in text.
        zero = next(sign for sign, token in value["model"]["vocab"].items() if token == 0)
        value["model"]["merges"] = [f"{zero} {zero}"]
        return _byte_level(value, "gpt-2", size=size, bos=None, eos=eos)
    path = tokenizer_file(model.tokenizer)
    value = json.loads(path.read_bytes())
    bos, kind = _added_bos(str(path)), value["model"].get("type", "BPE")
    if kind == "BPE" and value["model"].get("byte_fallback") and _is_llama_2(value):
        return _pieces(value, size=size, bos=bos, eos=eos)
    is_plain = kind == "BPE" and not value.get("normalizer")
    pre = _pre_tokenizer_name(value.get("pre_tokenizer")) if is_plain else None
    if pre is None:
        raise ConfigError(
            f"model.tokenizer: {path} splits text by a rule that is none of the llama.cpp rules known here "
            "(GPT-2, Llama 2, Llama 3, SmolLM), so a GGUF file would give other tokens. Export the "
            "weights alone with --no-tokenizer, or to safetensors. Nothing was written."
        )
    return _byte_level(value, pre, size=size, bos=bos, eos=eos)


def _byte_level(
    value: Mapping[str, Any], pre: str, *, size: int, bos: int | None, eos: int | None
) -> GgufTokenizer:
    tokens, types = _tokens(value, size)
    return GgufTokenizer(
        model="gpt2",
        pre=pre,
        tokens=tokens,
        types=types,
        bos=bos,
        eos=eos,
        merges=tuple(map(_merge, value["model"]["merges"])),
    )


def _pieces(value: Mapping[str, Any], *, size: int, bos: int | None, eos: int | None) -> GgufTokenizer:
    """Convert a tokenizer of Llama 2's kind. The result of an earlier merge gets a higher score."""
    tokens, types = _tokens(value, size)
    rank: dict[str, int] = {}
    for place, merge in enumerate(value["model"]["merges"]):
        rank.setdefault(_merge(merge).replace(" ", ""), place)
    unknown = value["model"].get("unk_token")
    is_byte = [token.startswith("<0x") and token.endswith(">") and len(token) == 6 for token in tokens]
    kinds = [
        _UNKNOWN if token == unknown else _BYTE if byte else kind
        for token, byte, kind in zip(tokens, is_byte, types, strict=True)
    ]
    return GgufTokenizer(
        model="llama",
        pre="default",
        tokens=tokens,
        types=tuple(kinds),
        bos=bos,
        eos=eos,
        scores=tuple(float(-rank.get(token, len(rank))) for token in tokens),
        unknown=tokens.index(unknown) if unknown in tokens else None,
        prepends_space=_SPACE in json.dumps(_steps(value["normalizer"], "Prepend"), ensure_ascii=False),
    )


def _tokens(value: Mapping[str, Any], size: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The token and type of every id of the model; ids without a token are of type unused."""
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [_UNUSED] * size
    for token, number in value["model"]["vocab"].items():
        tokens[number], types[number] = token, _NORMAL
    for added in value.get("added_tokens", []):
        number = added["id"]
        tokens[number], types[number] = added["content"], _CONTROL if added["special"] else _USER_DEFINED
    return tuple(tokens), tuple(types)


def _merge(merge: str | Sequence[str]) -> str:
    return merge if isinstance(merge, str) else " ".join(merge)


def _added_bos(path: str) -> int | None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    plain, added = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    return int(added[0]) if added[:1] != plain[:1] else None


def _is_llama_2(value: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer only replaces spaces by ▁ before merging."""
    replaced = [step["content"] for step in _steps(value.get("normalizer"), "Replace")]
    return value.get("pre_tokenizer") is None and replaced == [_SPACE]


def _steps(step: Mapping[str, Any] | None, kind: str) -> list[Mapping[str, Any]]:
    """The steps of one kind in a normalizer or pre-tokenizer."""
    if step is None:
        return []
    nested = step.get("normalizers") or step.get("pretokenizers") or []
    return [step] * (step.get("type") == kind) + [found for below in nested for found in _steps(below, kind)]


def _pre_tokenizer_name(step: Mapping[str, Any] | None) -> str | None:
    """llama.cpp's name of a pre-tokenizer; None when no equivalent is known."""
    steps = [] if step is None else step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    kinds = [each["type"] for each in steps]
    if not steps or kinds[-1] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    by_itself = bool(steps[-1].get("use_regex", True))
    if kinds == ["ByteLevel"] and by_itself:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and by_itself and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not by_itself and steps[0]["pattern"].get("Regex") == _LLAMA_3:
        return "llama-bpe"
    return None
