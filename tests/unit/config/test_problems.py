"""The lines of an error in a configuration, and of its values with their origins."""

from trainyard.config.problems import DEFAULT, Document, Origin, explanation_lines, shorten

SET = Origin("--set", argument="training.seed=x")


def test_lines_have_file_line_key_and_message_in_the_order_of_their_sources() -> None:
    document = Document(layers={"b.yaml": ({}, {}), "a.yaml": ({}, {})})
    document.problems = [
        (SET, "training.seed", "wrong"),
        (SET, "data.x", "wrong"),
        (Origin("a.yaml", 3), "training.seed", "wrong"),
        (Origin("a.yaml", 3), "training.seed", "wrong"),
        (Origin("a.yaml", 2), "x", "wrong"),
        (Origin("b.yaml"), "", "empty"),
    ]
    assert str(document.error()).split("\n") == [
        "b.yaml: empty",
        "a.yaml:2: x: wrong",
        "a.yaml:3: training.seed: wrong",
        "--set training.seed=x: wrong",
        "--set training.seed=x: data.x: wrong",
        "5 errors. Nothing was started.",
    ]


def test_one_error_is_singular() -> None:
    document = Document(problems=[(Origin("a.yaml", 3), "x", "wrong")])
    assert str(document.error()) == "a.yaml:3: x: wrong\n1 error. Nothing was started."


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
