"""Decide whether another segment follows in a long run, and dispatch it exactly once.

The number of segments is bounded, and each must make progress. Other modules choose its checkpoint. Before
each dispatch the segment's workflow run is searched for: this job may be a re-run, and a server that answers
502 may have started the run.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import ExitCode, ServiceError, ServiceTroubleError
from trainyard.run.segment import Segment

if TYPE_CHECKING:
    from trainyard.gateways.github_api import GitHub

PAUSES = (20.0, 60.0, 300.0)
"""Seconds before each retry, long enough for GitHub to list a run that it has started."""
OUTAGE_MINUTES = (5, 15, 30, 60, 60, 60)
"""Back-off before the segment that follows an outage; after the last one the lineage ends."""


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentEnd:
    """End of a segment."""

    segment: Segment
    exit_code: int | None
    """The trainer's exit code; None when not known."""
    step: int | None = None
    """The trainer's last step; None when not known."""
    stored: bool = False
    """Whether the store holds the complete segment."""
    is_outage: bool = False
    """A service could not be reached (exit code 4) before or after the training."""
    is_running: bool = False
    """The training continues on a cluster, and the job that followed it reached its limit."""


@dataclass(frozen=True)
class Decision:
    """The next segment; None if the run is not done and no further segment follows."""

    next: Segment | None
    reason: str
    """For people, in one line."""
    pause_minutes: int = 0
    """Minutes to wait before the next segment is dispatched."""


def next_segment(ended: SegmentEnd, *, most: int) -> Decision:
    """Return the segment that follows `ended`; a lineage has at most `most` segments."""
    segment = ended.segment
    if ended.is_outage and segment.number < most:
        if segment.outages >= len(OUTAGE_MINUTES):
            return Decision(None, f"{segment.outages + 1} segments in a row met an outage: check the service")
        minutes = OUTAGE_MINUTES[segment.outages]
        reason = f"segment {segment.number} met an outage; the next one follows after {minutes} minutes"
        return Decision(segment.next_after_outage(), reason, minutes)
    if ended.exit_code != ExitCode.STOPPED:
        return Decision(None, f"the trainer ended with exit code {ended.exit_code}: more time does not help")
    if segment.number >= most:
        return Decision(None, f"segment {segment.number} is the last of {most} that are allowed")
    if ended.is_running:
        following = segment.next(step=segment.step)
        return Decision(following, f"segment {segment.number} followed a job that still trains")
    if not ended.stored or ended.step is None:
        return Decision(None, "the checkpoint is not in the store, so there is nothing to resume from")
    if ended.step <= segment.step:
        steps = f"it started at step {segment.step:,} and ended at step {ended.step:,}"
        return Decision(None, f"segment {segment.number} made no progress: {steps}")
    following = segment.next(step=ended.step)
    return Decision(following, f"segment {segment.number} stopped at step {ended.step:,}")


def find_segment_run(api: "GitHub", workflow: str, segment: Segment) -> str | None:
    """Return the URL of the segment's workflow run, in any state; None if there is none.

    The later segments of a lineage, and nothing else, run on its tag: first of them the second segment.
    """
    query = {"event": "workflow_dispatch", "branch": segment.tag}
    runs = list(api.pages(f"/actions/workflows/{workflow}/runs", "workflow_runs", **query))
    found = sorted(
        (run for run in runs if run.get("head_branch") == segment.tag), key=lambda run: int(run["id"])
    )
    return str(found[segment.number - 2].get("html_url") or "") if len(found) > segment.number - 2 else None


def find_newer_push(api: "GitHub", workflow: str, *, branch: str, number: int) -> str:
    """Return the URL of a later push's run of the workflow that has not ended; empty if there is none."""
    runs = api.get(f"/actions/workflows/{workflow}/runs", event="push", branch=branch, per_page=50)
    for run in runs.get("workflow_runs", []):
        if int(run.get("run_number") or 0) > number and run.get("status") != "completed":
            return str(run.get("html_url") or f"run {run['run_number']}")
    return ""


def make_tag(api: "GitHub", segment: Segment) -> str:
    """Make the tag of a lineage unless it exists; return why GitHub refuses it, or nothing.

    GITHUB_TOKEN may tag a commit only while its workflow files are those of the default branch. Raises
    ServiceTroubleError.
    """
    try:
        api.post("/git/refs", {"ref": f"refs/tags/{segment.tag}", "sha": segment.commit})
    except ServiceTroubleError:
        raise
    except ServiceError as error:
        try:
            api.get(f"/git/ref/tags/{segment.tag}")
        except ServiceTroubleError:
            raise
        except ServiceError:
            return str(error)
    return ""


def require_tag(api: "GitHub", segment: Segment) -> str:
    """Return the tag of a lineage, on which its next segment runs. Raises ServiceError if there is none.

    On the tag the workflow file, and what it pins, are those of the first segment, whatever the branch has.
    """
    if refusal := make_tag(api, segment):
        raise ServiceError(
            f"the tag {segment.tag} could not be created ({refusal}). Create it: git tag {segment.tag} "
            f"{segment.commit} && git push origin {segment.tag}, then run this job again"
        )
    return segment.tag


def delete_tag(api: "GitHub", segment: Segment) -> None:
    """Delete the tag of a lineage that is over. Raises ServiceError, also if there is no tag."""
    api.delete(f"/git/refs/tags/{segment.tag}")


def dispatch_once(
    api: "GitHub",
    workflow: str,
    segment: Segment,
    *,
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
            return api.dispatch(workflow, ref=segment.tag, inputs=inputs), True
        except ServiceTroubleError:
            if pause is None:
                raise
        sleep(pause)
    raise AssertionError("the last attempt returns or raises")
