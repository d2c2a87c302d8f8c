"""The one reader of YAML: plain words, keys with their lines, and texts that are no YAML."""

import math
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.config.load import load_config
from trainyard.config.yaml_reader import (
    MOST_BYTES,
    KeyPath,
    compose_one,
    dump_documents,
    parse_yaml,
    plain_value,
    values_of,
)
from trainyard.errors import ConfigError, DamagedFileError

Complaints = Callable[..., list[str]]


@each_case(
    ("text", "value"),
    [
        ("5e-5", 5e-5), ("1E3", 1000.0), ("5.", 5.0), (".5", 0.5), ("-1.5e+2", -150.0), ("012", 12),
        ("0o17", 15), ("0x1F", 31), ("+7", 7), ("-0", 0), (".inf", math.inf), ("-.INF", -math.inf),
        ("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None),
    ],
)  # fmt: skip
def test_numbers_truth_and_null_are_recognised(text: str, value: Any) -> None:
    found = plain_value(text)
    assert found == value
    assert type(found) is type(value)


YAML_1_1 = "yes no on off y Yes 1:30 190:20:30 2026-01-01 1_000 0b101"
NEARLY = "1e 0o8 0xg nUll tRue inf nan +.nan - e5"


@each_case("text", [*YAML_1_1.split(), *NEARLY.split()])
def test_what_only_yaml_1_1_takes_for_something_else_is_text(text: str) -> None:
    assert plain_value(text) == text


TAB = "a tab; write spaces, which YAML needs before words"


@pytest.mark.parametrize(
    "body", ["\tmax_steps: 5", "  \tmax_steps: 5", "  seed: 1\n\tmax_steps: 5", "  seed: 1\n  \tmax_steps: 5"]
)
def test_a_tab_before_a_word_is_named_with_its_line(complaints: Complaints, body: str) -> None:
    line = 3 + body.count("\n")
    assert complaints(f"model: {{name: é}}\ntraining:   # é\n{body}\n") == [f"c.yaml:{line}: {TAB}"]


def test_tabs_in_comments_text_and_line_ends_are_fine(complaints: Complaints) -> None:
    text = "model:\n  name: 'a\tb'\t# c\td\n  path: |\n    x\ty\n#\te\ntraining:\t\n  max_step: 5\t\n"
    assert complaints(text) == ["c.yaml:7: training.max_step: unknown key; did you mean max_steps?"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: b: c\n",
            "1: not valid YAML: a second colon, or wrong indentation; "
            "text with a colon and a space needs quotes",
        ),
        ("a: [1,\nb: 2\n", "3: not valid YAML: did not find expected ',' or ']'"),
        ("a: 1\n---\nb: 2\n", "3: a second document starts here; a file holds one"),
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
def test_what_is_too_deep_or_too_much_is_refused(complaints: Complaints, text: str, message: str) -> None:
    started = time.monotonic()
    (line,) = complaints(text)
    assert message in line
    assert len(line) < 200
    assert time.monotonic() - started < 120


def test_every_key_has_the_line_it_stands_on() -> None:
    lines: dict[KeyPath, int] = {}
    root = compose_one("# first\na:\n  b:\n    1\n  c: {d: 2,\n    e: [3]}\n")
    assert values_of(root, lines) == {"a": {"b": 1, "c": {"d": 2, "e": [3]}}}
    found = {".".join(place): line for place, line in lines.items()}
    assert found == {"a": 2, "a.b": 3, "a.c": 5, "a.c.d": 5, "a.c.e": 6}


def test_a_key_given_twice_is_named_with_both_lines(complaints: Complaints) -> None:
    lines = complaints("model: {name: x}\ntraining:\n  seed: 1\n  max_steps: 5\n  seed: 2\nmodel: {}\n")
    assert lines == ["c.yaml:5: training.seed: given twice, first on line 3"]


def test_a_file_from_outside_is_damaged_by_name_and_line() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x\n", "a.yaml") == {"a": {"b": 1}, "c": {"b": 1}}
    assert parse_yaml("", "a.yaml") is None
    for text in (_bomb(), "[" * 50_000, "[" + "1," * 200_001 + "]", b"a: \xff", "a: " + "9" * 5000, "\t"):
        with pytest.raises(DamagedFileError, match=r"^a\.yaml:\d+: "):
            parse_yaml(text, "a.yaml")


def test_an_alias_is_expanded(write_files: Callable[..., Path]) -> None:
    text = "model: {name: &n x, tokenizer: *n}\ntraining: {max_steps: &s 7, epochs: *s}\n"
    path = write_files(("c.yaml", text))
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


def refusal(path: Path) -> str:
    """The first line of the error, without the path at its start."""
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert raised.value.exit_code == 2
    return str(raised.value).split("\n")[0].removeprefix(f"{path}: ")


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfmodel: {name: \xc3\xa9}\ntraining: {epochs: 1}\n")
    assert load_config(tmp_path / "a.yaml").config.model.name == "é"


def test_what_is_no_file_of_text_is_named(folder: Path) -> None:
    Path("folder").mkdir()
    Path("bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    Path("sixteen.yaml").write_bytes("a: 1\n".encode("utf-16"))
    with Path("large.yaml").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    refusals = {
        "/dev/zero": "more than 4 MB",
        "folder": "cannot be read (Is a directory)",
        "bytes.yaml": "bytes.yaml:2: byte 0xff is not UTF-8; is this YAML?",
        "sixteen.yaml": "sixteen.yaml:1: byte 0xff is not UTF-8; is this YAML?",
        "large.yaml": "more than 4 MB",
        "a" * 5000: "cannot be read (File name too long)",
    }
    assert {name: refusal(Path(name)) for name in refusals} == refusals


def test_a_missing_file_is_answered_with_the_nearest_name(folder: Path) -> None:
    (folder / "configs/models").mkdir(parents=True)
    (folder / "configs/models/llama-3.1-8b.yaml").touch()
    (folder / "configs/smoke.yaml").touch()
    (folder / "configs/smoke.json").touch()
    nearest = {
        "configs/smok.yaml": "configs/smoke.yaml",
        "configs/smoke.yml": "configs/smoke.yaml",
        "smoke.yaml": "configs/smoke.yaml",
        "llama-3.1-8b": "configs/models/llama-3.1-8b.yaml",
        "zzz.yaml": "",
        "no/such/folder/a.yaml": "",
    }
    said = {
        name: f"no such file; did you mean {near}?" if near else "no such file"
        for name, near in nearest.items()
    }
    assert {name: refusal(Path(name)) for name in nearest} == said


LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SHARED = {"matchLabels": {"trainyard.dev/job": "smoke"}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(string.printable) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=8,
)


@settings(max_examples=settings().max_examples // 3)  # PyYAML writes each value: few are enough
@given(st.lists(st.dictionaries(st.text(min_size=1), VALUES), max_size=3))
def test_what_is_written_reads_back_equal(objects: list[dict[str, object]]) -> None:
    assert list(yaml.load_all(dump_documents(objects), LOADER)) == objects


def test_files_are_blocks_and_values_are_repeated() -> None:
    text = dump_documents([{"data": {"config.yaml": "a: 1\nb: 2\n"}}, {"first": SHARED, "second": SHARED}])
    assert "  config.yaml: |\n    a: 1\n    b: 2\n" in text
    assert "&" not in text
    assert text.count("trainyard.dev/job: smoke") == 2
