"""A short supervised warm start on solved questions, because rewards only teach if some answers are right.

    solved questions -> next-token loss on the answers -> its own AdamW -> the weights that GRPO starts with

It draws no random numbers and keeps no state. If it is interrupted, it is repeated from the first weights. It
does not count in the run's steps and metrics.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainyard.config.schema import Config
from trainyard.errors import TrainingFailedError
from trainyard.training.checkpoint.failure_advice import not_finite_failure
from trainyard.training.data.vocabulary import load_vocabulary
from trainyard.training.grpo.questions import Questions
from trainyard.training.model.optimizer import build_optimizer, set_learning_rate

_IGNORED = -100
_CLIP = 1.0


def warm_start(
    policy: Any, questions: Questions, config: Config, *, asked_to_stop: Callable[[], str | None]
) -> list[float] | None:
    """Train `policy` on solved questions; return the loss of each step.

    None when a stop was requested before the last step. Raises TrainingFailedError when the loss is no longer
    finite.
    """
    steps, peak = config.grpo.warm_start_steps, config.grpo.warm_start_learning_rate
    size = config.training.batch_size * config.training.gradient_accumulation_steps
    answers = SolvedBatches(questions, config, size)
    optimizer = build_optimizer(policy, config.training)
    policy.train()
    losses: list[float] = []
    for step in range(steps):
        if asked_to_stop() is not None:
            return None
        set_learning_rate(optimizer, peak * min(1.0, (step + 1) / max(1, steps // 10)))
        loss = _loss(policy, answers.batch(step))
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(policy.parameters(), _CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(_require_finite(loss.item(), step, config))
    return losses


class SolvedBatches:
    """Tokens of questions and answers, by step."""

    def __init__(self, questions: Questions, config: Config, size: int) -> None:
        self._questions, self._size = questions, size
        self._vocabulary = load_vocabulary(config.model)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Token ids and labels `[batch, seq]`; only the answers and the end tokens have labels."""
        solved = self._questions.solved_questions(step * self._size, self._size)
        rows = [self._row(question, answer) for question, answer in solved]
        length = max(len(tokens) for tokens, _ in rows)
        ids = torch.zeros((len(rows), length), dtype=torch.long)
        labels = torch.full((len(rows), length), _IGNORED)
        for index, (tokens, given) in enumerate(rows):
            ids[index, : len(tokens)] = torch.tensor(tokens)
            labels[index, given : len(tokens)] = torch.tensor(tokens[given:])
        return ids, labels

    def _row(self, question: str, answer: str) -> tuple[list[int], int]:
        """The tokens of question, answer and end, and the number of the question's tokens."""
        given = self._vocabulary.encode(question)
        end = [] if self._vocabulary.eos is None else [self._vocabulary.eos]
        return given + self._vocabulary.encode(answer) + end, len(given)


def _loss(policy: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, labels = (tensor.to(policy.device) for tensor in batch)
    logits = policy(input_ids=ids).logits[:, :-1].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=_IGNORED)


def _require_finite(loss: float, step: int, config: Config) -> float:
    if not math.isfinite(loss):
        failure = not_finite_failure(0, config, key="grpo.warm_start_learning_rate")
        error = TrainingFailedError(
            f"Step {step + 1} of the warm start: the loss, {loss}, is not finite.\n{failure.mend}."
        )
        error.failure = failure
        raise error
    return loss
