"""The section `grpo` of the configuration: training on rewards that are verified."""

from typing import Annotated

from pydantic import Field

from trainyard.config.section import NotNegative, Positive, Section


class GrpoConfig(Section):
    """Training on verified rewards, `recipe: grpo`; with another recipe none of these has an effect."""

    completions_per_question: Annotated[int, Field(ge=2, le=65536)] = 16
    """Answers sampled to each question and judged against each other; divides the global batch of answers."""
    max_completion_tokens: Annotated[int, Field(ge=2, le=65536)] = 4
    """Longest answer, in tokens, its end included."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of the sampling: above 1 answers vary more."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the divergence from the weights GRPO started with; 0 keeps no copy of these."""
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of a bonus for answers that vary."""
    questions: Positive = 65536
    """Different draws of the generator in an epoch."""
    warm_start_steps: NotNegative = 0
    """Supervised steps on solved questions before the first one of GRPO; 0 if model.path knows the task."""
    warm_start_learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """Of these steps, constant after their first tenth."""
