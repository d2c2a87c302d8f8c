import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.training.weights.model_files import tensors_of, write_folder

from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.training.weights.starting_weights import open_starting_weights, open_weights

SHAPE = ArchitectureConfig(hidden_size=32, intermediate_size=48, num_layers=3, num_attention_heads=4)
Tensors = dict[str, torch.Tensor]


def weights(shape: ArchitectureConfig = SHAPE) -> Tensors:
    return tensors_of(shape)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a Hugging Face folder; `config` changes its config.json."""

    return partial(write_folder, tmp_path, SHAPE)


def refusal(path: Path, shape: ArchitectureConfig = SHAPE) -> list[str]:
    """The lines that explain why the weights are refused."""
    with pytest.raises(ConfigError) as error:
        open_starting_weights(ModelConfig(name="m", path=str(path), architecture=shape))
    first, *lines, last = str(error.value).splitlines()
    assert first == f"model.path: {path} does not fit model.architecture:"
    assert "--set model.path=null" in last
    return [line.strip() for line in lines]


def test_the_keys_that_differ_are_named_and_without_any_the_first_tensors(
    folder: Callable[..., Path],
) -> None:
    path = folder(weights(), rope_theta=500000.0, rms_norm_eps=1e-6)
    other = SHAPE.model_copy(update={"vocab_size": 300, "intermediate_size": 64, "num_key_value_heads": 4})
    assert refusal(path, other) == [
        "model.architecture.num_key_value_heads: the file has 2, the configuration 4",
        "model.architecture.rope_theta: the file has 500000.0, the configuration 10000.0",
        "model.architecture.rms_norm_eps: the file has 1e-06, the configuration 1e-05",
    ]
    lines = refusal(folder(weights()), SHAPE.model_copy(update={"vocab_size": 300, "intermediate_size": 64}))
    assert lines[:2] == [
        "lm_head.weight: [256, 32] in the file, [300, 32] in the configuration",
        "model.embed_tokens.weight: [256, 32] in the file, [300, 32] in the configuration",
    ]
    assert lines[8:] == ["… and 3 more"]


def test_another_number_of_layers_or_heads_is_named_by_its_key(folder: Callable[..., Path]) -> None:
    path = folder(weights())
    for layers in (2, 5):
        assert refusal(path, SHAPE.model_copy(update={"num_layers": layers})) == [
            f"model.architecture.num_layers: the file has 3, the configuration {layers}"
        ]
    # Half as many heads of twice the size have tensors of the same shapes, but another meaning.
    other = SHAPE.model_copy(update={"num_attention_heads": 2, "num_key_value_heads": 1})
    assert refusal(path, other) == [
        "model.architecture.num_attention_heads: the file has 4, the configuration 2",
        "model.architecture.num_key_value_heads: the file has 2, the configuration 1",
    ]


def test_missing_and_unexpected_tensors_are_named(folder: Callable[..., Path]) -> None:
    tensors = weights()
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    assert refusal(folder(tensors)) == [
        "model.layers.0.self_attn.q_proj.bias: no part of the model; [32] in the file",
        "model.layers.1.mlp.up_proj.weight: not in the file; the configuration has [48, 32]",
        "model.norm.weight: not in the file; the configuration has [32]",
    ]
    tensors = weights() | {"model.norm.weight": torch.ones(32, dtype=torch.int8)}
    assert refusal(folder(tensors)) == [
        "model.norm.weight: stored as I8; only BF16, F16, F32, F64 can be read"
    ]
    rotary_table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    path = folder(weights() | rotary_table)  # as old exports have it
    assert open_starting_weights(ModelConfig(name="m", path=str(path), architecture=SHAPE)) is not None


def test_a_tied_file_needs_a_tied_configuration_and_the_other_way_round(folder: Callable[..., Path]) -> None:
    tied = SHAPE.model_copy(update={"tie_word_embeddings": True})
    assert refusal(folder(weights(tied), tie_word_embeddings=True)) == [
        "model.architecture.tie_word_embeddings: the file has true, the configuration false"
    ]
    assert refusal(folder(weights()), tied) == [
        "model.architecture.tie_word_embeddings: the file has false, the configuration true"
    ]
    assert refusal(folder(weights(tied))) == [
        "lm_head.weight: not in the file; the configuration has [256, 32]"
    ]


def test_a_single_file_without_a_config_is_judged_by_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file(weights(), path)
    shape = SHAPE.model_copy(update={"num_layers": 4, "tie_word_embeddings": True, "rope_theta": 1.0})
    assert refusal(path, shape) == [
        "model.architecture.num_layers: the file has 3, the configuration 4",
        "model.architecture.tie_word_embeddings: the file has false, the configuration true",
    ]


def test_another_rotary_scaling_is_refused(folder: Callable[..., Path]) -> None:
    start = "model.architecture.rope_scaling: the file has"
    linear = folder(weights(), rope_scaling={"type": "linear", "factor": 2.0})
    plain = RopeScalingConfig().model_dump()
    assert refusal(linear) == [
        f'{start} {{"rope_type": "linear", "factor": 2.0}}, the configuration {json.dumps(plain)}'
    ]
    scaling = RopeScalingConfig(rope_type="llama3", factor=8.0)
    scaled = folder(weights(), rope_scaling=scaling.model_dump() | {"factor": 32.0})
    (line,) = refusal(scaled, SHAPE.model_copy(update={"rope_scaling": scaling}))
    assert line.startswith(f'{start} {{"rope_type": "llama3", "factor": 32.0')


def refusal_of_file(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        open_weights(path)
    return str(error.value)


def test_quantised_weights_and_a_broken_config_are_refused(folder: Callable[..., Path]) -> None:
    quantised = folder(weights(), quantization_config={"quant_method": "gptq"})
    assert "describes quantised weights" in refusal_of_file(quantised)
    (quantised / "config.json").write_text("[]")
    assert "model_type None" in refusal_of_file(quantised)
    (quantised / "config.json").write_text("{")
    assert "not readable as JSON" in refusal_of_file(quantised)


def test_broken_folders_are_named(folder: Callable[..., Path]) -> None:
    path = folder(weights())
    complete = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(complete[: len(complete) // 2])
    assert "not a complete .safetensors file" in refusal_of_file(path)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert "names missing files: one.safetensors, two.safetensors" in refusal_of_file(path)
    index.write_text("[]")
    assert "is not an index of weights" in refusal_of_file(path)
    index.unlink()
    (path / "model.safetensors").rename(path / "one.safetensors")
    (path / "two.safetensors").write_bytes(complete)
    assert "holds 2 .safetensors files" in refusal_of_file(path)
