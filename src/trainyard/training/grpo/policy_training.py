"""The recipe `grpo`: a model learns arithmetic from rewards that are verified by evaluation.

    questions --> policy --> warm start --> steps (`trainer`, `step_records`) --> answers as a sample

The lifecycle around it is `training.run.lifecycle`.
"""

import os
from dataclasses import replace
from typing import Any

import torch

from trainyard.config.mesh import require_processes
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.run.progress import Progress
from trainyard.training.checkpoint.resume import ResumePoint, values_to_fit
from trainyard.training.checkpoint.training_state import TrainingState
from trainyard.training.grpo.arithmetic import evaluate
from trainyard.training.grpo.policy import answer, build_policy, build_tokenizer, load_policy_weights
from trainyard.training.grpo.policy_state import PolicyState
from trainyard.training.grpo.questions import Questions, questions_of
from trainyard.training.grpo.reward import QUESTION_END, judge_answer
from trainyard.training.grpo.step_records import Steps
from trainyard.training.grpo.warm_start import warm_start
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.run.length import RunLength, plan_length
from trainyard.training.run.recipe_contract import Recipe, RecipeSegment
from trainyard.training.run.run_context import RunContext, show_work
from trainyard.training.run.run_request import Request
from trainyard.training.run.step_loop import StepLoop
from trainyard.training.runtime.hardware import seed_everything
from trainyard.training.runtime.world import World
from trainyard.training.weights.starting_weights import open_starting_weights
from trainyard.training.weights.weight_source import WeightSource

_SAMPLES = 8


class PolicyTraining(Recipe):
    """Group relative policy optimization on generated questions."""

    def check(self, request: Request[Any]) -> None:
        if request.profile:
            raise ConfigError("--profile traces pretraining only; leave it out with recipe: grpo.")
        require_processes(request.config, int(os.environ.get("WORLD_SIZE", "1")))
        if request.config.model.device != "cpu" and torch.cuda.device_count() > 1:
            raise ConfigError(
                "recipe: grpo trains on one GPU, and several are visible. Set CUDA_VISIBLE_DEVICES to one of "
                "them, or model.device to cpu. Nothing was started."
            )

    def ready_data(self, config: Config, progress: Progress) -> Questions:  # noqa: ARG002
        """Return the questions, which need no preparation."""
        return questions_of(config)

    def open(self, request: Request[Questions], *, processes: int) -> "PolicySegment":  # noqa: ARG002
        return PolicySegment(request)


class PolicySegment(RecipeSegment):
    """One segment of a GRPO run."""

    building = "importing transformers and building the model"
    sampling = "answering questions as a sample"
    counts_flops = False
    """Most of a step is sampling, which the operations of a training step do not count."""
    advises_on_memory = False
    """The advice speaks of sequences of `data.sequence_length`; questions and answers are shorter."""
    _state: PolicyState
    """Set by `build`."""

    def __init__(self, request: Request[Questions]) -> None:
        self._config, self._questions = request.config, request.data
        self._weights: WeightSource | None = None
        self.length = _length(request.config, request.data)

    def fits(self, fingerprint: str) -> dict[str, Any]:
        common = values_to_fit(self._config, fingerprint, self.length.samples_per_step)
        with_effect = {name: value for name, value in common.items() if not name.startswith("data.")}
        grpo = self._config.grpo
        return with_effect | {
            "recipe": "grpo",
            "grpo.completions_per_question": grpo.completions_per_question,
            "grpo.kl_coefficient is above 0": grpo.kl_coefficient > 0,
        }

    def starting_weights(self, point: ResumePoint | None) -> WeightSource | None:
        """Return them also for a checkpoint of step 0: an interrupted warm start starts with them again."""
        if point is not None and point.step:
            return None
        tile_bytes = self._config.kernel_optimization.tile_bytes
        return open_starting_weights(self._config.model, tile_bytes=tile_bytes)

    def build(
        self,
        weights: WeightSource | None,
        *,
        world: World,  # noqa: ARG002
        device: torch.device,
        resumes: bool,  # noqa: ARG002
    ) -> TrainingState:
        config, self._weights = self._config, weights
        policy = build_policy(config.model, seed=config.training.seed, weights=weights).to(device)
        self._state = PolicyState(policy, build_optimizer(policy, config.training))
        if config.grpo.kl_coefficient:
            self._state.reference = {name: values.clone() for name, values in policy.state_dict().items()}
        return self._state

    def train(self, context: RunContext, loop: StepLoop) -> None:
        if self._state.step == 0:
            with context.watchdog.slow_work():
                self._start_warm(context, loop)
        if self._state.step < self.length.steps:
            self._train_steps(context, loop)

    def sample(self, context: RunContext) -> str:  # noqa: ARG002
        """Return answers to questions that were not used in training."""
        tokenizer = build_tokenizer(self._config.model)
        tokens = self._config.grpo.max_completion_tokens
        lines = []
        for question in self._questions.unused_questions(_SAMPLES):
            given = answer(self._state.model, tokenizer, question, tokens=tokens)
            value = evaluate(question.removesuffix(QUESTION_END))
            verdict = "right" if judge_answer(question, given).is_right else f"wrong, it is {value}"
            lines.append(f"{question}{given}    {verdict}")
        return "\n".join(lines)

    def _train_steps(self, context: RunContext, loop: StepLoop) -> None:
        show_work(context.listener, "importing TRL")
        from trainyard.training.grpo.trainer import train_policy

        show_work(context.listener, f"step {self._state.step + 1}/{self.length.steps}")
        steps = Steps(context, self._state, loop)
        train_policy(self._config, self._questions, self._state, steps=steps, last=self.length.steps)

    def _start_warm(self, context: RunContext, loop: StepLoop) -> None:
        """Train the policy from its first weights to those that GRPO starts with."""
        config, state = self._config, self._state
        if config.grpo.warm_start_steps:
            with context.show_current_work(
                f"starting warm with {config.grpo.warm_start_steps} supervised steps"
            ):
                losses = warm_start(
                    state.model, self._questions, config, asked_to_stop=lambda: _stop_reason(context)
                )
            if losses is None:
                load_policy_weights(
                    state.model, config.model, seed=config.training.seed, weights=self._weights
                )
                raise loop.saver.stop()
            context.record_event(
                "warm_started", steps=len(losses), first_loss=losses[0], final_loss=losses[-1]
            )
        for name, kept in state.reference.items():
            kept.copy_(state.model.state_dict()[name])
        seed_everything(config.training.seed)


def _stop_reason(context: RunContext) -> str | None:
    """Between two steps of the warm start: report progress, and return the reason to stop."""
    context.watchdog.beat()
    return context.stop.reason


def _length(config: Config, questions: Questions) -> RunLength:
    """The length of the run; the tokens per step are those of the longest answers to the first questions."""
    per_epoch = questions.steps_per_epoch
    length = plan_length(config.training, config.data, steps_per_epoch=per_epoch, groups=1)
    longest = len(max(questions.of_step(0), key=len)) + config.grpo.max_completion_tokens
    return replace(length, tokens_per_step=length.samples_per_step * longest)


RECIPE = PolicyTraining()
