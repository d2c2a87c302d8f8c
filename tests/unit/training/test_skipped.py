"""The count of what is passed over."""

from trainyard.training.skipped import Skipped, SkipTally, passed_over, printable


def test_counts_every_one_and_names_the_first_few() -> None:
    tally = SkipTally()
    for number in range(5):
        tally.add("empty files", f"{number}.txt")
    tally.add("binary files", "x.md")
    assert tally.summary() == (
        Skipped("empty files", 5, ("0.txt", "1.txt", "2.txt")),
        Skipped("binary files", 1, ("x.md",)),
    )


def test_goes_on_from_what_was_counted_before() -> None:
    tally = SkipTally([Skipped("empty files", 4, ("a", "b", "c"))])
    tally.add("empty files", "d")
    assert tally.summary() == (Skipped("empty files", 5, ("a", "b", "c")),)


def test_the_sentence_says_when_there_are_more() -> None:
    skipped = (Skipped("empty files", 1200, ("a", "b", "c")), Skipped("binary files", 1, ("x.md",)))
    assert passed_over(skipped) == " Passed over: 1,200 empty files (a, b, c, …); 1 binary files (x.md)."
    assert passed_over(()) == ""


def test_a_name_that_is_no_utf8_can_be_printed() -> None:
    assert printable("a\udcff.txt") == "a\ufffd.txt"
