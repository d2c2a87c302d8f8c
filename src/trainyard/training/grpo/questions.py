"""The questions of a run: a pure function of seed, depth and position, generated on demand.

    step -> positions in the epoch's order -> indices -> expressions -> `((3+4)-5)=`

Nothing is prepared or stored. The fingerprint identifies the generator and its parameters.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.config.schema import Config
from trainyard.training.data.order import Permutation
from trainyard.training.grpo.arithmetic import VERSION, evaluate, expression
from trainyard.training.grpo.reward import QUESTION_END


@dataclass(frozen=True)
class Questions:
    """The questions of a run."""

    seed: int
    depth: int
    count: int
    """Questions per epoch. There are few shallow expressions, so one may be drawn more than once."""
    per_step: int
    """Different questions per optimizer step."""

    @property
    def name(self) -> str:
        return f"arithmetic of depth {self.depth}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the version of the generator and all its parameters, lower-case hex."""
        facts = ["arithmetic", VERSION, self.depth, self.seed, self.count]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @property
    def steps_per_epoch(self) -> int:
        return self.count // self.per_step

    def to_json(self) -> dict[str, Any]:
        """The data's part of `run.json`."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "depth": self.depth,
            "questions": self.count,
        }

    def pinned_config(self, config: Config) -> Config:
        """`config` unchanged, because it determines the questions already."""
        return config

    def of_step(self, step: int) -> list[str]:
        """The questions of the 0-based `step`; each epoch has its own order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        places = np.arange(place * self.per_step, (place + 1) * self.per_step, dtype=np.uint64)
        indices = Permutation(self.count, seed=self.seed, epoch=epoch)(places)
        return [self._question(int(index)) for index in indices]

    def solved_questions(self, start: int, count: int) -> list[tuple[str, str]]:
        """Questions with answers for the warm start, from other draws than those of the steps."""
        made = (
            expression(seed=self.seed, index=-1 - i, depth=self.depth) for i in range(start, start + count)
        )
        return [(text + QUESTION_END, str(evaluate(text))) for text in made]

    def unused_questions(self, count: int) -> list[str]:
        """Questions from draws that no epoch uses."""
        return [self._question(index) for index in range(self.count, self.count + count)]

    def _question(self, index: int) -> str:
        return expression(seed=self.seed, index=index, depth=self.depth) + QUESTION_END


def questions_of(config: Config) -> Questions:
    """The questions that a configuration describes."""
    training, group = config.training, config.grpo.completions_per_question
    return Questions(
        seed=training.seed,
        depth=config.kernel_optimization.rlvr_depth,
        count=config.grpo.questions,
        per_step=training.batch_size * training.gradient_accumulation_steps // group,
    )
