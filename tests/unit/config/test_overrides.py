"""Single values from the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.config.load import load_config

MINIMAL = "model: {name: x}\ntraining: {max_steps: 5}\n"
Complaints = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("training.learning_rate=5e-5", 5e-5),
        ("training.learning_rate=1e-3", 1e-3),
        ("training.learning_rate=1", 1.0),
        ("training.max_steps=50", 50),
        (" training.max_steps = 50 ", 50),
        ("training.max_grad_norm=null", None),
        ("data.train_path=", None),
        ("compute.compile=true", True),
        ("model.architecture.num_layers=2", 2),
        ("model.name=a: b # c", "a: b # c"),
        ("model.name=a=b", "a=b"),
        ("model.name='5e-5'", "5e-5"),
        ('model.name="yes\\n"', "yes\n"),
        ("model.name=on", "on"),
        ("artifacts.store=file:///tmp/a b", "file:///tmp/a b"),
    ],
)
def test_a_value_is_read_as_in_a_file(write_files: Callable[..., Path], argument: str, value: Any) -> None:
    loaded = load_config(write_files({"c.yaml": MINIMAL}), [argument])
    key = argument.partition("=")[0].strip()
    found: Any = loaded.config.to_plain()
    for name in key.split("."):
        found = found[name]
    assert found == value
    assert type(found) is type(value)
    assert str(loaded.origins[key]) == "--set"


def test_a_wrong_value_in_the_file_can_be_set_right(write_files: Callable[..., Path]) -> None:
    path = write_files({"c.yaml": "model: {name: x}\ntraining: {max_steps: '5'}\ncompute: 7\n"})
    loaded = load_config(path, ["training.max_steps=5", "compute.compile=true"])
    assert loaded.config.training.max_steps == 5
    assert loaded.config.compute.compile


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("training.max_step=5", "unknown key; did you mean training.max_steps?"),
        (
            "monitoring.wandb=off",
            "a section; set one of its values: "
            "monitoring.wandb.enabled, monitoring.wandb.project, monitoring.wandb.entity",
        ),
        ("extends=x.yaml", None),
        ("training.max_steps=1e3", "expected a whole number, got 1000.0"),
        ("training.max_steps=many", 'expected a whole number, got "many"'),
        ("training.max_steps='5'", 'expected a whole number, got "5" (a string: remove the quotes)'),
        ("training.learning_rate=.inf", "expected a finite number, got .inf"),
        ("training.seed=" + "9" * 5000, None),
        ("model.name='x", "the quotes or brackets are not closed, or text follows them"),
        ("model.name='x' y", "the quotes or brackets are not closed, or text follows them"),
        ("training.max_steps", "expected key=value, for example training.max_steps=50"),
        ("=5", "expected key=value, for example training.max_steps=50"),
        ("", "expected key=value, for example training.max_steps=50"),
    ],
)
def test_a_bad_one_is_named_as_it_was_typed(
    complaints: Complaints, argument: str, message: str | None
) -> None:
    (line,) = complaints(MINIMAL, argument)
    shown = argument if len(argument) < 80 else argument[:80] + "…"
    assert line.startswith(f"--set {shown}: ")
    assert message is None or line == f"--set {shown}: {message}"


def test_all_bad_ones_come_after_the_files(complaints: Complaints) -> None:
    lines = complaints(MINIMAL + "x: 1\n", "training.seed=-1", "training.max_step=5", "training.batch_size=0")
    assert [line.split(": ")[0] for line in lines] == [
        "c.yaml:3",
        "--set training.max_step=5",
        "--set training.batch_size=0",
        "--set training.seed=-1",
    ]


def test_a_combination_made_impossible_by_a_set_is_blamed_on_it(complaints: Complaints) -> None:
    assert complaints(MINIMAL, "model.architecture.hidden_size=130") == [
        "--set model.architecture.hidden_size=130: model.architecture.num_attention_heads: "
        "4 does not divide the hidden size 130"
    ]
