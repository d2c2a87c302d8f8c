"""Numbers as people read them."""

import pytest
from tests.cases import each_case

from trainyard.report.facts import quantities


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (4.23, "4.2 s"),
        (38, "0:38"),
        (112, "1:52"),
        (3599.7, "1 h 0 m"),
        (22320, "6 h 12 m"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert quantities.format_duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-3, "0 s ago"), (40, "40 s ago"), (720, "12 m ago"), (10800, "3 h ago"), (259200, "3 d ago")],
)
def test_ages(seconds: float, words: str) -> None:
    assert quantities.format_age_ago(seconds) == words


@each_case(
    ("value", "words"),
    [
        (41200, "41.2 k"),
        (19_660_800, "19.7 M"),
        (1.1e9, "1.1 G"),
        (2e12, "2 T"),
        (950, "950"),
        (0, "0"),
        (999_700, "1.0 M"),
        (0.123, "0.123"),
    ],
)
def test_large_numbers_are_scaled(value: float, words: str) -> None:
    assert quantities.format_scaled(value) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(912, "912 B"), (43_100_000, "43.1 MB"), (8.8e9, "8.8 GB"), (43_100, "43.1 kB"), (1e6, "1.0 MB")],
)
def test_sizes(count: float, words: str) -> None:
    assert quantities.format_size(count) == words


@pytest.mark.parametrize(
    ("value", "words"), [(5.5573, "5.56"), (0.01234, "0.0123"), (123.4, "123"), (0, "0")]
)
def test_losses(value: float, words: str) -> None:
    assert quantities.format_loss(value) == words


def test_nouns_agree_with_their_number() -> None:
    assert quantities.format_count(1, "step") == "1 step"
    assert quantities.format_count(5000, "step") == "5,000 steps"
    assert quantities.format_percent(0.583) == "58 %"
