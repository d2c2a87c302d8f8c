"""The keys of the configuration that the model of the weights decides, for every form of weights."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.training.lab import Lab
from tests.unit.training.weights.model_files import write_folder

from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import LoadedConfig, dump_yaml, load_config
from trainyard.config.schema import ArchitectureConfig
from trainyard.errors import ConfigError
from trainyard.run.directory import RunDirectory
from trainyard.training.export import plan_export, write_export
from trainyard.training.weights.hugging_face_config import hugging_face_config
from trainyard.training.weights.pretrained import load_with_weights
from trainyard.training.weights.starting_weights import open_starting_weights

SMOKE = Path(__file__).parents[4] / "configs" / "smoke.yaml"
SHAPE = ArchitectureConfig(
    vocab_size=300,
    hidden_size=48,
    intermediate_size=80,
    num_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    max_position_embeddings=4096,
    rope_theta=5e5,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    initializer_range=0.03,
)
KEYS = [key for key in leaf_keys() if key.startswith("model.architecture.")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Hugging Face folder with a name that needs care."""
    return write_folder(tmp_path / "Mein Modell ä", SHAPE)


def load(*overrides: str, config: Path = SMOKE, run: Path | None = None) -> LoadedConfig:
    return load_with_weights(config, overrides, run)


def file_with(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(f"extends: {SMOKE}\n{text}")
    return path


def test_a_path_on_the_command_line_takes_the_model_from_the_folder(folder: Path) -> None:
    found = load(f"model.path={folder}")
    assert found.config.model.architecture == SHAPE
    assert found.config.model.tokenizer == str(folder / "tokenizer.json")
    assert found.config.model.name == "Mein Modell ä"
    assert str(found.origins["model.architecture.hidden_size"]) == f"config.json of {folder}"
    assert str(found.origins["model.tokenizer"]) == f"config.json of {folder}"
    assert found.origins["model.path"].file == "--set"
    assert open_starting_weights(found.config.model) is not None
    own = load(f"model.path={folder}", "model.tokenizer=null", "model.name=mine").config.model
    assert (own.tokenizer, own.name) == (None, "mine"), "the command line beats the folder"


def test_the_file_in_the_folder_means_the_same_and_a_home_folder_is_kept_as_it_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load(f"model.path={folder / 'model.safetensors'}").config.model
    assert (found.architecture, found.tokenizer) == (SHAPE, str(folder / "tokenizer.json"))
    monkeypatch.setenv("HOME", str(folder.parent))
    found = load("model.path=~/Mein Modell ä").config.model
    assert (found.path, found.tokenizer) == ("~/Mein Modell ä", "~/Mein Modell ä/tokenizer.json")
    assert open_starting_weights(found) is not None


@each_case("key", KEYS)
def test_a_key_on_the_command_line_beats_the_weights(folder: Path, key: str) -> None:
    values = {"rope_type": "llama3", "tie_word_embeddings": "false", "max_position_embeddings": "512"}
    # 12 is a multiple of the 3 key-value heads and 24 of the 6 heads: every combination is possible.
    usual = "12" if "num_attention" in key else "3" if "num_" in key else "24"
    value = values.get(key.rpartition(".")[2], usual)
    found = load(f"model.path={folder}", f"{key}={value}")
    plain: Any = found.config.to_plain()
    for name in key.split("."):
        plain = plain[name]
    assert str(plain).removesuffix(".0").lower() == value
    assert found.origins[key].file == "--set"
    others = [other for other in KEYS if other != key and found.origins[other].file != "default"]
    assert {found.origins[other].file for other in others} == {f"config.json of {folder}"}


def test_keys_in_files_count_as_set_where_a_file_names_the_path(folder: Path, tmp_path: Path) -> None:
    found = load(config=file_with(tmp_path, f"model: {{path: '{folder}'}}")).config.model
    smoke = load_config(SMOKE).config.model.architecture
    assert found.architecture.hidden_size == smoke.hidden_size
    assert found.architecture.initializer_range == SHAPE.initializer_range  # set nowhere
    refused = r"does not fit.*\n.*num_layers.*(.*\n)*To take .*--set 'model\.path=/"
    with pytest.raises(ConfigError, match=refused):
        open_starting_weights(found)


def test_a_null_architecture_leaves_all_of_it_to_the_weights(folder: Path, tmp_path: Path) -> None:
    text = f"model: {{path: '{folder}', architecture: null}}"
    found = load(config=file_with(tmp_path, text))
    assert found.config.model.architecture == SHAPE
    assert found.config.model.name == "smoke-llama"
    assert found.config.model.tokenizer is None  # smoke.yaml sets it to null
    again = load("model.architecture.num_layers=2", config=tmp_path / "own.yaml")
    assert again.config.model.architecture == SHAPE.model_copy(update={"num_layers": 2})


def test_a_null_architecture_without_weights_is_refused_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"own\.yaml:2: model\.path: not set, and model\.arch"):
        load(config=file_with(tmp_path, "model: {architecture: null}"))


