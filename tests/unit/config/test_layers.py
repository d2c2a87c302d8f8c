"""Files that extend others: what wins, where values come from, and bases that cannot be read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.errors import ConfigError

Write = Callable[..., Path]


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    return str(raised.value)


def test_a_file_wins_over_its_base_key_by_key(write_files: Write) -> None:
    path = write_files(
        {
            "base.yaml": "model: {name: base, path: w.gguf}\ntraining: {max_steps: 5, seed: 1}\n",
            "top.yaml": "extends: base.yaml\nmodel: {path: null}\ntraining:\n  seed: 2\n",
        }
    )
    loaded = load_config(path)
    assert (loaded.config.model.name, loaded.config.model.path) == ("base", None)
    assert (loaded.config.training.max_steps, loaded.config.training.seed) == (5, 2)
    origins = {
        key: str(loaded.origins[key])
        for key in ("model.name", "model.path", "training.seed", "data.text_field")
    }
    assert origins == {
        "model.name": "base.yaml:1",
        "model.path": "top.yaml:2",
        "training.seed": "top.yaml:4",
        "data.text_field": "default",
    }


def test_of_several_bases_the_later_wins(write_files: Write) -> None:
    path = write_files(
        {
            "a.yaml": "model: {name: a}\ntraining: {max_steps: 1, seed: 1}\n",
            "b.yaml": "training: {max_steps: 2}\n",
            "c.yaml": "extends: [a.yaml, b.yaml]\n",
            "d.yaml": "extends: [b.yaml, a.yaml, b.yaml]\n",
            "e.yaml": "extends: [b.yaml, a.yaml]\n",
        }
    )
    steps = {name: load_config(Path(f"{name}.yaml")).config.training.max_steps for name in "cde"}
    assert steps == {"c": 2, "d": 2, "e": 1}
    assert str(load_config(path).origins["training.max_steps"]) == "a.yaml:2"


def test_a_base_is_found_relative_to_the_file_that_names_it(write_files: Write) -> None:
    path = write_files(
        {
            "shared/base.yaml": "model: {name: deep}\ntraining: {max_steps: 5}\n",
            "configs/middle/m.yaml": "extends: ../../shared/base.yaml\n",
            "configs/top.yaml": "extends: middle/m.yaml\n",
        }
    )
    assert str(load_config(path).origins["model.name"]) == "shared/base.yaml:1"
    assert load_config(path.absolute()).config == load_config(path).config


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"a.yaml": "model: {name: x}\nextends: a.yaml\n"},
            "a.yaml:2: extends: a.yaml: a cycle: a.yaml → a.yaml",
        ),
        (
            {"c.yaml": "extends: a.yaml\n", "b.yaml": "extends:\n - c.yaml\n", "a.yaml": "extends: b.yaml\n"},
            "c.yaml:1: extends: a.yaml: a cycle: a.yaml → b.yaml → c.yaml → a.yaml",
        ),
        (
            {"d/b.yaml": "extends: ../a.yaml\n", "a.yaml": "extends: ./d/../d/b.yaml\n"},
            "d/b.yaml:1: extends: a.yaml: a cycle: a.yaml → d/b.yaml → a.yaml",
        ),
    ],
)
def test_a_cycle_is_named_with_the_chain(write_files: Write, files: dict[str, str], expected: str) -> None:
    assert message(write_files(files)) == f"{expected}\n1 error. Nothing was started."


def test_a_cycle_through_a_link_is_seen(write_files: Write) -> None:
    path = write_files({"a.yaml": "extends: b.yaml\n"})
    Path("b.yaml").symlink_to("a.yaml")
    assert message(path).startswith("a.yaml:1: extends: b.yaml: a cycle: a.yaml → b.yaml\n")


def test_a_missing_base_is_blamed_on_the_line_that_names_it(write_files: Write) -> None:
    path = write_files(
        {"configs/base.yaml": "", "configs/top.yaml": "\nextends:\n  - bass.yaml\nmodel: {nam: x}\n"}
    )
    assert message(path) == (
        "configs/top.yaml:2: extends: configs/bass.yaml: no such file; did you mean configs/base.yaml?\n"
        "1 error. Nothing was started."
    )


@pytest.mark.parametrize("value", ["5", "true", "{a: b}", "[a.yaml, 5]", "[[a.yaml]]"])
def test_what_is_no_path_is_refused(write_files: Write, value: str) -> None:
    path = write_files({"a.yaml": "model: {name: x}\n", "c.yaml": f"extends: {value}\n"})
    assert message(path).startswith(
        "c.yaml:1: extends: expected the path of a file, or a list of paths\n1 error"
    )


@pytest.mark.parametrize("value", ["null", "[]", ""])
def test_extending_nothing_is_fine(write_files: Write, value: str) -> None:
    path = write_files({"c.yaml": f"extends: {value}\nmodel: {{name: x}}\ntraining: {{max_steps: 5}}\n"})
    assert load_config(path).config.model.name == "x"


@pytest.mark.parametrize("value", [".", "''", '"a\\0b"'])
def test_a_base_that_is_no_file_is_refused(write_files: Write, value: str) -> None:
    assert message(write_files({"c.yaml": f"extends: {value}\n"})).startswith("c.yaml:1: extends: ")


def test_problems_of_all_files_come_in_one_go_bases_first(write_files: Write) -> None:
    path = write_files(
        {
            "z.yaml": "model: {name: x, dtipe: float32}\ntraining: {max_steps: 5}\nx: 1\n",
            "a.yaml": "extends: z.yaml\ntraining:\n  seed: -1\n  batch_size: 0\n",
        }
    )
    places = [line.split(": ")[0] for line in message(path).split("\n")]
    assert places == ["z.yaml:1", "z.yaml:3", "a.yaml:3", "a.yaml:4", "4 errors. Nothing was started."]


def test_what_a_broken_base_would_have_held_is_not_called_missing(write_files: Write) -> None:
    path = write_files({"b.yaml": "model: [\n", "a.yaml": "extends: b.yaml\ntraining: {seed: 1}\n"})
    assert message(path).count("\n") == 1


def test_a_wrong_value_in_a_base_is_healed_by_what_extends_it(write_files: Write) -> None:
    path = write_files(
        {
            "b.yaml": "model: {name: x, architecture: 5}\ntraining: {max_steps: 0}\n",
            "a.yaml": "extends: b.yaml\nmodel: {architecture: {num_layers: 2}}\ntraining: {max_steps: 9}\n",
        }
    )
    assert load_config(path).config.training.max_steps == 9


def test_a_section_replaced_by_a_value_is_blamed_on_who_replaced_it(write_files: Write) -> None:
    path = write_files(
        {"b.yaml": "model: {name: x}\ntraining: {max_steps: 5}\n", "a.yaml": "extends: b.yaml\n\ntraining:\n"}
    )
    assert message(path).startswith("a.yaml:3: training: expected a section of keys, got null\n1 error")
