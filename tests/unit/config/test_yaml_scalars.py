"""Plain words of YAML, read by the core schema of YAML 1.2."""

import math
from typing import Any

import yaml
from tests.cases import each_case

from trainyard.config.yaml_reader import CoreLoader, dump_values, plain_value, value_of


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


def test_quotes_and_block_scalars_make_text() -> None:
    node: Any = yaml.compose("[\"5\", 'true', !!str 5]", Loader=CoreLoader)
    assert [value_of(item.tag, item.value) for item in node.value] == ["5", "true", "5"]


@each_case(
    "text",
    [
        "5e-5", "1e3", "012", "08", "0o7", "yes", "on", "~", "", "null", "1:30", "2026-01-01", ".inf",
        ".nan", "=", "<<", "a: b", "# x", "- x", "tab\there", "line\nbreak", "trailing ", "é…\u2028",
        "\u202e", "'\"", "[a", "%x", "\x07",
    ],
)  # fmt: skip
def test_text_that_looks_like_something_else_is_dumped_so_that_every_reader_sees_text(text: str) -> None:
    out = dump_values({"key": text})
    assert yaml.safe_load(out) == {"key": text}
    node: Any = yaml.compose(out, Loader=CoreLoader)
    value = node.value[0][1]
    assert value_of(value.tag, value.value) == text


@each_case("value", [5e-5, 1e22, 1e-8, 0.1, 1.0, -0.0, 3, True, None, 2**70])
def test_numbers_are_dumped_so_that_every_reader_sees_the_same_number(value: Any) -> None:
    out = dump_values({"key": value})
    assert yaml.safe_load(out) == {"key": value}
    node: Any = yaml.compose(out, Loader=CoreLoader)
    read = value_of(node.value[0][1].tag, node.value[0][1].value)
    assert read == value
    assert type(read) is type(value)
