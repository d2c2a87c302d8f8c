"""What an answer is worth: a pure function of question and text, checked by evaluating the question.

    no number 0 · a number 0.1 and up to 0.4 more the nearer it is · the right one 1

Only the right answer is worth more than a half, so a model that writes likely digits does not pass for one
that calculates. What a model wrote is read as a number and never executed.
"""

import re
from dataclasses import dataclass

from trainyard.training.grpo.arithmetic import VALUES, evaluate

QUESTION_END = "="
"""What stands between an expression and its value."""
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)
_WELL_FORMED, _NEAR = 0.1, 0.4


@dataclass(frozen=True)
class Verdict:
    """How an answer was judged."""

    reward: float
    """From 0 to 1."""
    is_right: bool


def judge(question: str, answer: str) -> Verdict:
    """Judge the `answer` to a `question` such as `((3+4)-5)=`: all of it must be one number."""
    if not _NUMBER.fullmatch(answer):
        return Verdict(0.0, is_right=False)
    distance = abs(int(answer) - evaluate(question.removesuffix(QUESTION_END)))
    if distance == 0:
        return Verdict(1.0, is_right=True)
    nearness = max(0.0, 1 - distance / len(VALUES))
    return Verdict(_WELL_FORMED + _NEAR * nearness, is_right=False)
