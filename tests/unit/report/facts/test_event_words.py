"""The events of a run in words."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.report.conftest import START

from trainyard.report.facts.event_words import axis_marks, event_lines
from trainyard.report.facts.run_facts import read_facts
from trainyard.run.records import append_event

NewRun = Callable[[], Any]


@pytest.mark.parametrize(
    ("event", "status", "words"),
    [
        ("finished", "succeeded", "finished"),
        ("finished", "failed", "failed"),
        ("interrupted", "stopped", "interrupted"),
    ],
)
def test_the_end_of_a_run_is_named_by_how_it_ended(
    new_run: NewRun, event: str, status: str, words: str
) -> None:
    run = new_run().train(40)
    append_event(run.layout.events_file, event, step=40, status=status, reason="why", time=START + 50)
    facts = read_facts(run.path)
    assert axis_marks(facts)[-1][1] == words
    last = event_lines(facts)[-1]
    assert (last.words, last.details) == (words, "why")
