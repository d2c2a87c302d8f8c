"""Decide whether another segment follows in a long run: their number is bounded, and each must make progress.

It only decides. Other modules dispatch the segment and choose its checkpoint.
"""

from dataclasses import dataclass

from trainyard.errors import ExitCode
from trainyard.run.segment import Segment

MOST_DEATHS = 2
"""After this many lost runners in a row, one more ends the lineage: the machine or the run is broken."""


@dataclass(frozen=True)
class SegmentEnd:
    """How a segment ended."""

    segment: Segment
    exit_code: int | None
    """The trainer's exit code; None when the runner died before it could report one."""
    step: int | None = None
    """The trainer's last step; None when not known."""
    stored: bool = False
    """Whether the store holds the complete segment."""


@dataclass(frozen=True)
class Decision:
    """The next segment; None if nothing follows although the run is not done."""

    next: Segment | None
    reason: str
    """For people, in one line."""


def next_segment(ended: SegmentEnd, *, most: int) -> Decision:
    """The segment that follows `ended`; a lineage has at most `most` segments."""
    segment = ended.segment
    if ended.exit_code not in (None, ExitCode.STOPPED):
        return Decision(None, f"the trainer ended with exit code {ended.exit_code}: more time does not help")
    if segment.number >= most:
        return Decision(None, f"segment {segment.number} is the last of {most} that are allowed")
    return _after_death(segment) if ended.exit_code is None else _after_stop(ended)


def _after_stop(ended: SegmentEnd) -> Decision:
    """The next segment after the trainer stopped, by itself or on request, with a good checkpoint."""
    segment = ended.segment
    if not ended.stored or ended.step is None:
        return Decision(None, "the checkpoint is not in the store, so there is nothing to resume from")
    if ended.step <= segment.step:
        steps = f"it started at step {segment.step:,} and ended at step {ended.step:,}"
        return Decision(None, f"segment {segment.number} made no progress: {steps}")
    following = segment.next(step=ended.step, died=False)
    return Decision(following, f"segment {segment.number} stopped at step {ended.step:,}")


def _after_death(segment: Segment) -> Decision:
    if segment.deaths >= MOST_DEATHS:
        count = segment.deaths + 1
        return Decision(None, f"{count} segments in a row lost their runner: check the machine first")
    following = segment.next(step=segment.step, died=True)
    return Decision(following, f"segment {segment.number} lost its runner")
