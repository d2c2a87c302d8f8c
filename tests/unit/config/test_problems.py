"""The lines of an error in a configuration, and of its values with their origins."""

from trainyard.config.problems import DEFAULT, Origin, explanation_lines, shorten

SET = Origin("--set", argument="training.seed=x")


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
