"""Whether a segment of a long run is followed by a next one: bounded, and only while it gets somewhere.

Facts in, decision out. Who dispatches it, and from which checkpoint it goes on, is decided elsewhere.
"""

from dataclasses import dataclass

from trainyard.errors import ExitCode
from trainyard.run.segment import Segment

MOST_DEATHS = 2
"""Segments in a row whose runner died without word of a step; the machine or the run is broken then."""


@dataclass(frozen=True)
class Ended:
    """How a segment ended."""

    segment: Segment
    exit_code: int | None
    """Of the trainer; None when the runner died before it could say."""
    step: int | None = None
    """Where the trainer stood; None when nobody knows."""
    stored: bool = False
    """Whether the store was seen to hold all of it."""


@dataclass(frozen=True)
class Decision:
    """What follows."""

    next: Segment | None
    reason: str
    """Why, for people; one line."""

    @property
    def refused(self) -> bool:
        """Whether the run is not done and yet nothing follows."""
        return self.next is None


def next_segment(ended: Ended, *, most: int) -> Decision:
    """The segment that follows `ended`, of at most `most` in a lineage."""
    segment = ended.segment
    if ended.exit_code not in (None, ExitCode.STOPPED):
        return Decision(None, f"the trainer ended with exit code {ended.exit_code}: more time does not help")
    if segment.number >= most:
        return Decision(None, f"segment {segment.number} is the last of {most} that are allowed")
    return _after_death(segment) if ended.exit_code is None else _after_stop(ended)


def _after_stop(ended: Ended) -> Decision:
    """The trainer stopped itself, or was asked to, with a good checkpoint."""
    segment = ended.segment
    if not ended.stored or ended.step is None:
        return Decision(None, "the checkpoint is not in the store, so there is nothing to go on from")
    if ended.step <= segment.step:
        stood = f"it began at step {segment.step:,} and ended at step {ended.step:,}"
        return Decision(None, f"segment {segment.number} did not move on: {stood}")
    following = segment.next(step=ended.step, died=False)
    return Decision(following, f"segment {segment.number} stopped at step {ended.step:,}")


def _after_death(segment: Segment) -> Decision:
    if segment.deaths >= MOST_DEATHS:
        count = segment.deaths + 1
        return Decision(None, f"{count} segments in a row lost their runner: look at the machine first")
    following = segment.next(step=segment.step, died=True)
    return Decision(following, f"segment {segment.number} lost its runner")