def test_a_resolved_configuration_loads_again_without_the_weights(folder: Path, tmp_path: Path) -> None:
    found = load(f"model.path={folder}").config
    (tmp_path / "config.yaml").write_text(dump_yaml(found))
    folder.rename(folder.with_name("gone"))
    assert load(config=tmp_path / "config.yaml").config == found


def test_a_run_resumes_by_the_same_command_without_the_weights(folder: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    found = load(f"model.path={folder}", run=run.path).config
    run.config_file.write_text(dump_yaml(found))
    moved = folder.rename(folder.with_name("gone"))
    assert load(f"model.path={folder}", run=run.path).config == found
    assert load(f"model.path={moved}", run=run.path).config.model.name == "gone"


def test_a_sequence_that_the_weights_allow_is_not_judged_by_the_files(folder: Path) -> None:
    assert load(f"model.path={folder}", "data.sequence_length=4000").config.data.sequence_length == 4000
    load_config(SMOKE, [f"model.path={folder}", "data.sequence_length=4000"])  # they are not read here
    with pytest.raises(
        ConfigError, match=r"5000 is longer than model\.architecture\.max_position_embeddings, 4096"
    ):
        load(f"model.path={folder}", "data.sequence_length=5000")


def test_weights_that_are_not_there_are_only_missed_where_they_decide(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path: .*gone does not exist"):
        load(f"model.path={tmp_path}/gone")
    load(config=file_with(tmp_path, f"model: {{path: '{tmp_path}/gone'}}"))
    load(config=SMOKE.with_name("training_configuration.yaml"))


def test_a_model_that_is_not_ours_is_refused_by_what_it_says(folder: Path) -> None:
    yarn = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    for changes, problem in (
        (yarn, r'rope_scaling\.rope_type: expected .*, got "yarn"'),
        ({"hidden_size": "48"}, r'of .*: model\.architecture\.hidden_size: expected .*, got "48"'),
        ({"num_attention_heads": 5}, "of .* 5 does not divide the hidden size 48"),
    ):
        (folder / "config.json").write_text(json.dumps(hugging_face_config(SHAPE) | changes))
        with pytest.raises(ConfigError, match=problem):
            load(f"model.path={folder}")


def test_a_folder_without_the_needed_files_is_refused_with_the_keys_to_set(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json beside .*Mein Modell ä.* to null"):
        load(f"model.path={folder}")
    assert load(f"model.path={folder}", "model.tokenizer=null").config.model.architecture == SHAPE
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json beside it.*num_attention_heads"):
        load(f"model.path={folder}", "model.tokenizer=null")


@pytest.mark.parametrize("form", ["safetensors", "checkpoint"])
def test_every_form_of_our_own_is_started_from_without_a_key(lab: Lab, form: str) -> None:
    scaling = {"rope_type": "llama3", "original_max_position_embeddings": 8192}
    config = lab.config(model={"architecture": {"rope_scaling": scaling, "tie_word_embeddings": True}})
    lab.run(config)
    path = lab.folder / "run/checkpoints/step-00000012"
    if form != "checkpoint":
        path = lab.folder / "exported"
        write_export(plan_export(lab.directory()), path)
    found = load(f"model.path={path}", "data.sequence_length=16").config.model
    expected = config.model.architecture.model_dump()
    for key, value in found.architecture.model_dump().items():
        assert value == pytest.approx(expected[key]), key
    assert found.tokenizer is None
    source = open_starting_weights(found)
    assert source is not None
    assert source.read("model.norm.weight").shape == (32,)
