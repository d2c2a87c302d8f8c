"""Dispatch a segment of a lineage exactly once: before each dispatch, search for the segment's workflow run.

A re-run job comes here a second time, and a server that answers 502 may still have started the run.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from trainyard.errors import ServiceTroubleError
from trainyard.run.segment import Segment

PAUSES = (20.0, 60.0)
"""Seconds before each retry, long enough for GitHub to list a run that it has started."""


class DispatchApi(Protocol):
    """The part of `gateways.github_api.GitHub` that is used here."""

    def pages(self, path: str, key: str = "", **query: str | int) -> Iterator[Any]: ...
    def dispatch(self, workflow: str, *, ref: str, inputs: Mapping[str, str]) -> str: ...


def run_of(api: DispatchApi, workflow: str, segment: Segment) -> str | None:
    """The URL of the segment's workflow run, in any state; None if there is none."""
    runs = api.pages(f"/actions/workflows/{workflow}/runs", "workflow_runs", event="workflow_dispatch")
    title = f"lineage {segment.lineage} segment {segment.number}"  # `run-name` in `training_ci.yml`
    found = (run for run in runs if run.get("display_title") == title)
    return next((str(run.get("html_url") or "") for run in found), None)


def dispatch_once(
    api: DispatchApi,
    workflow: str,
    segment: Segment,
    *,
    ref: str,
    inputs: Mapping[str, str],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, bool]:
    """The URL of the segment's workflow run, and whether this call started it.

    Raises ServiceError when GitHub refuses, or still fails after the retries of `PAUSES`.
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
