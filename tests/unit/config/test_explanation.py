"""The origin of each value of a configuration."""

from trainyard.config.explanation import as_data, explanation_lines
from trainyard.config.problems import DEFAULT, Origin

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


def test_data_leaves_out_the_line_where_there_is_none() -> None:
    assert as_data(VALUES, ORIGINS) == {
        "model.name": {"value": "x" * 60, "file": "a.yaml", "line": 3},
        "training.max_steps": {"value": 5, "file": "--set"},
        "training.learning_rate": {"value": 5e-5, "file": "default"},
    }
