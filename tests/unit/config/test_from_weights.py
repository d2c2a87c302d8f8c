"""Keys that the weights fill: each key x where it was set x what the weights declare."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.from_weights import DeclaredShape
from trainyard.config.key_lookup import leaf_keys
from trainyard.config.load import load_config
from trainyard.config.problems import SET
from trainyard.errors import ConfigError

SOURCE = "config.json of ./weights"
OPENED = {
    "model.architecture.hidden_size": 640,
    "model.architecture.num_layers": 7,
    "model.tokenizer": "./weights",
}
FILE_VALUES = {
    "model.architecture.hidden_size": 320,
    "model.architecture.num_layers": 3,
    "model.tokenizer": "./other",
}
Written = Callable[..., Path]


class Weights:
    """Weights that declare `values`; `asked` has the arguments of each call."""

    def __init__(self, values: dict[str, Any] | None) -> None:
        self.values = values
        self.asked: list[tuple[str, frozenset[str]]] = []

    def __call__(self, path: str, unknown: frozenset[str]) -> DeclaredShape | None:
        self.asked.append((path, unknown))
        return None if self.values is None else DeclaredShape(SOURCE, self.values, f"{path}@abc")


def value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def text(path: str | None, *keys: str) -> str:
    """A configuration file with `keys` set."""
    lines = ["training: {max_steps: 5}", "model:", "  name: x", f"  path: {path or 'null'}"]
    lines += [f"  tokenizer: {FILE_VALUES['model.tokenizer']}"] if "model.tokenizer" in keys else []
    parts = [f"{key.rpartition('.')[2]}: {FILE_VALUES[key]}" for key in keys if "architecture" in key]
    lines += [f"  architecture: {{{', '.join(parts)}}}"] if parts else []
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("key", OPENED)
@pytest.mark.parametrize("by_command", [False, True])
@pytest.mark.parametrize("place", ["nowhere", "file", "command"])
def test_a_key_is_the_weights_unless_it_was_set_beside_them(
    write_files: Written, key: str, by_command: bool, place: str
) -> None:
    file = write_files({"c.yaml": text(None if by_command else "./weights", *[key] * (place == "file"))})
    overrides = ["model.path=./weights"] * by_command + [f"{key}={FILE_VALUES[key]}"] * (place == "command")
    weights = Weights(OPENED)
    loaded = load_config(file, overrides, read_weights=weights)
    [(path, unknown)] = weights.asked
    # a file describes the weights that it names, and not those of the command line
    is_open = place == "nowhere" or (place == "file" and by_command)
    assert path == "./weights"
    assert (key in unknown) == is_open
    expected = OPENED[key] if is_open else FILE_VALUES[key]
    assert value(loaded.config, key) == expected
    origin = loaded.origins[key].file
    assert origin == (SOURCE if is_open else SET if place == "command" else "c.yaml")
    assert loaded.config.model.path == "./weights@abc"


@pytest.mark.parametrize("by_command", [False, True])
def test_the_name_of_a_file_is_replaced_only_with_weights_of_the_command_line(
    write_files: Written, by_command: bool
) -> None:
    file = write_files({"c.yaml": text(None if by_command else "./weights")})
    loaded = load_config(
        file,
        ["model.path=./weights"] * by_command,
        read_weights=Weights({**OPENED, "model.name": "theirs"}),
    )
    assert loaded.config.model.name == ("theirs" if by_command else "x")


def test_a_key_of_another_model_goes_where_the_weights_do_not_declare_it(write_files: Written) -> None:
    given = write_files({"c.yaml": text(None, "model.architecture.num_layers")})
    declared = {"model.architecture.hidden_size": 640, "model.tokenizer": "./weights"}
    loaded = load_config(given, ["model.path=./weights"], read_weights=Weights(declared))
    plain = load_config(write_files({"d.yaml": text(None)}))
    assert loaded.config.model.architecture.num_layers == plain.config.model.architecture.num_layers
    assert loaded.config.model.architecture.hidden_size == 640
    assert loaded.origins["model.architecture.num_layers"].file == "default"


def test_weights_that_are_not_known_leave_every_value_as_it_is(write_files: Written) -> None:
    file = write_files({"c.yaml": text("./weights", "model.architecture.num_layers")})
    loaded = load_config(file, read_weights=Weights(None))
    assert loaded.config.model.path == "./weights"
    assert loaded.config.model.architecture.num_layers == 3


def test_without_weights_nothing_is_asked(write_files: Written) -> None:
    weights = Weights(OPENED)
    loaded = load_config(write_files({"c.yaml": text(None)}), read_weights=weights)
    assert weights.asked == []
    assert loaded.config.model.path is None


def test_an_architecture_of_null_opens_what_an_extended_file_says_and_needs_weights(
    write_files: Written, complaints: Callable[..., list[str]]
) -> None:
    base = {"base.yaml": text(None, "model.architecture.num_layers")}
    null = "extends: base.yaml\nmodel: {architecture: null, path: ./weights}\n"
    file = write_files({**base, "c.yaml": null})
    weights = Weights(OPENED)
    loaded = load_config(file, read_weights=weights)
    assert "model.architecture.num_layers" in weights.asked[0][1]
    assert loaded.config.model.architecture.num_layers == OPENED["model.architecture.num_layers"]
    [line] = complaints("extends: base.yaml\nmodel: {architecture: null}\n")
    assert line.startswith("c.yaml:2: model.path: not set, and model.architecture is null")


def test_every_open_key_is_one_that_describes_a_model(write_files: Written) -> None:
    weights = Weights(OPENED)
    load_config(write_files({"c.yaml": text(None)}), ["model.path=./weights"], read_weights=weights)
    [(_, unknown)] = weights.asked
    architecture = {key for key in leaf_keys() if key.startswith("model.architecture.")}
    assert unknown == architecture | {"model.tokenizer", "model.name"}


def test_the_configuration_for_fine_tuning_trains_no_random_weights() -> None:
    path = Path(__file__).parents[3] / "configs" / "fine_tuning.yaml"
    with pytest.raises(ConfigError, match=r"fine_tuning\.yaml:\d+: model\.path: not set"):
        load_config(path)
    assert load_config(path, ["model.path=./weights"]).config.model.path == "./weights"
