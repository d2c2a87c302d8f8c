"""Run TRL's GRPO trainer, restricted to sampling, rewards and gradients.

`steps` handles checkpoints, metrics, learning rate and stopping. Every optimizer step samples its own
answers, so no state of TRL has to be kept between steps. Importing this module takes seconds, so
`policy_training` imports it only when it trains.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from trainyard.config.schema import Config
from trainyard.training.checkpoint.training_state import generator_states, restore_generators
from trainyard.training.grpo.policy import build_tokenizer
from trainyard.training.grpo.policy_state import PolicyState
from trainyard.training.grpo.questions import Questions
from trainyard.training.grpo.reward import judge_answer
from trainyard.training.grpo.step_records import Steps


def train_policy(
    config: Config, questions: Questions, state: PolicyState, *, steps: Steps, last: int
) -> None:
    """Train from `state.step` to step `last`; the random generators continue from their current state."""
    generators = generator_states()
    with TemporaryDirectory() as folder, _suppress_output():
        trainer = _trainer(config, questions, state, folder=Path(folder), last=last)
        trainer.lap = steps.lap
        trainer.add_callback(_StepCallback(steps, generators))
        trainer.train()


class _Trainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer, with a clock for the parts of a step and without telemetry."""

    lap: Callable[[str], None]

    def _send_telemetry(self) -> None: ...

    def _prepare_inputs(self, *given: Any) -> Any:
        return self._time("data", super()._prepare_inputs(*given))

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        return self._time("forward", super().compute_loss(*given, **named))

    def training_step(self, *given: Any, **named: Any) -> Any:
        return self._time("backward", super().training_step(*given, **named))

    def _time(self, part: str, result: Any) -> Any:
        self.lap(part)
        return result


class _StepCallback(TrainerCallback):  # type: ignore[misc]
    """Calls `Steps` from transformers' callbacks."""

    def __init__(self, steps: Steps, generators: Mapping[str, Any]) -> None:
        self._steps = steps
        self._generators: Mapping[str, Any] | None = generators

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        if self._generators is not None:
            # Building the trainer and its loader has drawn random numbers.
            restore_generators(self._generators)
            self._generators = None
        self._steps.begin()

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._steps.lap("backward")  # clipping
        self._steps.prepare_update()

    def on_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        self._steps.lap("optimizer")

    def on_log(self, *_args: Any, logs: Mapping[str, Any], **_kwargs: Any) -> None:
        if "reward" in logs:  # the summary at the end does not belong to a step
            self._steps.finish(logs)


def _trainer(
    config: Config, questions: Questions, state: PolicyState, *, folder: Path, last: int
) -> GRPOTrainer:
    policy = state.model
    if config.grpo.kl_coefficient:
        # TRL loads the reference from the path in the policy's configuration.
        policy.save_pretrained(folder / "reference")  # type: ignore[operator]
        policy.config._name_or_path = str(folder / "reference")  # type: ignore[union-attr]
    prompts = [text for step in range(state.step, last) for text in questions.of_step(step)]
    trainer = _Trainer(
        model=policy,
        reward_funcs=reward,
        args=_arguments(config, folder, steps=last - state.step),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=build_tokenizer(config.model),
        optimizers=(state.optimizer, None),
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.ref_model is not None:
        trainer.ref_model.load_state_dict(state.reference)
        state.reference = dict(trainer.ref_model.state_dict())
    return trainer


def reward(
    prompts: Sequence[str], completions: Sequence[str], *, log_metric: Any, **_more: Any
) -> list[float]:
    """TRL's reward function: compute the rewards of answers, and log the share of right ones."""
    verdicts = [judge_answer(question, answer) for question, answer in zip(prompts, completions, strict=True)]
    log_metric("accuracy", sum(verdict.is_right for verdict in verdicts) / len(verdicts))
    return [verdict.reward for verdict in verdicts]


def _arguments(config: Config, folder: Path, *, steps: int) -> GRPOConfig:
    training, grpo = config.training, config.grpo
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        steps_per_generation=training.gradient_accumulation_steps,
        num_iterations=1,
        num_generations=grpo.completions_per_question,
        max_completion_length=grpo.max_completion_tokens,
        temperature=grpo.temperature,
        beta=grpo.kl_coefficient,
        entropy_coef=grpo.entropy_coefficient,
        max_grad_norm=training.max_grad_norm or 0.0,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",  # `Steps` sets the rate
        shuffle_dataset=False,
        seed=training.seed,
        use_cpu=config.model.device == "cpu" or not torch.cuda.is_available(),
        bf16=config.model.dtype == "bfloat16",
        gradient_checkpointing=config.compute.activation_checkpointing == "full",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        log_level="error",
    )


@contextmanager
def _suppress_output() -> Iterator[None]:
    """Suppress the libraries' progress bars and their own deprecation warnings."""
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
