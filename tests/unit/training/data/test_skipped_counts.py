"""The counts of skipped files and rows."""

import pytest

from trainyard.training.data.corpus import SkipCount, SkipTally, printable_text, skip_sentence


def test_counts_every_one_and_names_the_first_few() -> None:
    tally = SkipTally()
    for number in range(5):
        tally.add("empty files", f"{number}.txt")
    tally.add("binary files", "x.md")
    assert tally.summary() == (
        SkipCount("empty files", 5, ("0.txt", "1.txt", "2.txt")),
        SkipCount("binary files", 1, ("x.md",)),
    )


def test_a_tally_continues_from_earlier_counts() -> None:
    tally = SkipTally([SkipCount("empty files", 4, ("a", "b", "c"))])
    tally.add("empty files", "d")
    assert tally.summary() == (SkipCount("empty files", 5, ("a", "b", "c")),)


def test_the_sentence_says_when_there_are_more() -> None:
    skipped = (SkipCount("empty files", 1200, ("a", "b", "c")), SkipCount("binary files", 1, ("x.md",)))
    assert skip_sentence(skipped) == " Skipped: 1,200 empty files (a, b, c, …); 1 binary file (x.md)."
    assert skip_sentence(()) == ""


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        ("lines that are not JSON", "line that is not JSON"),
        ("files with another suffix", "file with another suffix"),
        ("rows without a text in 'rows' (data.text_field)", "row without a text in 'rows' (data.text_field)"),
        (
            ".bin files that are not a multiple of uint16 in size",
            ".bin file that is not a multiple of uint16 in size",
        ),
        ("unreadable folders", "unreadable folder"),
    ],
)
def test_one_of_a_kind_is_named_in_the_singular(reason: str, one: str) -> None:
    assert str(SkipCount(reason, 1, ("x",))) == f"1 {one} (x)"
    assert str(SkipCount(reason, 2, ("x", "y"))) == f"2 {reason} (x, y)"


def test_two_tallies_become_one() -> None:
    tally = SkipTally([SkipCount("empty files", 2, ("a", "b"))])
    tally.include([SkipCount("empty files", 5, ("c", "d", "e")), SkipCount("binary files", 1, ("x",))])
    both = (SkipCount("empty files", 7, ("a", "b", "c")), SkipCount("binary files", 1, ("x",)))
    assert tally.summary() == both


def test_a_name_that_is_no_utf8_can_be_printed() -> None:
    assert printable_text("a\udcff.txt") == "a\ufffd.txt"
