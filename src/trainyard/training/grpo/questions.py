"""The questions of a run: a pure function of seed, depth and place, made as they are asked.

    step -> places in the epoch's order -> indices -> expressions -> `((3+4)-5)=`

Nothing is prepared and nothing is stored; the fingerprint says which generator was asked for what.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.config.schema import Config
from trainyard.training.grpo.arithmetic import VERSION, evaluate, expression
from trainyard.training.grpo.reward import QUESTION_END
from trainyard.training.order import Permutation


@dataclass(frozen=True)
class Questions:
    """What is asked in a run."""

    seed: int
    depth: int
    count: int
    """In an epoch. Shallow expressions are few, so the same one may be drawn more than once."""
    per_step: int
    """Different questions an optimizer step."""

    @property
    def name(self) -> str:
        return f"arithmetic of depth {self.depth}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the version of the generator and all that it is given, lower-case hex."""
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

    def pinned(self, config: Config) -> Config:
        """`config` as it is: it says which questions are asked."""
        return config

    def of_step(self, step: int) -> list[str]:
        """The questions of the 0-based `step`, each epoch in an order of its own."""
        epoch, place = divmod(step, self.steps_per_epoch)
        places = np.arange(place * self.per_step, (place + 1) * self.per_step, dtype=np.uint64)
        indices = Permutation(self.count, seed=self.seed, epoch=epoch)(places)
        return [self._question(int(index)) for index in indices]

    def solved(self, start: int, count: int) -> list[tuple[str, str]]:
        """Questions with their answers from other draws than those of the steps, for the warm start."""
        made = (
            expression(seed=self.seed, index=-1 - i, depth=self.depth) for i in range(start, start + count)
        )
        return [(text + QUESTION_END, str(evaluate(text))) for text in made]

    def unasked(self, count: int) -> list[str]:
        """Questions from draws that are in no epoch."""
        return [self._question(index) for index in range(self.count, self.count + count)]

    def _question(self, index: int) -> str:
        return expression(seed=self.seed, index=index, depth=self.depth) + QUESTION_END


def questions_of(config: Config) -> Questions:
    """The questions that a configuration asks for."""
    training, group = config.training, config.grpo.completions_per_question
    return Questions(
        seed=training.seed,
        depth=config.kernel_optimization.rlvr_depth,
        count=config.grpo.questions,
        per_step=training.batch_size * training.gradient_accumulation_steps // group,
    )
