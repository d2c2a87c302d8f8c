"""A callback for PyTorch Lightning.

    trainer = Trainer(..., callbacks=[TrainyardCallback()])
    trainer.fit(model, ckpt_path=...)

It reports steps, figures and checkpoints to the run by the calls of `trainyard`. On SIGTERM, or when the file
that TRAINYARD_STOP_FILE names exists, all ranks save a checkpoint after the same step and exit with 75;
Lightning itself would save nothing and exit with 0. Without TRAINYARD_EVENTS, which must be set for every
rank, it does nothing.

This file needs Lightning, torch and the module `trainyard`, which needs nothing else: both may be copied.
"""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import torch

import trainyard

if "pytorch_lightning" in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

STOPPED = 75
"""The exit code of a program that stopped early with a checkpoint: start it again."""


class TrainyardCallback(Callback):  # type: ignore[misc]  # Lightning is not followed
    """Reports training to a run and stops it. Every rank has one; rank 0 writes."""

    def __init__(self) -> None:
        self._stop = trainyard.StopRequest()
        self._steps: int | None = None
        self._last_step = 0
        self._pending: int | None = None
        self._known: dict[str, Any] = {}
        # Lightning's own handler, which would end training without a checkpoint, is replaced.
        self._previous = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
        self._worker_signals: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not trainyard.has_run() or stage != "fit":
            return
        if self._worker_signals is None:
            self._keep_workers()
        self._replace_handler(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainyard.has_run():
            return
        self._last_step, self._pending = trainer.global_step, None
        self._known = {path: trainyard.files_of(path) for path in _checkpoints(trainer)}
        with contextlib.suppress(Exception):
            planned = trainer.estimated_stepping_batches
            self._steps = int(planned) if math.isfinite(planned) else None
        trainyard.begin(trainer.global_step, self._steps)
        self._handle_signal()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._report_checkpoints(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        step = trainer.global_step
        if not trainyard.has_run() or step == self._last_step:  # gradients are accumulated
            return
        self._last_step = step
        is_last = self._steps is not None and step >= self._steps
        if is_last or step % max(1, trainer.log_every_n_steps) == 0:
            with contextlib.suppress(Exception):
                trainyard.log(**{**_figures_of(trainer, pl_module, outputs), "step": step})
        if self._stop.requested() and not is_last:
            self._save_and_exit(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainyard.has_run() and not trainer.sanity_checking:
            figures = {name: v for name, v in trainer.callback_metrics.items() if _is_validation(name)}
            trainyard.log(**{**figures, "step": trainer.global_step})

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Remember the step: Lightning writes the file after this call."""
        self._pending = trainer.global_step

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._report_checkpoints(trainer)
        trainyard.end(trainer.global_step, self._steps)
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report no end: training did not end by itself, and a pending checkpoint may be incomplete."""
        self._pending = None
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._worker_signals is not None:
            handling: Any = torch.utils.data._utils.signal_handling
            handling._set_worker_signal_handlers = self._worker_signals
            self._worker_signals = None

    def _save_and_exit(self, trainer: Any) -> None:
        """Save a checkpoint on all ranks and exit. `should_stop` would run a validation first."""
        callback = trainer.checkpoint_callback
        folder = getattr(callback, "dirpath", None) or trainer.default_root_dir
        path = os.path.join(folder, f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)  # ends with a barrier
        self._pending = None
        trainyard.checkpoint(path, step=trainer.global_step)
        trainyard.end(trainer.global_step, self._steps)
        raise SystemExit(STOPPED)  # for which Lightning calls `on_exception`

    def _close(self) -> None:
        with contextlib.suppress(ValueError):  # another thread than the main one sets no handler
            self._stop.close()

    def _report_checkpoints(self, trainer: Any) -> None:
        """Report the files written since `on_save_checkpoint`; Lightning ends a save with a barrier."""
        if self._pending is None or not trainyard.has_run():
            return
        step, self._pending = self._pending, None
        with contextlib.suppress(Exception):
            for path in _checkpoints(trainer):
                if (files := trainyard.files_of(path)) != self._known.get(path):
                    self._known[path] = files
                    trainyard.checkpoint(path, step=step)

    def _handle_signal(self) -> None:
        with contextlib.suppress(ValueError):  # as in `_close`
            signal.signal(signal.SIGTERM, self._previous)
            self._stop.install(anew=True)

    def _replace_handler(self, trainer: Any) -> None:
        """Replace Lightning's handler as soon as it is registered, before the first validation.

        In its handler Lightning broadcasts to all ranks, so a rank that alone has the signal would wait for
        the others, and they for it. A stop that is requested before the first step follows that step.
        """
        with contextlib.suppress(Exception):
            connector = trainer._signal_connector
            register = connector.register_signal_handlers

            def register_and_replace() -> None:
                register()
                self._handle_signal()

            connector.register_signal_handlers = register_and_replace

    def _keep_workers(self) -> None:
        """Let the workers of data loaders outlive the SIGTERM of a stop.

        The signal reaches the process group. Without a worker, a loader raises an exception, often while the
        checkpoint is written. Lightning starts its workers before any hook that has the loaders.
        """
        with contextlib.suppress(Exception):
            handling: Any = torch.utils.data._utils.signal_handling
            set_handlers = self._worker_signals = handling._set_worker_signal_handlers

            def set_and_ignore_once(*args: Any) -> None:
                set_handlers(*args)
                signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))

            handling._set_worker_signal_handlers = set_and_ignore_once


def _figures_of(trainer: Any, pl_module: Any, outputs: Any) -> dict[str, Any]:
    """Return the loss of the batch, and what the module has logged in training."""
    figures = {name: v for name, v in trainer.callback_metrics.items() if not _is_validation(name)}
    figures["epoch"] = trainer.current_epoch
    if trainer.optimizers:
        figures["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is not None:
        # Lightning divides the loss of a batch by the number of batches whose gradients are added.
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        figures["loss"] = float(loss) * parts
    return figures


def _is_validation(name: str) -> bool:
    return name.startswith(("val", "test"))


def _checkpoints(trainer: Any) -> list[str]:
    """Return the paths that the checkpoint callbacks name."""
    found: dict[str, None] = {}
    for callback in trainer.checkpoint_callbacks:
        names = ("_last_checkpoint_saved", "best_model_path", "last_model_path", "kth_best_model_path")
        paths = [getattr(callback, name, "") for name in names]
        found |= dict.fromkeys([*paths, *getattr(callback, "best_k_models", {})])
    return [path for path in found if path and os.path.exists(path)]
