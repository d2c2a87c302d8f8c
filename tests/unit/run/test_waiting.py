"""A wait logs a line every 30 s: what it is for, how long it has lasted, and its limit."""

import time

from trainyard.run.waiting import describe_wait


def test_a_wait_is_told_again_and_again_and_nothing_after_it() -> None:
    said: list[str] = []
    with describe_wait("the other nodes", 3660, log=said.append, every=0.05):
        time.sleep(0.6)
    lines = len(said)
    assert lines >= 3
    assert all(line.startswith("waiting for the other nodes, for 0:0") for line in said)
    assert said[0].endswith(" of at most 1:01:00")
    time.sleep(0.2)
    assert len(said) == lines
