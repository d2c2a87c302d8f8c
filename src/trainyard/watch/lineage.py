"""Dispatch a segment of a lineage once, whatever GitHub's answer: it is looked for before it is asked for.

A job that is run again comes here a second time, and a server that answers 502 may have done what was asked.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from trainyard.errors import ServiceTroubleError
from trainyard.run.segment import Segment

PAUSES = (20.0, 60.0)
"""Seconds before GitHub is asked again, long enough for a run that was begun to be listed."""


class Api(Protocol):
    """What of GitHub is needed: `gateways.github_api.GitHub`."""

    def pages(self, path: str, key: str = "", **query: str | int) -> Iterator[Any]: ...
    def dispatch(self, workflow: str, *, ref: str, inputs: Mapping[str, str]) -> str: ...


def title_of(segment: Segment) -> str:
    """What the run of a later segment is called: `run-name` of `training_ci.yml`."""
    return f"lineage {segment.lineage} segment {segment.number}"


def run_of(api: Api, workflow: str, segment: Segment) -> str | None:
    """The address of the workflow run that is the segment, however it ended; None where there is none."""
    runs = api.pages(f"/actions/workflows/{workflow}/runs", "workflow_runs", event="workflow_dispatch")
    found = (run for run in runs if run.get("display_title") == title_of(segment))
    return next((str(run.get("html_url") or "") for run in found), None)


def dispatch_once(
    api: Api,
    workflow: str,
    segment: Segment,
    *,
    ref: str,
    inputs: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, bool]:
    """The address of the segment's run, and whether it is a new one.

    Raises ServiceError when GitHub refuses, or is in trouble for longer than `PAUSES`.
    """
    for pause in (*PAUSES, None):
        try:
            there = run_of(api, workflow, segment)
            if there is not None:
                return there, False
            return api.dispatch(workflow, ref=ref, inputs=inputs), True
        except ServiceTroubleError:
            if pause is None:
                raise
        sleep(pause)
    raise AssertionError("the last attempt returns or raises")
