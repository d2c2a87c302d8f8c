"""The losses of the last steps: whether a loss is a spike, and whether the losses rise.

It is part of a checkpoint, so that a resumed run judges a loss like an uninterrupted one.
"""

import math
from dataclasses import dataclass, field

from trainyard.run.usual_value import KEPT_VALUES, LEAST_VALUES, noise_limit, usual_value


@dataclass
class LossRecord:
    """The usual losses so far. They are equal on all processes, because each knows the loss of a step."""

    logarithms: list[float] = field(default_factory=list)
    """The last losses that were no spikes."""
    lowest: float | None = None
    """The lowest usual value; at first the first loss."""
    spikes: bool = False
    """Whether the last loss was a spike."""
    rises: bool = False
    skipped_in_row: int = 0
    """Updates that were skipped since the last one that was applied."""

    def is_spike(self, loss: float) -> bool:
        """Return whether `loss` lies above the usual one by more than noise."""
        if loss <= 0 or len(self.logarithms) < LEAST_VALUES:
            return False
        median, deviation = usual_value(self.logarithms)
        return math.log(loss) - median > noise_limit(deviation)

    @property
    def usual(self) -> float:
        """Return the usual loss; there must be at least one."""
        return math.exp(usual_value(self.logarithms)[0])

    def add(self, loss: float) -> tuple[str, float] | None:
        """Add a finite loss; return the event that it starts and the loss it was compared with, or None."""
        if loss <= 0:
            return None
        was_spike, self.spikes = self.spikes, self.is_spike(loss)
        if self.spikes:
            return None if was_spike else ("loss_spike", self.usual)
        self.logarithms = [*self.logarithms[1 - KEPT_VALUES :], math.log(loss)]
        self.lowest = math.log(loss) if self.lowest is None else self.lowest
        if len(self.logarithms) < LEAST_VALUES:
            return None
        median, deviation = usual_value(self.logarithms)
        self.lowest = min(self.lowest, median)
        had_risen = self.rises
        # Once it has risen, it rises until it is back at its lowest, so that noise does not repeat the event.
        self.rises = median > self.lowest and (had_risen or median - self.lowest > noise_limit(deviation))
        return ("loss_rising", math.exp(self.lowest)) if self.rises and not had_risen else None
