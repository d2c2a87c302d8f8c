"""Values against the schema: every kind of problem, in our words, at its place, all in one go."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.errors import ConfigError

Complaints = Callable[..., list[str]]


TEXT = """\
model:
  name: x
  architecture:
    num_attention_heads: 3
    num_key_value_heads: 3
training:
  learning_rate: "5e-5"
  max_step: 50
  max_steps: true
  seed: -1
data:
  sequence_length: 4096
"""
PROBLEMS = """\
c.yaml:4: model.architecture.num_attention_heads: 3 does not divide the hidden size 128
c.yaml:7: training.learning_rate: expected a number above 0, got "5e-5" (a string: remove the quotes)
c.yaml:8: training.max_step: unknown key; did you mean max_steps?
c.yaml:9: training.max_steps: expected a whole number above 0 or null, got true
c.yaml:10: training.seed: expected a whole number from 0 to 4,294,967,295, got -1
c.yaml:12: data.sequence_length: 4096 is longer than model.architecture.max_position_embeddings, 2048
"""


def test_everything_wrong_is_named_in_one_go_in_order_of_lines(complaints: Complaints) -> None:
    assert complaints(TEXT) == PROBLEMS.splitlines()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.learning_rate", "0", "expected a number above 0, got 0"),
        ("training.learning_rate", ".inf", "expected a number above 0, got .inf (not finite)"),
        ("training.learning_rate", "-.inf", "expected a number above 0, got -.inf (not finite)"),
        ("training.learning_rate", ".nan", "expected a number above 0, got .nan (not finite)"),
        ("training.learning_rate", "1e999", "expected a number above 0, got .inf (not finite)"),
        ("training.learning_rate", "[1]", "expected a number above 0, got a list"),
        ("training.learning_rate", "{a: 1}", "expected a number above 0, got a mapping"),
        ("training.learning_rate", "null", "expected a number above 0, got null"),
        ("training.learning_rate", "true", "expected a number above 0, got true"),
        ("training.learning_rate", "5.0e-5.0", 'expected a number above 0, got "5.0e-5.0"'),
        ("training.adam_beta1", "1", "expected a number of at least 0 and below 1, got 1"),
        ("training.min_learning_rate_ratio", "1.5", "expected a number from 0 to 1, got 1.5"),
        ("training.batch_size", "4.0", "expected a whole number above 0, got 4.0 (write 4)"),
        ("training.batch_size", "4.5", "expected a whole number above 0, got 4.5"),
        ("training.batch_size", "1_000", 'expected a whole number above 0, got "1_000" (write 1000)'),
        ("training.batch_size", "1:30", 'expected a whole number above 0, got "1:30"'),
        (
            "training.batch_size",
            "1000000000001",
            "expected a whole number above 0, got 1000000000001 (at most 1,000,000,000,000)",
        ),
        ("compute.threads", "5000", "expected a whole number from 1 to 4,096 or null, got 5000"),
        ("compute.compile", "yes", 'expected true or false, got "yes" (write true)'),
        ("compute.compile", "Off", 'expected true or false, got "Off" (write false)'),
        ("compute.compile", "'true'", 'expected true or false, got "true" (a string: remove the quotes)'),
        ("compute.compile", "1", "expected true or false, got 1"),
        ("training.max_grad_norm", "None", 'expected a number above 0 or null, got "None" (write null)'),
        (
            "training.lr_scheduler",
            "cosin",
            'expected "cosine", "linear", "warmup_stable_decay" or "constant", got "cosin"',
        ),
        ("kernel_optimization.simd_bits", "64", "expected 128, 256 or 512 or null, got 64"),
        (
            "kernel_optimization.simd_bits",
            "'256'",
            'expected 128, 256 or 512 or null, got "256" (a string: remove the quotes)',
        ),
        ("compute.strategy", "zero", 'expected "single", "ddp", "fsdp" or "hsdp", got "zero"'),
        ("model.name", "5", 'expected text, got 5 (to mean text, write "5")'),
        ("model.name", "true", 'expected text, got true (to mean text, write "true")'),
        ("model.name", "''", 'expected text, got "" (empty)'),
        ("model.name", "null", "expected text, got null"),
        ("model.name", '"\\uD800"', None),
        ("model.device", "gpu", 'expected text like "auto", "cpu", "cuda" or "cuda:0", got "gpu"'),
        (
            "artifacts.store",
            "s3:/x",
            'expected text like "s3://bucket/prefix" or "file:///folder" or null, got "s3:/x"',
        ),
        ("artifacts.store", "s3://KEY:SECRET@bucket", None),
        ("model.architecture", "5", "expected a section of keys, got 5"),
        ("training.optimizer", "", None),
        ("data.hugging_face", "", "expected a section of keys, got null (give it keys, or remove the line)"),
    ],
)
def test_a_wrong_value_is_answered_with_what_was_expected(
    complaints: Complaints, key: str, value: str, message: str | None
) -> None:
    sections = key.split(".")
    base = {"model": "  name: x\n", "training": "  epochs: 1\n"}
    base["model"] = "" if key == "model.name" else base["model"]
    text = "".join(f"{name}:\n{body}" for name, body in base.items() if name != sections[0] and body)
    text += f"{sections[0]}:\n{base.get(sections[0], '')}  {sections[1]}: {value}\n"
    (line,) = complaints(text)
    place = f"c.yaml:{text.count(chr(10))}: "
    assert line.startswith(place)
    assert message is None or line == f"{place}{key}: {message}"


def test_a_missing_name_is_blamed_on_its_section(complaints: Complaints) -> None:
    assert complaints("training: {max_steps: 1}\nmodel: {device: cpu}\n") == [
        "c.yaml:2: model.name: missing; expected text"
    ]
    assert complaints("training: {max_steps: 1}\n") == ["c.yaml: model.name: missing; expected text"]


def test_a_combination_is_not_judged_by_a_default_in_place_of_a_wrong_value(complaints: Complaints) -> None:
    shape = "{hidden_size: wide, num_attention_heads: 3, num_key_value_heads: 3}"
    assert complaints(f"model: {{name: x, architecture: {shape}}}\ntraining: {{max_steps: 5}}\n") == [
        'c.yaml:1: model.architecture.hidden_size: expected a whole number above 0, got "wide"'
    ]


def test_a_wrong_section_does_not_hide_the_other_problems(complaints: Complaints) -> None:
    assert complaints("model: 5\ntraining: {max_steps: 0}\n") == [
        "c.yaml:1: model: expected a section of keys, got 5",
        "c.yaml:2: training.max_steps: expected a whole number above 0 or null, got 0",
    ]


def test_a_thousand_problems_are_counted_not_listed(folder: Path) -> None:
    keys = "".join(f"  key{n}: 1\n" for n in range(1000))
    (folder / "c.yaml").write_text(f"model: {{name: x}}\ntraining:\n  max_steps: 5\n{keys}")
    with pytest.raises(ConfigError) as raised:
        load_config(Path("c.yaml"))
    lines = str(raised.value).split("\n")
    assert len(lines) == 102
    assert lines[-2:] == ["… and 900 more", "1,000 errors. Nothing was started."]


def test_a_whole_number_is_taken_for_a_number(folder: Path) -> None:
    (folder / "c.yaml").write_text("model: {name: x}\ntraining: {max_steps: 5, weight_decay: 0}\n")
    decay = load_config(Path("c.yaml")).config.training.weight_decay
    assert decay == 0
    assert isinstance(decay, float)
