"""One file as values and places: duplicates, aliases, odd keys, empty files."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.config.yaml_reader import KeyPath, compose_one, values_of

Complaints = Callable[..., list[str]]


def test_every_key_has_the_line_it_stands_on() -> None:
    lines: dict[KeyPath, int] = {}
    root = compose_one("# first\na:\n  b:\n    1\n  c: {d: 2,\n    e: [3]}\n")
    assert values_of(root, lines) == {"a": {"b": 1, "c": {"d": 2, "e": [3]}}}
    found = {".".join(place): line for place, line in lines.items()}
    assert found == {"a": 2, "a.b": 3, "a.c": 5, "a.c.d": 5, "a.c.e": 6}


def test_a_key_given_twice_is_named_with_both_lines(complaints: Complaints) -> None:
    lines = complaints("model: {name: x}\ntraining:\n  seed: 1\n  max_steps: 5\n  seed: 2\nmodel: {}\n")
    assert lines == ["c.yaml:5: training.seed: given twice, first on line 3"]


def test_an_alias_is_expanded(write_files: Callable[..., Path]) -> None:
    path = write_files(
        {"c.yaml": "model: {name: &n x, tokenizer: *n}\ntraining: {max_steps: &s 7, epochs: *s}\n"}
    )
    config = load_config(path).config
    assert (config.model.tokenizer, config.training.epochs) == ("x", 7)


def _bomb() -> str:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text", [_bomb(), "l: &l [*l, *l]\n", "l: &l {a: *l}\n"], ids=["laughs", "wide", "deep"]
)
def test_a_bomb_of_aliases_is_defused(complaints: Complaints, text: str) -> None:
    started = time.monotonic()
    lines = complaints(text)
    assert sum("an alias repeats itself" in line for line in lines) == 1
    assert time.monotonic() - started < 120


def test_a_key_that_is_no_word_is_named(complaints: Complaints) -> None:
    lines = complaints("model: {name: x}\ntraining:\n  max_steps: 5\n  ? [a]\n  : 1\n")
    assert lines == ["c.yaml:4: training: a key must be a word"]


@pytest.mark.parametrize("key", ["5", "true", "null", "''", "2026-01-01"])
def test_a_key_that_looks_like_a_value_is_an_unknown_key(complaints: Complaints, key: str) -> None:
    (line,) = complaints(f"model: {{name: x}}\ntraining:\n  max_steps: 5\n  {key}: 1\n")
    assert line.startswith(f"c.yaml:4: training.{key.strip(chr(39))}: unknown key")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "c.yaml: empty; a configuration is a mapping of sections"),
        ("# nothing\n", "c.yaml: empty; a configuration is a mapping of sections"),
        ("---\n- 1\n- 2\n", "c.yaml: not a mapping; a configuration is a mapping of sections"),
        ("hello", "c.yaml: not a mapping; a configuration is a mapping of sections"),
        (b"model: \xff", "c.yaml:1: byte 0xff is not UTF-8; is this YAML?"),
    ],
)
def test_a_file_without_sections_is_refused(
    complaints: Complaints, content: str | bytes, message: str
) -> None:
    assert complaints(content) == [message]


def test_a_tag_that_could_run_code_is_refused_and_does_not_run(complaints: Complaints, folder: Path) -> None:
    assert "is not read here" in complaints("model: {name: !!python/object/apply:os.mkdir [made]}\n")[0]
    assert not (folder / "made").exists()
