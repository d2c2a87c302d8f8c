"""GGUF files that are exported: read back by our reader and by gguf's, and run by llama.cpp itself."""

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.export.gguf_export import rows_by_pairs, write_gguf
from trainyard.training.export.gguf_tokenizer import _LLAMA_3, gguf_tokenizer
from trainyard.training.model.model import build_model
from trainyard.training.weights.gguf_weights import GgufWeights, gguf_name, rows_by_halves
from trainyard.training.weights.starting_weights import open_starting_weights
from trainyard.training.weights.weight_fit import parameters_of

LLAMA_CPP = Path(__file__).parents[3] / "llama_cpp"
HAS_LLAMA_CPP = shutil.which("node") and (LLAMA_CPP / "node_modules" / "@node-llama-cpp").is_dir()
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "max_position_embeddings": 256}
TEXT = "import os, sys\n\nclass Käse(dict):  # 12345 isn't\n    def f(self): return 'it''s' + \"日本\" * 7\n"


class RandomWeights:
    """The weights of a model with random ones."""

    def __init__(self, shape: ArchitectureConfig) -> None:
        self.model = build_model(shape, seed=0)
        self._tensors: dict[str, Tensor] = self.model.state_dict()
        random = torch.Generator().manual_seed(1)
        for tensor in self._tensors.values():  # norms that are all 1 would hide a wrong one
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=random))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def shape_of(vocab_size: int = 256, **changes: Any) -> ArchitectureConfig:
    return ArchitectureConfig.model_validate({**SIZES, "vocab_size": vocab_size, **changes})


def export(
    path: Path, model: ModelConfig, weights: Any, *, dtype: str = "float32", tokenizer: bool = True
) -> Path:
    write_gguf(
        path,
        model,
        weights,
        names=list(parameters_of(model.architecture)),
        dtype=dtype,
        tokenizer=gguf_tokenizer(model) if tokenizer else None,
        origin={"run_id": "r", "step": "1"},
    )
    return path


LLAMA_3 = RopeScalingConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=64)
SHAPES = [
    shape_of(),
    shape_of(tie_word_embeddings=True, num_key_value_heads=1, rope_theta=5e5),
    shape_of(300, rope_scaling=LLAMA_3.model_dump(), num_key_value_heads=4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "tied", "scaled"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_exported_weights_are_read_back_to_the_bit(
    tmp_path: Path, shape: ArchitectureConfig, dtype: str
) -> None:
    model, weights = ModelConfig(name="m", architecture=shape), RandomWeights(shape)
    path = export(tmp_path / "m.gguf", model, weights, dtype=dtype)
    source = open_starting_weights(model.model_copy(update={"path": str(path)}))
    assert source is not None
    kind = getattr(torch, dtype)
    for name in parameters_of(shape):
        tensor = weights.read(name)
        expected = tensor if tensor.ndim == 1 else tensor.to(kind).float()
        assert torch.equal(source.read(name), expected), name
    again = export(tmp_path / "again.gguf", model, source, dtype=dtype)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "tied", "scaled"])
def test_the_architecture_is_found_again_in_the_header(tmp_path: Path, shape: ArchitectureConfig) -> None:
    model = ModelConfig(name="m", architecture=shape)
    found = GgufWeights(export(tmp_path / "m.gguf", model, RandomWeights(shape))).architecture()
    scaling = found.pop("rope_scaling", RopeScalingConfig().model_dump())
    assert found == {key: pytest.approx(getattr(shape, key)) for key in found}
    assert scaling == shape.rope_scaling.model_dump()
    missing = set(ArchitectureConfig.model_fields) - found.keys()
    assert missing == {"rope_scaling", "initializer_range"}


def test_the_scaling_of_another_writer_is_found_in_the_divisors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = RopeScalingConfig(rope_type="llama3", factor=32.0)
    shape = shape_of(rope_theta=5e5, rope_scaling=scaling.model_dump())
    monkeypatch.setattr("trainyard.training.weights.gguf_weights.SCALING_KEY", "unknown")
    model = ModelConfig(name="m", architecture=shape)
    source = GgufWeights(export(tmp_path / "m.gguf", model, RandomWeights(shape)))
    found = ArchitectureConfig.model_validate(source.architecture())
    assert found.rope_scaling.factor == pytest.approx(32)
    assert not list(source.contradictions(found))


def test_dequantised_weights_are_exported_to_the_bit(tmp_path: Path) -> None:
    shape = shape_of()
    model, weights = ModelConfig(name="m", architecture=shape), RandomWeights(shape)
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "llama")
    for key, value in (("block_count", 2), ("attention.head_count", 4), ("attention.head_count_kv", 2)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name in parameters_of(shape):
        values = weights.read(name).numpy()
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = GgufWeights(tmp_path / "q8.gguf")
    second = GgufWeights(export(tmp_path / "f32.gguf", model, first))
    assert all(torch.equal(first.read(name), second.read(name)) for name in parameters_of(shape))


def test_the_order_of_rows_goes_there_and_back() -> None:
    rows = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    assert (rows_by_halves(rows_by_pairs(rows, 3), 3) == rows).all()
    assert not (rows_by_pairs(rows, 3) == rows).all()


def test_the_reader_of_gguf_finds_everything(tmp_path: Path) -> None:
    shape = shape_of(260, rope_scaling=LLAMA_3.model_dump())
    model = ModelConfig(name="mein Modell", architecture=shape)
    reader = gguf.GGUFReader(export(tmp_path / "m.gguf", model, RandomWeights(shape)))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.name"] == "mein Modell"
    assert fields["trainyard.run_id"] == "r"
    assert fields["llama.vocab_size"] == len(fields["tokenizer.ggml.tokens"]) == 260
    assert fields["tokenizer.ggml.tokens"][ord("a")] == "a"
    assert fields["tokenizer.ggml.token_type"] == [1] * 256 + [5] * 4
    assert fields["tokenizer.ggml.eos_token_id"] == 0
    names = {tensor.name for tensor in reader.tensors}
    assert names == {gguf_name(name) for name in parameters_of(shape)} | {"rope_freqs.weight"}


def byte_level(folder: Path, before: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = before
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(
        [Path(math.__spec__.origin or __file__).name, Path(__file__).read_text()], trainer
    )
    return tokenizer


def gpt_2(folder: Path) -> Tokenizer:
    return byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=False))


