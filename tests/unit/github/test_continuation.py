"""When another segment follows, and the reasons when none does."""

import pytest

from trainyard.errors import ExitCode
from trainyard.github.continuation import SegmentEnd, next_segment
from trainyard.run.segment import Segment

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECOND = Segment("4711", 2, 812, COMMIT, step=100)


def test_a_stopped_segment_with_progress_and_a_stored_checkpoint_is_followed() -> None:
    decision = next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, 250, stored=True), most=5)
    assert decision.next == Segment("4711", 3, 812, COMMIT, step=250)
    assert decision.reason == "segment 2 stopped at step 250"


@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.NO, ExitCode.USAGE, ExitCode.BUG, 137])
def test_a_finished_or_failed_segment_is_not_followed(code: int) -> None:
    decision = next_segment(SegmentEnd(SECOND, code, 250, stored=True), most=5)
    assert decision.next is None
    assert str(int(code)) in decision.reason


@pytest.mark.parametrize("step", [100, 99])
def test_a_segment_without_progress_is_the_last(step: int) -> None:
    decision = next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, step, stored=True), most=5)
    assert decision.next is None
    assert "made no progress" in decision.reason


@pytest.mark.parametrize(("step", "stored"), [(250, False), (None, True)])
def test_without_a_stored_checkpoint_nothing_follows(step: int | None, stored: bool) -> None:
    assert (
        "not in the store" in next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, step, stored), most=5).reason
    )


def test_a_lineage_has_a_limited_number_of_segments() -> None:
    assert next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, 250, stored=True), most=2).next is None
    assert next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, 250, stored=True), most=3).next


def test_a_job_on_a_cluster_that_outlives_its_segment_is_followed_by_the_next() -> None:
    decision = next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, is_running=True), most=5)
    assert decision.next == Segment("4711", 3, 812, COMMIT, step=100)
    assert next_segment(SegmentEnd(SECOND, ExitCode.STOPPED, is_running=True), most=2).next is None
