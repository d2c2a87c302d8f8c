"""A callback for PyTorch Lightning.

    trainer = Trainer(..., callbacks=[TrainyardCallback()])
    trainer.fit(model, ckpt_path=...)

It reports steps, figures and checkpoints to the run, as lines of JSON in the file that the environment
variable TRAINYARD_EVENTS names. On SIGTERM, or when the file that TRAINYARD_STOP_FILE names exists, all ranks
save a checkpoint after the same step and exit with 75; Lightning itself would save nothing and exit with 0.
Without TRAINYARD_EVENTS, which must be set for every rank, it does nothing.

This file needs Lightning and torch only: it may be copied beside a script.
"""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

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
        self._file = os.environ.get("TRAINYARD_EVENTS", "")
        self._writes = self._signal_received = self._has_ended = False
        self._steps: int | None = None
        self._last_step = 0
        self._pending: int | None = None
        self._known: dict[str, Any] = {}
        self._group: Any = None
        self._process = os.getpid()
        # Lightning's own handler, which would end training without a checkpoint, is replaced.
        self._previous = signal.getsignal(signal.SIGTERM)
        self._worker_signals: Any = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if not self._file or stage != "fit":
            return
        if self._worker_signals is None:
            self._keep_workers()
        self._replace_handler(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self._file:
            return
        self._writes, self._has_ended, self._pending = trainer.is_global_zero, False, None
        self._last_step = trainer.global_step
        self._known = {path: _files(path) for path in _checkpoints(trainer)}
        with contextlib.suppress(Exception):
            planned = trainer.estimated_stepping_batches
            self._steps = int(planned) if math.isfinite(planned) else None
        self._write("begin", trainer.global_step, steps=self._steps)
        self._handle_signal()
        if trainer.world_size > 1 and self._group is None:
            # A group of its own: the vote neither waits for the GPU nor mixes with the trainer's collectives.
            with contextlib.suppress(Exception):
                self._group = torch.distributed.new_group(backend="gloo")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._report_checkpoints(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *batch: Any) -> None:
        step = trainer.global_step
        if not self._file or step == self._last_step:  # gradients are accumulated
            return
        self._last_step = step
        is_last = self._steps is not None and step >= self._steps
        if self._writes and (is_last or step % max(1, trainer.log_every_n_steps) == 0):
            with contextlib.suppress(Exception):
                self._write("row", step, _figures_of(trainer, pl_module, outputs))
        if self._agree_on_stop() and not is_last:
            self._stop(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._writes and not trainer.sanity_checking:
            metrics = trainer.callback_metrics.items()
            self._write("row", trainer.global_step, {name: v for name, v in metrics if _is_validation(name)})

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Remember the step: Lightning writes the file after this call."""
        self._pending = trainer.global_step

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._report_checkpoints(trainer)
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report no end: training did not end by itself, and a pending checkpoint may be incomplete."""
        self._pending, self._has_ended = None, True
        self._end(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._worker_signals is not None:
            handling: Any = torch.utils.data._utils.signal_handling
            handling._set_worker_signal_handlers = self._worker_signals
            self._worker_signals = None

    def _stop(self, trainer: Any) -> None:
        """Save a checkpoint on all ranks and exit. `should_stop` would run a validation first."""
        callback = trainer.checkpoint_callback
        folder = getattr(callback, "dirpath", None) or trainer.default_root_dir
        path = os.path.join(folder, f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt")
        trainer.save_checkpoint(path)  # ends with a barrier
        self._pending = None
        self._write("saved", trainer.global_step, path=os.path.abspath(path))
        self._end(trainer)
        raise SystemExit(STOPPED)

    def _end(self, trainer: Any) -> None:
        if not self._has_ended:
            self._write("end", trainer.global_step, steps=self._steps)
        self._has_ended = True
        if self._group is not None:
            with contextlib.suppress(Exception):  # its threads can abort an interpreter that ends
                torch.distributed.destroy_process_group(self._group)
            self._group = None

    def _report_checkpoints(self, trainer: Any) -> None:
        """Report the files written since `on_save_checkpoint`; Lightning ends a save with a barrier."""
        if self._pending is None or not self._writes:
            return
        step, self._pending = self._pending, None
        with contextlib.suppress(Exception):
            for path in _checkpoints(trainer):
                files = _files(path)
                if files and files != self._known.get(path):
                    self._known[path] = files
                    self._write("saved", step, path=os.path.abspath(path))

    def _agree_on_stop(self) -> bool:
        """Return whether any rank wants to stop; every rank gets the same answer."""
        file = os.environ.get("TRAINYARD_STOP_FILE")
        wanted = self._signal_received or bool(file and os.path.exists(file))
        if self._group is None:
            return wanted
        vote = torch.tensor([int(wanted)])
        with contextlib.suppress(Exception):
            torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX, group=self._group)
        return bool(vote.item())

    def _receive(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker: end as it would have without this
            signal.signal(number, self._previous or signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._signal_received = True
        if callable(self._previous):
            self._previous(number, frame)

    def _handle_signal(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._process = os.getpid()
            signal.signal(signal.SIGTERM, self._receive)

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

    def _write(self, event: str, step: int, figures: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append a line in one write. A line that another process left without its end is ended first."""
        if not self._writes:
            return
        with contextlib.suppress(Exception):
            named = {name: _number(value) for name, value in (figures or {}).items()}
            numbers = {name: number for name, number in named.items() if number is not None}
            if event == "saved":
                fields["files"] = _files(fields["path"])
            line = json.dumps({**numbers, **fields, "event": event, "step": step, "time": time.time()})
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(self._file, flags, 0o644)
            try:
                os.write(descriptor, f"\n{line}\n".encode())
            finally:
                os.close(descriptor)


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


def _number(value: Any) -> float | str | None:
    """Return a figure as a number of JSON; `nan`, `inf` or `-inf` if it is not finite; None if it is none."""
    try:
        number = value if type(value) is int and abs(value) < 1 << 63 else float(value)
        return number if math.isfinite(number) else str(number)
    except Exception:
        return None


def _files(path: str) -> dict[str, list[int]]:
    """Return size and time of modification (ns) of a file, or of each file in a folder by its path there."""
    if not os.path.isdir(path):
        facts = os.stat(path)
        return {os.path.basename(path): [facts.st_size, facts.st_mtime_ns]}
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    facts_of = {file: os.stat(file) for file in files if os.path.exists(file)}
    return {os.path.relpath(file, path): [f.st_size, f.st_mtime_ns] for file, f in facts_of.items()}
