"""A wait logs a line every 30 s: what it is for, how long it has lasted, and its limit."""

import time

from trainyard.run.waiting import EVERY_SECONDS, describe_wait, wait_line


def test_the_line_says_what_for_how_long_and_until_when() -> None:
    noon = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
    assert wait_line("the other nodes", 61.2, 900, started=noon) == (
        "waiting for the other nodes, for 1:01 so far, until 12:15:00 at most (15:00 in all)"
    )
    assert wait_line("x", 3661, None, started=noon) == "waiting for x, for 1:01:01 so far"


def test_a_wait_is_told_again_and_again_and_nothing_after_it() -> None:
    said: list[str] = []
    with describe_wait("the other nodes", 60, log=said.append, every=0.05):
        time.sleep(0.6)
    lines = len(said)
    assert lines >= 3
    assert all(line.startswith("waiting for the other nodes, for 0:0") for line in said)
    time.sleep(0.2)
    assert len(said) == lines


def test_a_short_wait_is_silent() -> None:
    said: list[str] = []
    with describe_wait("the other nodes", 60, log=said.append):
        pass
    assert said == []
    assert EVERY_SECONDS == 30
