"""The lines of an error in a configuration."""

from trainyard.config.problems import Origin, Problem, error_of, shorten


def test_lines_have_file_line_key_and_message() -> None:
    assert str(Problem(Origin("a.yaml", 3), "training.seed", "wrong")) == "a.yaml:3: training.seed: wrong"
    assert str(Problem(Origin("a.yaml"), "", "empty")) == "a.yaml: empty"


def test_a_set_is_shown_as_typed_and_names_its_key_once() -> None:
    origin = Origin("--set", argument="training.seed=x")
    assert str(Problem(origin, "training.seed", "wrong")) == "--set training.seed=x: wrong"
    assert str(Problem(origin, "data.x", "wrong")) == "--set training.seed=x: data.x: wrong"


def test_the_same_problem_is_said_once_and_one_error_is_singular() -> None:
    problem = Problem(Origin("a.yaml", 3), "x", "wrong")
    assert (
        str(error_of([problem, problem], ["a.yaml"])) == "a.yaml:3: x: wrong\n1 error. Nothing was started."
    )


def test_what_is_shown_stays_on_one_bearable_line() -> None:
    assert shorten("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert shorten("x" * 10_000_000) == "x" * 80 + "…"
    assert shorten("é") == "é"
