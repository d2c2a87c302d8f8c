"""Each type of a command line, over values that are right, wrong and hostile."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.command import arguments

NUMBERS: dict[Callable[[str], float], tuple[float, float]] = {
    arguments.natural_number: (0, 10**18 - 1),
    arguments.positive: (1, 10**18 - 1),
    arguments.processes: (1, 1024),
    arguments.share: (5e-324, 1),
    arguments.pause: (0, 86400),
    arguments.duration: (5e-324, 36500 * 86400),
}
"""Type -> the least and the greatest value that it may return."""
NEVER = ("", "inf", "nan", "1e400", "-1", "+1", "१२", "0x10", "1_000", " 7", "9" * 5000)
"""Wrong as a number of any kind."""
every_number = each_case("read", NUMBERS, ids=lambda read: read.__name__)


def refusal(read: Callable[[str], object], value: str) -> str:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(value)
    return str(refused.value)


@every_number
@each_case("value", NEVER, ids=lambda value: repr(value[:10]))
def test_what_is_no_plain_number_is_refused_in_short_words(read: Callable[[str], float], value: str) -> None:
    for text in (value, f"{value}s"):
        said = refusal(read, text)
        assert arguments.quote(text) in said
        assert len(said) < 250


@given(st.text(alphabet="0123456789.eE+-_ infa٣smhd", max_size=40))
def test_a_number_is_within_its_bounds_or_refused(value: str) -> None:
    for read, (least, most) in NUMBERS.items():
        try:
            found = read(value)
        except argparse.ArgumentTypeError:
            continue
        assert least <= found <= most, (read, value)
        assert math.isfinite(found)


@each_case(
    ("read", "text", "value"),
    [
        (arguments.natural_number, "0", 0),
        (arguments.positive, "9" * 18, 10**18 - 1),
        (arguments.share, ".4", 0.4),
        (arguments.pause, "0", 0),
        (arguments.duration, "8h", 28800),
        (arguments.duration, "25m", 1500),
        (arguments.duration, "90s", 90),
        (arguments.duration, "30d", 2592000),
    ],
)
def test_a_number_is_what_it_says(read: Callable[[str], float], text: str, value: float) -> None:
    assert read(text) == value


@each_case("text", ["8", "h", "8w", "8H", "0s", "1e3s", "8 hours", "36501d"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    assert "is not a duration such as 8h, 25m or 90s" in refusal(arguments.duration, text)


def test_a_step_is_told_from_a_name_and_from_newest() -> None:
    for text, number in (("7", 7), ("newest", None), ("9" * 5000, None), ("٣", None)):
        assert arguments.step(text) == number
    assert (arguments.step_or_newest("12"), arguments.step_or_newest("newest")) == (12, None)
    assert "neither a step nor newest" in refusal(arguments.step_or_newest, "latest")


def test_an_empty_path_is_refused() -> None:
    assert arguments.path("../x") == Path("../x")
    assert "the path is empty; write . for the working directory" in refusal(arguments.path, "")


def test_a_text_is_utf_8() -> None:
    assert arguments.text("naïve 🙂") == "naïve 🙂"
    assert "is not UTF-8" in refusal(arguments.text, "caf\udce9")


def test_the_name_of_an_object_is_what_kubernetes_permits() -> None:
    for name in ("llama", "llama-2", "team.llama-2", "7b", "a" * 253):
        assert arguments.object_name(name) == arguments.object_name_if_given(name) == name
    assert arguments.object_name_if_given("") == "", "an option that was not given"
    for name in ("", ".", "..", "a/b", "../a", "-a", "a-", "a..b", "A", "a_b", "a b", "a\n", "é", "a" * 254):
        assert "is not the name of an object" in refusal(arguments.object_name, name)
