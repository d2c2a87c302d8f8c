"""Values against the schema: every kind of problem, in our words, at its place, all in one go."""

from collections.abc import Callable
from pathlib import Path

from trainyard.config.load import load_config

Complaints = Callable[..., list[str]]


TEXT = """\
model:
  name: x
training:
  learning_rate: "5e-5"
  max_step: 50
  max_steps: true
  seed: -1
data:
  sequence_length: many
"""
PROBLEMS = """\
c.yaml:4: training.learning_rate: expected a number, got "5e-5" (a string: remove the quotes)
c.yaml:5: training.max_step: unknown key; did you mean max_steps?
c.yaml:6: training.max_steps: expected a whole number, got true
c.yaml:7: training.seed: expected a number greater than or equal to 0, got -1
c.yaml:9: data.sequence_length: expected a whole number, got "many"
"""


def test_everything_wrong_is_named_in_one_go_in_order_of_lines(complaints: Complaints) -> None:
    assert complaints(TEXT) == PROBLEMS.splitlines()


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


def test_a_whole_number_is_taken_for_a_number(folder: Path) -> None:
    (folder / "c.yaml").write_text("model: {name: x}\ntraining: {max_steps: 5, weight_decay: 0}\n")
    decay = load_config(Path("c.yaml")).config.training.weight_decay
    assert decay == 0
    assert isinstance(decay, float)
