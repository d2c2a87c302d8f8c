"""When another segment follows, and the reasons when none does."""

from typing import Any

from tests.cases import each_case

from trainyard.errors import ExitCode
from trainyard.github.continuation import SegmentEnd, next_segment
from trainyard.run.segment import Segment

SECOND = Segment("4711", 2, 812, "0123456789abcdef0123456789abcdef01234567", step=100)


@each_case(
    ("changes", "most", "step", "reason"),
    [
        ({}, 5, 250, "segment 2 stopped at step 250"),
        ({}, 3, 250, "segment 2 stopped at step 250"),
        ({}, 2, None, "is the last of 2"),
        *(({"exit_code": code}, 5, None, f"exit code {code}") for code in (0, 1, 2, 3, 137)),
        *(({"step": step}, 5, None, "made no progress") for step in (100, 99)),
        ({"stored": False}, 5, None, "not in the store"),
        ({"step": None}, 5, None, "not in the store"),
        # A job on a cluster that outlives the segment is followed by the next one.
        ({"is_running": True, "step": None, "stored": False}, 5, 100, "a job that still trains"),
        ({"is_running": True, "step": None, "stored": False}, 2, None, "is the last of 2"),
    ],
)
def test_a_segment_is_followed_if_it_stopped_with_progress_that_is_stored(
    changes: dict[str, Any], most: int, step: int | None, reason: str
) -> None:
    end = {"exit_code": int(ExitCode.STOPPED), "step": 250, "stored": True, **changes}
    decision = next_segment(SegmentEnd(SECOND, **end), most=most)
    assert reason in decision.reason
    assert decision.next == (None if step is None else SECOND.next(step=step))
