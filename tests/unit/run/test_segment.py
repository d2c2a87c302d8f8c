"""The state that one segment passes to the next, and texts that people must not type there."""

import json
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.run.segment import Segment, first_segment, read_segment

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIRST = Segment("4711", 1, 812, COMMIT)


def test_a_lineage_begins_with_the_workflow_run_that_trains_first() -> None:
    variables = {"GITHUB_RUN_ID": "4711", "GITHUB_RUN_NUMBER": "812", "GITHUB_SHA": COMMIT}
    assert first_segment(variables) == FIRST
    assert FIRST.run_id == "gh-4711"


def test_the_next_segment_is_of_the_same_run_at_the_same_commit() -> None:
    following = FIRST.next(step=2340)
    assert following == Segment("4711", 2, 812, COMMIT, step=2340)
    assert following.run_id == FIRST.run_id


def test_what_is_handed_on_is_read_back() -> None:
    following = FIRST.next(step=7)
    assert read_segment(following.to_text()) == following


@each_case(
    ("change", "named"),
    [
        ({"lineage": "../../etc"}, "lineage"),
        ({"lineage": 4711}, "lineage"),
        ({"commit": "main"}, "commit"),
        ({"commit": COMMIT[:7]}, "commit"),
        ({"number": 0}, "number"),
        ({"number": True}, "number"),
        ({"run_number": "812"}, "run_number"),
        ({"step": -1}, "step"),
        ({"outages": 1.5}, "outages"),
        ({"name": "a b"}, "name"),
        ({"more": 1}, "is not the text that a segment passes to the next"),
    ],
)
def test_anything_else_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    text = json.dumps(json.loads(FIRST.to_text()) | change)
    with pytest.raises(ConfigError, match=named) as caught:
        read_segment(text)
    assert "Leave it empty" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "null"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="continues"):
        read_segment(text)


def test_outside_of_a_workflow_run_there_is_no_segment() -> None:
    with pytest.raises(ConfigError, match="GITHUB_RUN_NUMBER is not set"):
        first_segment({"GITHUB_RUN_ID": "1", "GITHUB_SHA": COMMIT})
    with pytest.raises(ConfigError, match="run_number"):
        first_segment({"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "x", "GITHUB_SHA": COMMIT})
