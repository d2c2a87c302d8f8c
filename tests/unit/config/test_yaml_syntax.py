"""The faults for which a text is not YAML, by line."""

import time
from collections.abc import Callable

import pytest

Complaints = Callable[..., list[str]]
TAB = "a tab; write spaces, which YAML needs before words"


@pytest.mark.parametrize(
    "body",
    [
        "\tmax_steps: 5",
        "  \tmax_steps: 5",
        "  seed: 1\n\tmax_steps: 5",
        "  seed: 1\n  \tmax_steps: 5",
    ],
)
def test_a_tab_before_a_word_is_named_with_its_line(complaints: Complaints, body: str) -> None:
    line = 3 + body.count("\n")
    assert complaints(f"model: {{name: é}}\ntraining:   # é\n{body}\n") == [f"c.yaml:{line}: {TAB}"]


def test_tabs_in_comments_text_and_line_ends_are_fine(complaints: Complaints) -> None:
    text = "model:\n  name: 'a\tb'\t# c\td\n  path: |\n    x\ty\n#\te\ntraining:\t\n  max_step: 5\t\n"
    assert complaints(text) == [
        "c.yaml:7: training.max_step: unknown key; did you mean max_steps?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: b: c\n",
            "1: not valid YAML: a second colon, or wrong indentation; "
            "text with a colon and a space needs quotes",
        ),
        ("a:\n  b: 1\n c: 2\n", "3: not valid YAML: did not find expected key"),
        ("a: [1,\nb: 2\n", "3: not valid YAML: did not find expected ',' or ']'"),
        ('a: "x\nb: 1\n', "3: not valid YAML: found unexpected end of stream"),
        ("a: 1\nb: *c\n", "2: not valid YAML: found undefined alias"),
        ("a: @x\n", "1: not valid YAML: found character that cannot start any token"),
        ("a: 1\n---\nb: 2\n", "3: a second document starts here; a file holds one"),
        ("%YAML 9.9\n---\na: 1\n", "1: not valid YAML: found incompatible YAML document"),
        ("a: \ufffe\n", " not valid YAML: control characters are not allowed"),
    ],
)
def test_broken_yaml_is_named_by_line(complaints: Complaints, text: str, message: str) -> None:
    assert complaints(text) == [f"c.yaml:{message}"]


def test_broken_yaml_is_one_error_whatever_the_values_are(complaints: Complaints) -> None:
    assert len(complaints("training: {max_step: 5}\nx: [\n")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "more than 100 levels or 100,000 values"),
        ("{a: " * 100_000, "more than 100 levels or 100,000 values"),
        ("a: [" + "1," * 1_000_000 + "]", "more than 100 levels or 100,000 values"),
        ("training:\n  " + "k" * 10_000_000 + ": 1\n", "more than 4 MB"),
    ],
    ids=["lists", "mappings", "values", "key"],
)
def test_what_is_too_deep_or_too_much_is_refused_at_once(
    complaints: Complaints, text: str, message: str
) -> None:
    started = time.monotonic()
    (line,) = complaints(text)
    assert message in line
    assert len(line) < 200
    assert time.monotonic() - started < 120
