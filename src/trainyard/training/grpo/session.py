"""One segment of a GRPO run: resume if asked, or start warm, train, record how it ended.

    config --> resume point --> run.json --> policy --> warm start --> steps --> outcome

The run directory, checkpoints, resuming and exit codes are those of pretraining, made by the same modules.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch

from trainyard.config.mesh import require_processes
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.run.run_lock import locked
from trainyard.training.checkpoint.checkpoint import load_checkpoint
from trainyard.training.checkpoint.resume import find_resume_point, what_must_fit
from trainyard.training.grpo.arithmetic import evaluate
from trainyard.training.grpo.policy import answer, build_policy, build_tokenizer, fill
from trainyard.training.grpo.policy_state import PolicyState
from trainyard.training.grpo.questions import Questions
from trainyard.training.grpo.reward import QUESTION_END, judge
from trainyard.training.grpo.step_records import Steps
from trainyard.training.grpo.warm_start import warm_start
from trainyard.training.model.model import parameter_count
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.run.checkpoint_scheduler import Saver
from trainyard.training.run.hang import ended_when_hung
from trainyard.training.run.length import RunLength
from trainyard.training.run.outcome import OutcomeRecorder
from trainyard.training.run.run_context import Listener, RunContext, show_work
from trainyard.training.run.run_request import Request, continue_records, finished_before, open_records
from trainyard.training.run.trackers import close_trackers, hyperparameters_of, open_trackers, show_sample
from trainyard.training.runtime.before_torch import started
from trainyard.training.runtime.hardware import hardware_facts, prepare_device, seed_everything
from trainyard.training.runtime.stop_signals import StopRequest
from trainyard.training.runtime.watchdog import Watchdog
from trainyard.training.runtime.world import ALONE, World
from trainyard.training.weights.starting_weights import open_starting_weights
from trainyard.training.weights.weight_source import WeightSource

_SAMPLES = 8


def train_on_rewards(
    request: Request[Questions],
    *,
    stop: StopRequest,
    listener: Listener,
    world: World | None = None,  # noqa: ARG001 - it trains in one process
) -> dict[str, Any]:
    """Train until done; returns the outcome. Raises StoppedError after an early stop with a checkpoint."""
    _require_one_device(request)
    show_work(listener, "preparing the device")
    device = prepare_device(request.config)
    with locked(request.directory.path):
        return _Session(request, device).train(stop, listener)


def describe(request: Request[Questions]) -> dict[str, Any]:
    """What `train_on_rewards` would do: the length of the run and the checkpoint it would go on from."""
    _require_one_device(request)
    config, questions = request.config, request.data
    length = _length(config, questions)
    point = find_resume_point(request.directory, request.resume, _fits(config, questions), record=False)
    if point is None:
        _weights(config)  # refuses what does not fit
    return {
        "run_dir": str(request.directory.path),
        "resumes": str(point.path) if point else None,
        "starts_from": None if point else config.model.path,
        "plan": length.to_json(),
        "data": questions.to_json(),
    }


class _Session:
    """A segment of a run: what is the same for all of its steps."""

    def __init__(self, request: Request[Questions], device: torch.device) -> None:
        self._request, self._device, self._config = request, device, request.config
        self._questions = request.data
        self._length = _length(request.config, self._questions)
        self._fits = _fits(request.config, self._questions)

    def train(self, stop: StopRequest, listener: Listener) -> dict[str, Any]:
        request, directory = self._request, self._request.directory
        show_work(listener, "looking for a checkpoint")
        point = find_resume_point(directory, request.resume, self._fits, digest_of=request.digest_of)
        if (done := finished_before(request, self._length, point)) is not None:
            listener.on_event("finished_before", {"step": done["steps"]})
            request.on_outcome(done)
            return done
        show_work(listener, "importing transformers and building the model")
        weights = None if point and point.step else _weights(self._config)
        state = self._new_state(weights)
        run_id = open_records(request, point, self._found(state, weights))
        recorded = OutcomeRecorder(directory, state, self._length, tell=request.on_outcome, stop=stop)
        with recorded as recorder:
            if point is not None:
                show_work(listener, f"loading {point.path.name}")
                load_checkpoint(point.path, state)
            continue_records(directory, state, point)
            with self._segment(run_id, state, (stop, listener)) as segment:
                facts = {"step": state.step, "steps": self._length.steps, "run_id": run_id}
                listener.on_event("started", facts)
                started()
                with ended_when_hung(segment, recorder, leave=request.leave):
                    self._train(segment, state, weights)
                    with segment.watchdog.slow_work(), segment.working("answering questions as a sample"):
                        recorder.sample = self._sample(state)
                        show_sample(segment.trackers, recorder.sample, state.step)
        return recorder.outcome

    def _train(self, segment: RunContext, state: PolicyState, weights: WeightSource | None) -> None:
        with Saver(segment) as saver:
            saver.remove_old()
            if state.step == 0:
                with segment.watchdog.slow_work():
                    self._start_warm(segment, state, saver, weights=weights)
            if state.step < self._length.steps:
                self._step(segment, state, saver)
            saver.save(wait=True)

    def _step(self, segment: RunContext, state: PolicyState, saver: Saver) -> None:
        show_work(segment.listener, "importing TRL")
        from trainyard.training.grpo.trainer import train_policy

        show_work(segment.listener, f"step {state.step + 1}/{self._length.steps}")
        with closing(Steps(segment, state, saver)) as steps:
            train_policy(self._config, self._questions, state, steps=steps, last=self._length.steps)

    def _start_warm(
        self, segment: RunContext, state: PolicyState, saver: Saver, *, weights: WeightSource | None
    ) -> None:
        """Bring the policy from its first weights to those that GRPO starts with."""
        if self._config.grpo.warm_start_steps:
            steps = self._config.grpo.warm_start_steps
            with segment.working(f"starting warm with {steps} supervised steps"):
                done = warm_start(
                    state.model, self._questions, self._config, asked_to_stop=lambda: _alive(segment)
                )
            if done is None:
                fill(state.model, self._config.model, seed=self._config.training.seed, weights=weights)
                raise saver.stop()
            segment.event(
                "warm_started", steps=done.steps, first_loss=done.first_loss, final_loss=done.final_loss
            )
        for name, kept in state.reference.items():
            kept.copy_(state.model.state_dict()[name])
        seed_everything(self._config.training.seed)

    def _new_state(self, weights: WeightSource | None) -> PolicyState:
        config = self._config
        policy = build_policy(config.model, seed=config.training.seed, weights=weights).to(self._device)
        state = PolicyState(policy, build_optimizer(policy, config.training))
        if config.grpo.kl_coefficient:
            state.reference = {name: values.clone() for name, values in policy.state_dict().items()}
        return state

    @contextmanager
    def _segment(
        self, run_id: str, state: PolicyState, watchers: tuple[StopRequest, Listener]
    ) -> Iterator[RunContext]:
        """The segment with its trackers, which are closed at the end."""
        directory, (stop, listener) = self._request.directory, watchers
        trackers = open_trackers(
            self._config.monitoring,
            directory,
            run_id=run_id,
            resumed_at=state.step,
            hyperparameters=hyperparameters_of(self._config),
        )
        try:
            yield RunContext(
                config=self._config,
                directory=directory,
                run_id=run_id,
                length=self._length,
                fits=self._fits,
                state=state,
                device=self._device,
                world=ALONE,
                trackers=trackers,
                stop=stop,
                listener=listener,
                gpu_facts=self._request.gpu_facts,
                watchdog=Watchdog(self._config.monitoring),
            )
        finally:
            close_trackers(trackers)

    def _found(self, state: PolicyState, weights: WeightSource | None) -> dict[str, Any]:
        """What `run.json` says beside the request."""
        model = self._config.model
        return {
            "recipe": "grpo",
            "plan": self._length.to_json() | {"parameters": parameter_count(state.model)},
            "hardware": hardware_facts(self._device, 1),
            "model": {"path": model.path, "sha256": weights.digest()} if weights else None,
        }

    def _sample(self, state: PolicyState) -> str:
        """Answers to questions that were not asked in training."""
        tokenizer = build_tokenizer(self._config.model)
        tokens = self._config.grpo.max_completion_tokens
        lines = []
        for question in self._questions.unasked(_SAMPLES):
            given = answer(state.model, tokenizer, question, tokens=tokens)
            verdict = "right" if judge(question, given).is_right else f"wrong, it is {_value(question)}"
            lines.append(f"{question}{given}    {verdict}")
        return "\n".join(lines)


def _alive(segment: RunContext) -> str | None:
    """Between two steps of the warm start: a sign of life, and why to stop."""
    segment.watchdog.beat()
    return segment.stop.reason


def _value(question: str) -> int:
    return evaluate(question.removesuffix(QUESTION_END))


def _length(config: Config, questions: Questions) -> RunLength:
    training, per_epoch = config.training, questions.steps_per_epoch
    limits = [training.max_steps, training.epochs and training.epochs * per_epoch]
    steps = min(limit for limit in limits if limit is not None)
    samples = training.batch_size * training.gradient_accumulation_steps
    longest = len(max(questions.of_step(0), key=len)) + config.grpo.max_completion_tokens
    return RunLength(
        steps=steps,
        steps_per_epoch=per_epoch,
        epochs=round(steps / per_epoch, 4),
        samples_per_step=samples,
        tokens_per_step=samples * longest,
    )


def _fits(config: Config, questions: Questions) -> dict[str, Any]:
    """What decides the meaning of a checkpoint."""
    samples = config.training.batch_size * config.training.gradient_accumulation_steps
    common = what_must_fit(config, questions.fingerprint, samples)
    with_effect = {name: value for name, value in common.items() if not name.startswith("data.")}
    return with_effect | {
        "recipe": "grpo",
        "grpo.completions_per_question": config.grpo.completions_per_question,
        "grpo.kl_coefficient is above 0": config.grpo.kl_coefficient > 0,
    }


def _weights(config: Config) -> WeightSource | None:
    return open_starting_weights(config.model, tile_bytes=config.kernel_optimization.tile_bytes)


def _require_one_device(request: Request[Questions]) -> None:
    if request.profile:
        raise ConfigError("--profile traces pretraining only; leave it out with recipe: grpo.")
    require_processes(request.config, int(os.environ.get("WORLD_SIZE", "1")))
    if request.config.model.device != "cpu" and torch.cuda.device_count() > 1:
        raise ConfigError(
            "recipe: grpo trains on one GPU, and several are visible. Set CUDA_VISIBLE_DEVICES to one of "
            "them, or model.device to cpu. Nothing was started."
        )
