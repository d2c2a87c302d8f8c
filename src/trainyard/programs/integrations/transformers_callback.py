"""A callback for the Trainer of transformers, and for the trainers of TRL, Axolotl and LLaMA-Factory.

    callback = TrainyardCallback()
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=...)
    callback.exit_if_stopped()

It reports steps, figures and checkpoints to the run, as lines of JSON in the file that the environment
variable TRAINYARD_EVENTS names. On SIGTERM, or when the file that TRAINYARD_STOP_FILE names exists, all ranks
save a checkpoint after the same step and stop. Without TRAINYARD_EVENTS, which must be set for every rank, it
does nothing. It is not for use together with `enable_jit_checkpoint`, which handles SIGTERM too.

This file needs transformers and torch only: it may be copied beside a script.
"""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from transformers import TrainerCallback

STOPPED = 75
"""The exit code of a program that stopped early with a checkpoint: start it again."""


class TrainyardCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Reports training to a run and stops it. Every rank has one; rank 0 writes."""

    def __init__(self) -> None:
        self.stopped = False
        """Whether training stopped early on request, with a checkpoint."""
        self._file = os.environ.get("TRAINYARD_EVENTS", "")
        self._writes = False
        self._pending: tuple[int, str] | None = None
        self._signal_received = False
        self._previous: Any = None
        self._process = 0
        self._group: Any = lambda: None
        """A weak reference to the group to vote in, because no method is called after an exception."""

    def exit_if_stopped(self) -> None:
        """Exit with 75 if training stopped early, so that launchers see that steps are left to do."""
        if self.stopped:
            sys.exit(STOPPED)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopped = self._signal_received = False
        self._writes = bool(self._file) and state.is_world_process_zero
        self._pending = None
        self._write("begin", state.global_step, steps=state.max_steps)
        if not self._file:
            return
        if not getattr(args, "enable_jit_checkpoint", False):
            self._handle_sigterm()
            _keep_workers(kwargs.get("train_dataloader"))
        if args.world_size > 1 and self._group() is None:
            # A group of its own: the vote neither waits for the GPU nor mixes with the trainer's collectives.
            with contextlib.suppress(Exception):
                self._group = weakref.ref(torch.distributed.new_group(backend="gloo"))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "train_loss" not in logs:  # those are means over the run
            self._write("row", state.global_step, logs)

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
        if self._file and self._agree_on_stop() and not control.should_training_stop:
            self.stopped = True
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Neither evaluate nor save again on the way out: the time until SIGKILL is short."""
        if self.stopped:
            control.should_evaluate = control.should_save = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (group := self._group()) is not None:
            self._agree_on_stop()  # every rank is here, so every rank has left the last save
            with contextlib.suppress(Exception):  # its threads can abort an interpreter that ends
                torch.distributed.destroy_process_group(group)
            del group
        self._report_checkpoint()
        self._write("end", state.global_step, steps=state.max_steps)
        self._restore_handler()

    def _agree_on_stop(self) -> bool:
        """Return whether any rank wants to stop; every rank gets the same answer."""
        file = os.environ.get("TRAINYARD_STOP_FILE")
        wanted = self._signal_received or bool(file and os.path.exists(file))
        if (group := self._group()) is None:
            return wanted
        vote = torch.tensor([int(wanted)])
        with contextlib.suppress(Exception):
            torch.distributed.all_reduce(vote, op=torch.distributed.ReduceOp.MAX, group=group)
        return bool(vote.item())

    def _handle_sigterm(self) -> None:
        if self._previous is None and threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
            self._process = os.getpid()
            signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a forked worker: end as it would have without this
            self._restore_handler()
            os.kill(os.getpid(), number)
            return
        self._signal_received = True
        if callable(self._previous):
            self._previous(number, frame)

    def _restore_handler(self) -> None:
        if self._previous is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._receive:
                signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _report_checkpoint(self) -> None:
        if self._pending is not None:
            step, path = self._pending
            self._pending = None
            self._write("saved", step, path=path)

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


def _number(value: Any) -> float | str | None:
    """Return a figure as a number of JSON; `nan`, `inf` or `-inf` if it is not finite; None if it is none."""
    try:
        number = value if type(value) is int and abs(value) < 1 << 63 else float(value)
        return number if math.isfinite(number) else str(number)
    except Exception:
        return None


def _files(path: str) -> dict[str, list[int]]:
    """Return size and time of modification (ns) of each file in a folder, by its path there."""
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    facts_of = {file: os.stat(file) for file in files if os.path.exists(file)}
    return {os.path.relpath(file, path): [f.st_size, f.st_mtime_ns] for file, f in facts_of.items()}
