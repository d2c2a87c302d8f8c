"""Decide whether another segment follows in a long run, and dispatch it exactly once.

The number of segments is bounded, and each must make progress. Other modules choose its checkpoint. Before
each dispatch the segment's workflow run is searched for: the job may be a repeated one, and a server that
answers 502 may have started the run.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import ExitCode, ServiceTroubleError
from trainyard.run.segment import Segment

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

PAUSES = (20.0, 60.0)
"""Seconds before each retry, long enough for GitHub to list a run that it has started."""
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
    """The next segment; None if the run is not done and no further segment follows."""

    next: Segment | None
    reason: str
    """For people, in one line."""


def next_segment(ended: SegmentEnd, *, most: int) -> Decision:
    """Return the segment that follows `ended`; a lineage has at most `most` segments."""
    segment = ended.segment
    if ended.exit_code not in (None, ExitCode.STOPPED):
        return Decision(None, f"the trainer ended with exit code {ended.exit_code}: more time does not help")
    if segment.number >= most:
        return Decision(None, f"segment {segment.number} is the last of {most} that are allowed")
    if ended.exit_code is None:
        if segment.deaths >= MOST_DEATHS:
            count = segment.deaths + 1
            return Decision(None, f"{count} segments in a row lost their runner: check the machine first")
        following = segment.next(step=segment.step, died=True)
        return Decision(following, f"segment {segment.number} lost its runner")
    if not ended.stored or ended.step is None:
        return Decision(None, "the checkpoint is not in the store, so there is nothing to resume from")
    if ended.step <= segment.step:
        steps = f"it started at step {segment.step:,} and ended at step {ended.step:,}"
        return Decision(None, f"segment {segment.number} made no progress: {steps}")
    following = segment.next(step=ended.step, died=False)
    return Decision(following, f"segment {segment.number} stopped at step {ended.step:,}")


def find_segment_run(api: "GitHub", workflow: str, segment: Segment) -> str | None:
    """Return the URL of the segment's workflow run, in any state; None if there is none."""
    runs = api.pages(f"/actions/workflows/{workflow}/runs", "workflow_runs", event="workflow_dispatch")
    title = f"lineage {segment.lineage} segment {segment.number}"  # `run-name` in `training_ci.yml`
    found = (run for run in runs if run.get("display_title") == title)
    return next((str(run.get("html_url") or "") for run in found), None)


def dispatch_once(
    api: "GitHub",
    workflow: str,
    segment: Segment,
    *,
    ref: str,
    inputs: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, bool]:
    """Return the URL of the segment's workflow run, and whether this call started it.

    Raises ServiceError when GitHub refuses, or still fails after the retries of `PAUSES`.
    """
    for pause in (*PAUSES, None):
        try:
            existing = find_segment_run(api, workflow, segment)
            if existing is not None:
                return existing, False
            return api.dispatch(workflow, ref=ref, inputs=inputs), True
        except ServiceTroubleError:
            if pause is None:
                raise
        sleep(pause)
    raise AssertionError("the last attempt returns or raises")
