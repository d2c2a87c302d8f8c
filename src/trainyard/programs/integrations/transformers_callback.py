"""A callback for the Trainer of transformers, and for the trainers of TRL, Axolotl and LLaMA-Factory.

    callback = TrainyardCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=...)
    callback.exit_if_stopped()

It reports steps, figures and checkpoints to the run by the calls of `trainyard`. On SIGTERM, or when the file
that TRAINYARD_STOP_FILE names exists, all ranks save a checkpoint after the same step and stop. Without
TRAINYARD_EVENTS, which must be set for every rank, it does nothing. It is not for use together with
`enable_jit_checkpoint`, which handles SIGTERM too.

This file needs transformers, torch and the module `trainyard`, which needs nothing else: both may be copied.
"""

import contextlib
import os
import signal
import sys
from typing import Any

from transformers import TrainerCallback

import trainyard

STOPPED = 75
"""The exit code of a program that stopped early with a checkpoint: start it again."""


class TrainyardCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Reports training to a run and stops it. Every rank has one; rank 0 writes."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether training stopped early on request, with a checkpoint."""
        self._stop = trainyard.StopRequest()
        self._pending: tuple[int, str] | None = None

    def exit_if_stopped(self) -> None:
        """Exit with 75 if training stopped early, so that launchers see that steps are left to do."""
        if self.stopped:
            sys.exit(STOPPED)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopped, self._pending, self._stop = False, None, trainyard.StopRequest()
        trainyard.begin(state.global_step, state.max_steps)
        if trainyard.has_run():
            self._stop.install()
            _keep_workers(kwargs.get("train_dataloader"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "train_loss" not in logs:  # those are means over the run
            trainyard.log(**{**logs, "step": state.global_step})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember the checkpoint: other ranks may still write their part of it."""
        path = os.path.join(os.path.abspath(args.output_dir), f"checkpoint-{state.global_step}")
        self._pending = (state.global_step, path)
        if args.world_size == 1:
            self._report_checkpoint()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the checkpoint: the exchange of gradients shows that all ranks have left the save."""
        self._report_checkpoint()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if trainyard.has_run() and self._stop.requested() and not control.should_training_stop:
            self.stopped = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Neither evaluate nor save again on the way out: the time until SIGKILL is short."""
        if self.stopped:
            control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the last checkpoint: every rank is here, because the trainer has added up its counters."""
        self._report_checkpoint()
        trainyard.end(state.global_step, state.max_steps)
        with contextlib.suppress(ValueError):  # another thread than the main one sets no handler
            self._stop.close()

    def _report_checkpoint(self) -> None:
        if self._pending is not None:
            step, path = self._pending
            self._pending = None
            trainyard.checkpoint(path, step=step)


def _keep_workers(loader: Any) -> None:
    """Let the workers of a data loader outlive the SIGTERM of a stop.

    The signal reaches the process group. Without a worker, the loader raises an exception, often while the
    checkpoint is written.
    """
    with contextlib.suppress(Exception):
        loader = getattr(loader, "base_dataloader", loader)  # accelerate's is a wrapper
        if loader.num_workers and not isinstance(loader.worker_init_fn, _WorkerStart):
            loader.worker_init_fn = _WorkerStart(loader.worker_init_fn)


class _WorkerStart:
    """Starts a worker as the loader would, with its first SIGTERM ignored."""

    def __init__(self, start: Any) -> None:
        self._start = start

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, _ignore_once)
        if self._start is not None:
            self._start(worker)


def _ignore_once(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
