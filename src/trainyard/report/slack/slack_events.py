"""The events of a run that are posted to Slack, and what a message says about each.

A further event is one line in `SLACK_EVENTS`. `slack_message` writes the text.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class SlackEvent:
    """An event that a message can be about."""

    name: str
    """The word of the command line and of the title, such as `stopped`."""
    ends: bool = False
    """The last event of a lineage: it is also shown in the channel, with figures, verdict and report."""
    begins: bool = False
    """The first event of a lineage: the message says what is trained, and where."""
    explains: bool = False
    """The message shows the proof and the next command."""
    is_trouble: bool = False
    """The title has a warning sign; without a reason or trouble on record, nothing is posted."""
    is_failure: bool = False
    """The title reports a failure, even if the run's record does not."""

    def __str__(self) -> str:
        return self.name


STARTED = SlackEvent("started", begins=True)
RESUMED = SlackEvent("resumed")
"""Another segment of the lineage, or another attempt."""
DEGRADED = SlackEvent("degraded", is_trouble=True)
"""The run continues, but with a problem."""
STOPPED = SlackEvent("stopped", explains=True)
"""Stopped with a good checkpoint to resume from."""
SUCCEEDED = SlackEvent("succeeded", ends=True, explains=True)
FAILED = SlackEvent("failed", ends=True, explains=True, is_failure=True)
CANCELLED = SlackEvent("cancelled", ends=True, explains=True, is_failure=True)
"""A person cancelled it."""
_ALL = (STARTED, RESUMED, DEGRADED, STOPPED, SUCCEEDED, FAILED, CANCELLED)
SLACK_EVENTS = {event.name: event for event in _ALL}
"""Every event by its name."""
