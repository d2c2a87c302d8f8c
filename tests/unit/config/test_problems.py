"""What people read about a wrong value or key, and the lines of an explanation."""

from collections.abc import Callable

from tests.cases import each_case

from trainyard.config.key_lookup import unknown_key
from trainyard.config.problems import DEFAULT, Origin, explanation_lines, shorten

Complaints = Callable[..., list[str]]


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
