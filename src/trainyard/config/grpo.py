"""The section `grpo` of the configuration: reinforcement learning with verifiable rewards."""

from typing import Annotated

from pydantic import Field

from trainyard.config.section import NotNegative, Positive, Section


class GrpoConfig(Section):
    """Group relative policy optimization, `recipe: grpo`; other recipes ignore this section."""

    completions_per_question: Annotated[int, Field(ge=2, le=65536)] = 16
    """Answers sampled per question and compared with each other; must divide the global batch."""
    max_completion_tokens: Annotated[int, Field(ge=2, le=65536)] = 4
    """Longest answer in tokens, including its end token."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; above 1 answers vary more."""
    kl_coefficient: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the KL divergence from the starting weights; 0 keeps no copy of them."""
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    questions: Positive = 65536
    """Number of generated questions per epoch."""
    warm_start_steps: NotNegative = 0
    """Supervised steps on solved questions before GRPO begins; 0 if the weights know the task."""
    warm_start_learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """Learning rate of these steps, constant after a warm-up of one tenth of them."""
