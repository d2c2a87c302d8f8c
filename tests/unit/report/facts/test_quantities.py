"""Numbers as people read them."""

from collections.abc import Callable

from trainyard.report.facts import quantities
from trainyard.run.sizes import format_size

DURATIONS = ((0, "0.0 s"), (4.23, "4.2 s"), (38, "0:38"), (112, "1:52"), (3599.7, "1 h 0 m"))
LONG = ((22320, "6 h 12 m"), (273600, "3 d 4 h"))
AGES = ((-3, "0 s ago"), (40, "40 s ago"), (720, "12 m ago"), (10800, "3 h ago"), (259200, "3 d ago"))
SCALED = ((41200, "41.2 k"), (19_660_800, "19.7 M"), (1.1e9, "1.1 G"), (2e12, "2 T"), (999_700, "1.0 M"))
SMALL = ((950, "950"), (0, "0"), (0.123, "0.123"))
SIZES = ((912, "912 B"), (43_100, "43.1 kB"), (1e6, "1.0 MB"), (43_100_000, "43.1 MB"), (8.8e9, "8.8 GB"))
LOSSES = ((5.5573, "5.56"), (0.01234, "0.0123"), (123.4, "123"), (0, "0"))
WORDS: tuple[tuple[Callable[[float], str], tuple[tuple[float, str], ...]], ...] = (
    (quantities.format_duration, DURATIONS + LONG),
    (quantities.format_age_ago, AGES),
    (quantities.format_scaled, SCALED + SMALL),
    (format_size, SIZES),
    (quantities.format_loss, LOSSES),
    (quantities.format_percent, ((0.583, "58 %"),)),
)


def test_each_number_has_its_unit_and_the_digits_that_matter() -> None:
    for form, table in WORDS:
        assert [form(value) for value, _ in table] == [words for _, words in table]


def test_nouns_agree_with_their_number() -> None:
    assert quantities.format_count(1, "step") == "1 step"
    assert quantities.format_count(5000, "step") == "5,000 steps"
