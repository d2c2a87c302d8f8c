from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.unit.training.weights.model_files import random_values, write_gguf

from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.training.model.model import rotary_frequencies
from trainyard.training.weights.gguf_weights import GgufHeader, GgufWeights, gguf_name, our_name
from trainyard.training.weights.starting_weights import open_starting_weights, open_weights
from trainyard.training.weights.weight_fit import parameters_of

SCALING = RopeScalingConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=64)
SHAPE = ArchitectureConfig(hidden_size=64, intermediate_size=96, num_layers=2, num_attention_heads=4)
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of random weights of SHAPE, with changes of its metadata."""
    return lambda metadata=None, **more: write_gguf(
        tmp_path / "m.gguf", SHAPE, random_values(SHAPE), metadata=metadata, **more
    )


def refusal_lines(path: Path, shape: ArchitectureConfig = SHAPE) -> list[str]:
    """The lines of the refusal; none when the weights fit."""
    try:
        open_starting_weights(ModelConfig(name="m", path=str(path), architecture=shape))
    except ConfigError as error:
        return [line.strip() for line in str(error).splitlines()[1:-1]]
    return []


def test_names_go_there_and_back() -> None:
    for name in parameters_of(SHAPE):
        assert our_name(gguf_name(name)) == name
    assert gguf_name("model.layers.7.self_attn.k_proj.weight") == "blk.7.attn_k.weight"
    assert our_name("blk.3.attn_k.bias") == "model.layers.3.self_attn.k_proj.bias"
    for unknown in ("blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "blk.0.attn_q"):
        assert our_name(unknown) == gguf_name(unknown) == unknown


def test_tensors_are_read_one_by_one_with_the_shapes_that_were_announced(write: Write) -> None:
    source = GgufWeights(write())
    for name, shape in parameters_of(SHAPE).items():
        tensor = source.read(name)
        assert tuple(tensor.shape) == source.shape(name) == shape
        assert tensor.dtype == torch.float32
        tensor.zero_()  # memory of its own, not the file's
    assert source.digest() == sha256_of_file(source.path)


def test_metadata_and_shapes_are_compared(write: Write) -> None:
    shape = SHAPE.model_copy(update={"rope_theta": 5e5})
    assert refusal_lines(write({"llama.attention.layer_norm_rms_epsilon": 1e-6}), shape) == [
        "model.architecture.rope_theta: the file has 10000.0, the configuration 500000.0",
        "model.architecture.rms_norm_eps: the file has 1e-06, the configuration 1e-05",
    ]
    lines = refusal_lines(write(), SHAPE.model_copy(update={"intermediate_size": 128}))
    assert lines[0] == "blk.0.ffn_down.weight: [64, 96] in the file, [64, 128] in the configuration"
    assert len(lines) == 6
    lines = refusal_lines(write({"llama.attention.head_count_kv": None}))
    assert lines == ["model.architecture.num_key_value_heads: the file has 4, the configuration 2"]


def test_rotary_scaling_is_read_from_the_divisors(write: Write) -> None:
    scaled = SHAPE.model_copy(update={"rope_scaling": SCALING})
    divisors = (rotary_frequencies(SHAPE) / rotary_frequencies(scaled)).numpy()
    start = "model.architecture.rope_scaling: the file divides the rotary frequencies by"
    plain, stretched = write(), "1 to 8 (rope_freqs.weight)"
    assert refusal_lines(plain, scaled) == [
        f"{start} 1 to 1 (rope_freqs.weight), the configuration by 1 to 8"
    ]
    with_divisors = write(extra={"rope_freqs.weight": divisors})
    assert refusal_lines(with_divisors, scaled) == []
    assert GgufWeights(with_divisors).architecture()["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert refusal_lines(with_divisors) == [f"{start} {stretched}, the configuration by 1 to 1"]


def test_features_that_our_model_lacks_are_refused(write: Write) -> None:
    linear = 'model.architecture.rope_scaling: the file has {"rope_type": "linear"}, the configuration '
    (found,) = refusal_lines(write({"llama.rope.scaling.type": "linear"}))
    assert found.startswith(linear)
    (found,) = refusal_lines(write({"llama.rope.dimension_count": 8}))
    assert found == "the file rotates 8 dimensions per head by position, our model all 16"


def test_experts_are_no_part_of_our_model(write: Write) -> None:
    extra = {f"blk.{n}.ffn_gate_inp.weight": np.zeros((4, 64), np.float32) for n in range(2)}
    lines = refusal_lines(write(extra=extra))
    assert lines == [
        f"blk.{n}.ffn_gate_inp.weight: no part of the model; [4, 64] in the file" for n in range(2)
    ]


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        open_weights(path)
    return str(error.value)


def test_files_of_other_models_are_refused(write: Write) -> None:
    assert "the architecture 'qwen2'; this trainer has llama only" in refusal(write(architecture="qwen2"))
    assert "has no llama.block_count" in refusal(write({"llama.block_count": None}))


def test_a_file_cut_off_anywhere_or_of_something_else_is_no_gguf_file(write: Write) -> None:
    path = write()
    content = path.read_bytes()
    for keep in (0, 3, 20, 400, len(content) // 2, len(content) - 50):
        path.write_bytes(content[:keep])
        assert "is not a GGUF file that" in refusal(path), keep
    path.write_bytes(b"<!DOCTYPE html>" * 100)
    assert "can read (GGUF magic invalid); download it again" in refusal(path)


def test_a_tokenizer_in_the_file_is_passed_over(write: Write, tmp_path: Path) -> None:
    """gguf's own reader, which makes an object of each token, finds the same scalars and tensors."""
    path = write(tokens=["a", "", "größer", "x" * 300])
    header, complete = GgufHeader(path), gguf.GGUFReader(path)
    assert [(t.name, t.data_offset, t.n_bytes) for t in header.tensors] == [
        (t.name, t.data_offset, t.n_bytes) for t in complete.tensors
    ]
    arrays = {name for name, field in complete.fields.items() if field.types[0] == gguf.GGUFValueType.ARRAY}
    assert arrays == {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"}
    for name in complete.fields.keys() - arrays:
        assert header.fields[name].contents() == complete.fields[name].contents()
    assert refusal_lines(path) == []
    content = path.read_bytes()
    position = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    path.write_bytes(content[:position] + b"\xff" * 8 + content[position + 8 :])
    assert "is not a GGUF file that" in refusal(path)