def smollm(folder: Path) -> Tokenizer:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return byte_level(folder, pre_tokenizers.Sequence(steps))


def llama_3(folder: Path) -> Tokenizer:
    from tokenizers import Regex

    cut = pre_tokenizers.Split(Regex(_LLAMA_3), behavior="isolated")
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return byte_level(folder, pre_tokenizers.Sequence([cut, rest]))


def llama_2(folder: Path) -> Tokenizer:
    signs = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=signs)
    tokenizer.train_from_iterator([Path(__file__).read_text().replace("日", "").replace("本", "")], trainer)
    value = json.loads(tokenizer.to_str())
    value["added_tokens"] = [token for token in value["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(value))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


MAKERS = {"bytes": None, "gpt-2": gpt_2, "smollm": smollm, "llama-bpe": llama_3, "llama-2": llama_2}


def with_tokenizer(folder: Path, kind: str, **changes: Any) -> ModelConfig:
    maker = MAKERS[kind]
    if maker is None:
        return ModelConfig(name="m", architecture=shape_of(**changes))
    tokenizer = maker(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    shape = shape_of(tokenizer.get_vocab_size() + 3, **changes)
    return ModelConfig(name="m", tokenizer=str(folder / "tokenizer.json"), architecture=shape)


def llama_cpp_continuation(path: Path, text: str, count: int = 8) -> dict[str, Any]:
    command = ["node", str(LLAMA_CPP / "read.cjs"), str(path), str(count), text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


def our_continuation(weights: RandomWeights, tokens: list[int], count: int) -> tuple[list[int], Tensor]:
    found, logits = list(tokens), []
    with torch.no_grad():
        for _ in range(count):
            last = weights.model(torch.tensor([found]))[0, -1]
            logits.append(last)
            found.append(int(last.argmax()))
    return found[len(tokens) :], torch.stack(logits)


needs_llama_cpp = pytest.mark.skipif(
    not HAS_LLAMA_CPP, reason="llama.cpp is not installed: npm ci --prefix tests/llama_cpp (Linux on x64)"
)


@needs_llama_cpp
@pytest.mark.parametrize("kind", MAKERS)
def test_llama_cpp_uses_the_same_tokens_and_continues_like_our_model(tmp_path: Path, kind: str) -> None:
    scaling = {"rope_scaling": LLAMA_3.model_dump()} if kind == "llama-bpe" else {}
    model = with_tokenizer(tmp_path, kind, tie_word_embeddings=kind == "smollm", **scaling)
    weights = RandomWeights(model.architecture)
    theirs = llama_cpp_continuation(export(tmp_path / "m.gguf", model, weights), TEXT)
    vocabulary = load_vocabulary(model)
    assert theirs["tokens"] == vocabulary.encode(TEXT)
    assert theirs["ends"] == [vocabulary.eos]
    assert not theirs["adds_bos"]
    continuation, logits = our_continuation(weights, theirs["tokens"], 8)
    torch.testing.assert_close(torch.tensor(theirs["logits"]), logits, rtol=1e-3, atol=1e-3)
    assert theirs["continuation"] == continuation


@needs_llama_cpp
def test_llama_cpp_runs_weights_without_a_tokenizer(tmp_path: Path) -> None:
    model = ModelConfig(name="m", architecture=shape_of(320))
    weights = RandomWeights(model.architecture)
    path = export(tmp_path / "m.gguf", model, weights, dtype="bfloat16", tokenizer=False)
    theirs = llama_cpp_continuation(path, "[3, 300, 17]", 1)
    torch.testing.assert_close(
        torch.tensor(theirs["logits"]), our_continuation(weights, [3, 300, 17], 1)[1], rtol=0.05, atol=0.05
    )


@pytest.mark.parametrize(
    "before",
    [
        pre_tokenizers.Whitespace(),
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split("x", "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
    ],
)
def test_a_rule_of_cutting_that_llama_cpp_may_not_have_is_refused(
    tmp_path: Path, before: pre_tokenizers.PreTokenizer
) -> None:
    byte_level(tmp_path, before).save(str(tmp_path / "tokenizer.json"))
    model = ModelConfig(name="m", tokenizer=str(tmp_path / "tokenizer.json"), architecture=shape_of(400))
    with pytest.raises(ConfigError, match=r"model\.tokenizer: .*tokenizer\.json.*--no-tokenizer"):
        gguf_tokenizer(model)


def test_tokens_of_all_kinds_have_their_type(tmp_path: Path) -> None:
    tokenizer = gpt_2(tmp_path)
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size() + 1
    found = gguf_tokenizer(
        ModelConfig(name="m", tokenizer=str(tmp_path / "tokenizer.json"), architecture=shape_of(size))
    )
    kinds = dict(zip(found.tokens, found.types, strict=True))
    assert (kinds["<|endoftext|>"], kinds["<tool>"], kinds["a"], found.types[-1]) == (3, 4, 1, 5)
