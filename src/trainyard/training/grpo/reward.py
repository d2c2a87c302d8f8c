"""The reward of an answer: a pure function of question and answer, computed by evaluating the question.

    no number: 0 · a wrong number: 0.1, plus up to 0.4 the nearer it is · the right number: 1

Only the right answer gets more than a half, so a model that writes likely digits cannot be mistaken for one
that calculates. The model's text is parsed as a number and never executed.
"""

import re
from dataclasses import dataclass

from trainyard.training.grpo.arithmetic import VALUES, evaluate

QUESTION_END = "="
"""Separates an expression from its value."""
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)
_WELL_FORMED, _NEAR = 0.1, 0.4


@dataclass(frozen=True)
class AnswerVerdict:
    """The reward of an answer."""

    reward: float
    """From 0 to 1."""
    is_right: bool


def judge_answer(question: str, answer: str) -> AnswerVerdict:
    """Judge the `answer` to a `question` such as `((3+4)-5)=`. The complete answer must be one number."""
    if not _NUMBER.fullmatch(answer):
        return AnswerVerdict(0.0, is_right=False)
    distance = abs(int(answer) - evaluate(question.removesuffix(QUESTION_END)))
    if distance == 0:
        return AnswerVerdict(1.0, is_right=True)
    nearness = max(0.0, 1 - distance / len(VALUES))
    return AnswerVerdict(_WELL_FORMED + _NEAR * nearness, is_right=False)
