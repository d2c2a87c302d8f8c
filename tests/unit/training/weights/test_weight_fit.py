"""Weights that do not fit: each refusal names the keys, and its fix works when it is followed as printed."""

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from tests.unit.training.weights.model_files import finish_gguf, tensors_of, write_folder

from trainyard.config.load import LoadedConfig
from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.training.weights.pretrained import load_with_weights
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


def test_the_keys_that_differ_are_named_or_else_the_first_tensors(folder: Callable[..., Path]) -> None:
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
    (line,) = refusal(folder(tensors))
    assert line == "model.norm.weight: stored as I8; only BF16, F16, F32, F64 can be read"
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
    (line,) = refusal(folder(weights(tied)))
    assert line == "lm_head.weight: not in the file; the configuration has [256, 32]"


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


SMOKE = Path(__file__).parents[4] / "configs" / "smoke.yaml"
SCALED_SHAPE = ArchitectureConfig(
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_attention_heads=4,
    rope_theta=123456.7,
    rope_scaling=RopeScalingConfig(rope_type="llama3", factor=32.0, original_max_position_embeddings=64),
)
SETTING = re.compile(r"--set ('[^']+'|\S+)")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "a model", SCALED_SHAPE)


def write_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(f"extends: {SMOKE}\n{text}")
    return path


def refusal_of(loaded: LoadedConfig) -> str:
    with pytest.raises(ConfigError) as error:
        open_starting_weights(loaded.config.model)
    return str(error.value)


def settings_in(message: str) -> list[str]:
    """Return the settings of the fix, without the one for random weights."""
    found = [shlex.split(each.rstrip("."))[0] for each in SETTING.findall(message)]
    return [each for each in found if each != "model.path=null"]


def test_settings_that_the_weights_have_are_printed_and_work(model: Path, tmp_path: Path) -> None:
    """Each key is wrong in the configuration, which also sets model.path, so that its values are taken."""
    text = f"model:\n  path: {model}\n  architecture: null\n"
    (tmp_path / "base.yaml").write_text(f"extends: {SMOKE}\n{text}")
    own = tmp_path / "own.yaml"
    for key in (
        *("num_layers: 2", "num_attention_heads: 2", "num_key_value_heads: 4", "vocab_size: 256"),
        *(
            "intermediate_size: 64",
            "rope_theta: 10000.0",
            "rms_norm_eps: 1.0e-6",
            "tie_word_embeddings: true",
        ),
        *("rope_scaling: {factor: 8.0}", "rope_scaling: {rope_type: default}"),
    ):
        own.write_text(f"extends: base.yaml\nmodel:\n  architecture:\n    {key}\n")
        message = refusal_of(load_with_weights(own, []))
        assert "architecture: null" not in message
        fix = settings_in(message)
        assert fix, key
        assert open_starting_weights(load_with_weights(own, fix).config.model) is not None, key


def test_weights_that_no_setting_describes_are_not_supported(tmp_path: Path) -> None:
    """The architecture is null already, so the refusal does not suggest null."""
    biases = {f"model.layers.{n}.self_attn.q_proj.bias": torch.zeros(32) for n in range(3)}
    model = write_folder(tmp_path / "biased", SCALED_SHAPE, tensors_of(SCALED_SHAPE) | biases)
    own = write_config(tmp_path, f"model:\n  path: {model}\n  architecture: null\n")
    message = refusal_of(load_with_weights(own, []))
    assert "q_proj.bias: no part of the model" in message
    assert "No setting of model.architecture describes these weights: not supported here" in message
    assert settings_in(message) == []


def test_a_config_of_another_model_names_the_trainer_that_has_it(tmp_path: Path) -> None:
    others: dict[str, dict[str, Any]] = {
        "has attention_bias; the layers": {"attention_bias": True},
        "has mlp_bias; the layers": {"mlp_bias": True},
        "has the head_dim 16; heads of this trainer's model have hidden_size / ": {"head_dim": 16},
        "has the model_type 'qwen3'": {"model_type": "qwen3"},
        "has the hidden_act 'gelu'": {"hidden_act": "gelu"},
    }
    for difference, config in others.items():
        model = write_folder(tmp_path / "other model", SCALED_SHAPE, **config)
        with pytest.raises(ConfigError) as error:
            load_with_weights(SMOKE, [f"model.path={model}"])
        message = str(error.value)
        assert difference in message
        command = message.partition("transformers: ")[2].partition(". Nothing was started")[0]
        assert shlex.split(command) == ["python", "train.py", "--model", str(model)]


def test_a_part_of_a_split_gguf_file_names_the_program_that_joins_the_parts(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m-00001-of-00002.gguf", "llama")
    writer.add_uint16("split.count", 2)
    finish_gguf(writer)
    with pytest.raises(ConfigError, match="llama-gguf-split --merge"):
        load_with_weights(SMOKE, [f"model.path={tmp_path / 'm-00001-of-00002.gguf'}", "model.tokenizer=null"])


def test_random_weights_are_a_remedy_that_works(model: Path, tmp_path: Path) -> None:
    own = write_config(tmp_path, f"model:\n  path: {model}\n  architecture: {{num_layers: 2}}\n")
    assert "--set model.path=null" in refusal_of(load_with_weights(own, []))
    found: ModelConfig = load_with_weights(own, ["model.path=null", "model.tokenizer=null"]).config.model
    assert open_starting_weights(found) is None
