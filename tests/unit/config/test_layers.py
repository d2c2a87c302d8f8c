"""Files that extend others and values of the command line; what people read about a wrong one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.config.key_lookup import unknown_key
from trainyard.config.load import load_config
from trainyard.config.problems import DEFAULT, Origin, explanation_lines, shorten
from trainyard.errors import ConfigError

Write = Callable[..., Path]


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    return str(raised.value)


def test_a_file_wins_over_its_base_key_by_key(write_files: Write) -> None:
    path = write_files(
        ("base.yaml", "model: {name: base, path: w.gguf}\ntraining: {max_steps: 5, seed: 1}\n"),
        ("top.yaml", "extends: base.yaml\nmodel: {path: null}\ntraining:\n  seed: 2\n"),
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
        ("a.yaml", "model: {name: a}\ntraining: {max_steps: 1, seed: 1}\n"),
        ("b.yaml", "training: {max_steps: 2}\n"),
        ("c.yaml", "extends: [a.yaml, b.yaml]\n"),
        ("d.yaml", "extends: [b.yaml, a.yaml, b.yaml]\n"),
        ("e.yaml", "extends: [b.yaml, a.yaml]\n"),
    )
    steps = {name: load_config(Path(f"{name}.yaml")).config.training.max_steps for name in "cde"}
    assert steps == {"c": 2, "d": 2, "e": 1}
    assert str(load_config(path).origins["training.max_steps"]) == "a.yaml:2"


def test_a_base_is_found_relative_to_the_file_that_names_it(write_files: Write) -> None:
    path = write_files(
        ("shared/base.yaml", "model: {name: deep}\ntraining: {max_steps: 5}\n"),
        ("configs/middle/m.yaml", "extends: ../../shared/base.yaml\n"),
        ("configs/top.yaml", "extends: middle/m.yaml\n"),
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
    assert message(write_files(*files.items())) == f"{expected}\n1 error. Nothing was started."


def test_a_cycle_through_a_link_is_seen(write_files: Write) -> None:
    path = write_files(("a.yaml", "extends: b.yaml\n"))
    Path("b.yaml").symlink_to("a.yaml")
    assert message(path).startswith("a.yaml:1: extends: b.yaml: a cycle: a.yaml → b.yaml\n")


def test_a_missing_base_is_blamed_on_the_line_that_names_it(write_files: Write) -> None:
    path = write_files(
        ("configs/base.yaml", ""), ("configs/top.yaml", "\nextends:\n  - bass.yaml\nmodel: {nam: x}\n")
    )
    assert message(path) == (
        "configs/top.yaml:2: extends: configs/bass.yaml: no such file; did you mean configs/base.yaml?\n"
        "1 error. Nothing was started."
    )


@pytest.mark.parametrize("value", ["5", "true", "{a: b}", "[a.yaml, 5]", "[[a.yaml]]"])
def test_what_is_no_path_is_refused(write_files: Write, value: str) -> None:
    path = write_files(("a.yaml", "model: {name: x}\n"), ("c.yaml", f"extends: {value}\n"))
    said = "c.yaml:1: extends: expected the path of a file, or a list of paths\n1 error"
    assert message(path).startswith(said)


@pytest.mark.parametrize("value", ["null", "[]", ""])
def test_extending_nothing_is_fine(write_files: Write, value: str) -> None:
    path = write_files(("c.yaml", f"extends: {value}\nmodel: {{name: x}}\ntraining: {{max_steps: 5}}\n"))
    assert load_config(path).config.model.name == "x"


@pytest.mark.parametrize("value", [".", "''", '"a\\0b"'])
def test_a_base_that_is_no_file_is_refused(write_files: Write, value: str) -> None:
    assert message(write_files(("c.yaml", f"extends: {value}\n"))).startswith("c.yaml:1: extends: ")


def test_problems_of_all_files_come_in_one_go_bases_first(write_files: Write) -> None:
    path = write_files(
        ("z.yaml", "model: {name: x, dtipe: float32}\ntraining: {max_steps: 5}\nx: 1\n"),
        ("a.yaml", "extends: z.yaml\ntraining:\n  seed: -1\n  batch_size: 0\n"),
    )
    places = [line.split(": ")[0] for line in message(path).split("\n")]
    assert places == ["z.yaml:1", "z.yaml:3", "a.yaml:3", "a.yaml:4", "4 errors. Nothing was started."]


def test_what_a_broken_base_would_have_held_is_not_called_missing(write_files: Write) -> None:
    path = write_files(("b.yaml", "model: [\n"), ("a.yaml", "extends: b.yaml\ntraining: {seed: 1}\n"))
    assert message(path).count("\n") == 1


def test_a_wrong_value_in_a_base_is_healed_by_what_extends_it(write_files: Write) -> None:
    path = write_files(
        ("b.yaml", "model: {name: x, architecture: 5}\ntraining: {max_steps: 0}\n"),
        ("a.yaml", "extends: b.yaml\nmodel: {architecture: {num_layers: 2}}\ntraining: {max_steps: 9}\n"),
    )
    assert load_config(path).config.training.max_steps == 9


def test_a_section_replaced_by_a_value_is_blamed_on_who_replaced_it(write_files: Write) -> None:
    path = write_files(
        ("b.yaml", "model: {name: x}\ntraining: {max_steps: 5}\n"),
        ("a.yaml", "extends: b.yaml\n\ntraining:\n"),
    )
    assert message(path).startswith("a.yaml:3: training: expected a section of keys, got null\n1 error")


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
    loaded = load_config(write_files(("c.yaml", MINIMAL)), [argument])
    key = argument.partition("=")[0].strip()
    found: Any = loaded.config.to_plain()
    for name in key.split("."):
        found = found[name]
    assert found == value
    assert type(found) is type(value)
    assert str(loaded.origins[key]) == "--set"


def test_a_wrong_value_in_the_file_can_be_set_right(write_files: Callable[..., Path]) -> None:
    path = write_files(("c.yaml", "model: {name: x}\ntraining: {max_steps: '5'}\ncompute: 7\n"))
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
def test_a_bad_one_is_named_as_typed(complaints: Complaints, argument: str, message: str | None) -> None:
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


def test_what_is_shown_stays_on_one_bearable_line() -> None:
    assert shorten("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert shorten("x" * 10_000_000) == "x" * 80 + "…"
    assert shorten("é") == "é"


VALUES = {"model": {"name": "x" * 60}, "training": {"max_steps": 5, "learning_rate": 5e-5}}
ORIGINS = {
    "model.name": Origin("a.yaml", 3),
    "training.max_steps": Origin("--set", argument="training.max_steps=5"),
    "training.learning_rate": DEFAULT,
}


def test_origins_are_aligned_and_one_long_value_moves_only_its_own() -> None:
    rows = list(explanation_lines(VALUES, ORIGINS))
    assert rows[0].split() == ["model.name", f'"{"x" * 60}"', "a.yaml:3"]
    assert rows[1].split() == ["training.max_steps", "5", "--set"]
    assert rows[2].split() == ["training.learning_rate", "5e-05", "default"]
    assert rows[1].index("--set") == rows[2].index("default") < 80


@each_case(
    ("key", "suggestion"),
    [
        ("training.max_step", "did you mean max_steps?"),
        ("training.lerning_rate", "did you mean learning_rate?"),
        ("modle", "did you mean model?"),
        ("model.architecture.hiden_size", "did you mean hidden_size?"),
        ("max_steps", "did you mean training.max_steps?"),
        ("training.save_steps", "did you mean checkpointing.save_steps?"),
        ("training.sequence_lenght", "did you mean data.sequence_length?"),
        ("checkpointing.zzz", "valid here: save_steps, mode, keep_last, keep_every, shared"),
        ("trainning.sed", "did you mean training.seed?"),
        ("training.<<", "merge keys are not read, use extends"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(key: str, suggestion: str) -> None:
    assert unknown_key(tuple(key.split("."))) == f"unknown key; {suggestion}"


def test_a_dotted_key_in_a_file_is_answered_with_how_to_write_it() -> None:
    assert "dotted keys are for --set" in unknown_key(("training.max_steps",))
    assert "dotted keys are for --set" in unknown_key(("model", "architecture.num_layers"))


def test_a_suggestion_for_the_command_line_is_the_whole_key() -> None:
    assert unknown_key(("training", "max_step"), dotted=True).endswith("did you mean training.max_steps?")


def test_a_huge_key_is_not_compared() -> None:
    assert unknown_key(("training", "k" * 10_000_000)).startswith("unknown key; valid here: batch_size, ")


# Pydantic decides what is wrong; here is what people read about each kind of wrong value, and how to fix it.
WRONG = """
training.learning_rate: 0 | expected a number greater than 0, got 0
training.learning_rate: 1e999 | expected a finite number, got .inf
training.learning_rate: [1] | expected a number, got a list
training.learning_rate: 5.0e-5.0 | expected a number, got "5.0e-5.0"
training.batch_size: 4.0 | expected a whole number, got 4.0
training.batch_size: 1_000 | expected a whole number, got "1_000"
training.batch_size: 1:30 | expected a whole number, got "1:30"
training.max_grad_norm: None | expected a number, got "None"
training.lr_scheduler: cosin | expected 'cosine', 'linear', 'warmup_stable_decay' or 'constant', got "cosin"
training.optimizer: adam | expected 'adamw', got "adam"
compute.compile: Off | expected true or false, got "Off" (write false)
compute.compile: 'true' | expected true or false, got "true" (a string: remove the quotes)
compute.compile: 1 | expected true or false, got 1
kernel_optimization.simd_bits: '256' | expected 128, 256 or 512, got "256" (a string: remove the quotes)
model.name: 5 | expected text, got 5
model.name: '' | expected text, got ""
model.device: gpu | expected text like "auto", "cpu", "cuda", "cuda:0", got "gpu"
artifacts.store: x | expected text like "s3://bucket/prefix", "file:///folder", got "x"
model.architecture: 5 | expected a section of keys, got 5
data.hugging_face: | expected a section of keys, got null
program.command: python | expected a list of texts, got "python"
program.environment: 5 | expected a mapping, got 5
"""


def test_a_wrong_value_is_answered_with_what_was_expected(complaints: Complaints) -> None:
    found = []
    for row in WRONG.strip().splitlines():
        key, _, value = row.partition(" |")[0].partition(":")
        section, name = key.split(".")
        line = complaints(f"model: {{name: x}}\n{section}:\n  {name}:{value}\n".replace(
            "model: {name: x}\nmodel:\n", "model:\n"
        ))  # fmt: skip
        found.append(f"{row.partition(' |')[0]} | {line[-1].partition(f' {key}: ')[2]}")
    assert found == WRONG.strip().splitlines()


def test_a_missing_name_is_blamed_on_its_section(complaints: Complaints) -> None:
    assert complaints("training: {max_steps: 1}\nmodel: {device: cpu}\n") == ["c.yaml:2: model.name: missing"]
    assert complaints("training: {max_steps: 1}\n") == ["c.yaml: model.name: missing"]


def test_a_wrong_section_does_not_hide_the_other_problems(complaints: Complaints) -> None:
    assert complaints("model: 5\ntraining: {max_steps: 0}\n") == [
        "c.yaml:1: model: expected a section of keys, got 5",
        "c.yaml:2: training.max_steps: expected a number greater than 0, got 0",
    ]
