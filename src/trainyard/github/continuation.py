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
TAG = "trainyard-lineage-{}"
"""The tag that keeps the commit of a lineage, by its id."""
MOST_DEATHS = 2
"""After this many lost runners in a row, one more ends the lineage: the machine or the run is broken."""


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentEnd:
    """End of a segment."""

    segment: Segment
    exit_code: int | None
    """The trainer's exit code; None when the runner died before it could report one."""
    step: int | None = None
    """The trainer's last step; None when not known."""
    stored: bool = False
    """Whether the store holds the complete segment."""
    is_outage: bool = False
    """A service could not be reached (exit code 4) before or after the training."""


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


def find_newer_push(api: "GitHub", workflow: str, *, branch: str, number: int) -> str:
    """Return the URL of a later push's run of the workflow that has not ended; empty if there is none."""
    runs = api.get(f"/actions/workflows/{workflow}/runs", event="push", branch=branch, per_page=50)
    for run in runs.get("workflow_runs", []):
        if int(run.get("run_number") or 0) > number and run.get("status") != "completed":
            return str(run.get("html_url") or f"run {run['run_number']}")
    return ""


def place_to_dispatch(api: "GitHub", workflow: str, segment: Segment, *, branch: str) -> str:
    """Return the ref to dispatch the next segment on: the branch, or else the tag of the lineage.

    The tag keeps the commit. It is used when the branch is gone or has another workflow file, because a newer
    file would call older scripts. Raises ServiceError when neither is possible.
    """
    tag, refusal = TAG.format(segment.lineage), ""
    try:
        api.post("/git/refs", {"ref": f"refs/tags/{tag}", "sha": segment.commit})
    except ServiceTroubleError:
        raise
    except ServiceError as error:  # it exists, or GitHub does not let this token create it
        refusal = str(error)
    file = f"/contents/.github/workflows/{workflow}"
    try:
        if api.get(file, ref=branch).get("sha") == api.get(file, ref=segment.commit).get("sha"):
            return branch
    except ServiceTroubleError:
        raise
    except ServiceError as error:
        _logger.info("branch %s: %s", branch, error)
    try:
        api.get(f"/git/ref/tags/{tag}")
    except ServiceTroubleError:
        raise
    except ServiceError:
        raise ServiceError(
            f"{branch} is gone or has another {workflow} than commit {segment.commit[:12]}, and the tag "
            f"{tag} could not be created ({refusal}). Create it: git tag {tag} {segment.commit} && git push "
            f"origin {tag}, then run this job again"
        ) from None
    return tag


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
