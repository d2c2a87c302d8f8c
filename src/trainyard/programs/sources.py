"""Where a fact about a program's training comes from. A lower rank never contradicts a higher one."""

from enum import StrEnum


class Source(StrEnum):
    """The source of a step or a figure, the best first."""

    DECLARED = "declared"
    """Reported by calls of `trainyard`, or by a callback."""
    OBSERVED = "observed"
    """Seen by the observer inside the program."""
    STRUCTURED = "structured"
    """Read from a file for programs: trainer_state.json, TensorBoard, CSV, JSON lines."""
    CHECKPOINT = "checkpoint"
    """Stored inside a checkpoint."""
    PRINTED = "printed"
    GUESSED = "guessed"
    """A time, or a number in a name: it is shown, and proves nothing."""

    @property
    def proves(self) -> bool:
        return self is not Source.GUESSED
