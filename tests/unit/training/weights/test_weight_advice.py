"""The fix in each refusal of weights is followed as printed, and the weights are opened."""

import re
import shlex
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tests.unit.training.weights.model_files import finish_gguf, tensors_of, write_folder

from trainyard.config.load import LoadedConfig
from trainyard.config.schema import ArchitectureConfig, ModelConfig, RopeScalingConfig
from trainyard.errors import ConfigError
from trainyard.training.weights.pretrained import load_with_weights
from trainyard.training.weights.starting_weights import open_starting_weights

SMOKE = Path(__file__).parents[4] / "configs" / "smoke.yaml"
SHAPE = ArchitectureConfig(
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
    return write_folder(tmp_path / "a model", SHAPE)


def write_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(f"extends: {SMOKE}\n{text}")
    return path


def refusal(loaded: LoadedConfig) -> str:
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
        message = refusal(load_with_weights(own, []))
        assert "architecture: null" not in message
        fix = settings_in(message)
        assert fix, key
        assert open_starting_weights(load_with_weights(own, fix).config.model) is not None, key


def test_weights_that_no_setting_describes_are_not_supported(tmp_path: Path) -> None:
    """The architecture is null already, so the refusal does not suggest null."""
    biases = {f"model.layers.{n}.self_attn.q_proj.bias": torch.zeros(32) for n in range(3)}
    model = write_folder(tmp_path / "biased", SHAPE, tensors_of(SHAPE) | biases)
    own = write_config(tmp_path, f"model:\n  path: {model}\n  architecture: null\n")
    message = refusal(load_with_weights(own, []))
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
        model = write_folder(tmp_path / "other model", SHAPE, **config)
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
    assert "--set model.path=null" in refusal(load_with_weights(own, []))
    found: ModelConfig = load_with_weights(own, ["model.path=null", "model.tokenizer=null"]).config.model
    assert open_starting_weights(found) is None
