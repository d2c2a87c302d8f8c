"""Trainyard: push a commit, get a trained model you can prove.

The library behind `scripts/`. `docs/architecture.md` draws the path of the data through its folders.

A training program may call five functions of this module, which needs nothing but Python's standard library:

    import trainyard

    start = load(trainyard.latest_checkpoint())          # None: train from the beginning
    trainyard.begin(start, steps)
    for step in range(start + 1, steps + 1):
        trainyard.log(step=step, loss=train(step))
        if step % 100 == 0 or (stop := trainyard.stop_requested()):
            trainyard.checkpoint(save(step), step=step)  # after the file is on disk
        if stop:
            sys.exit(75)

They append JSON lines to the file that the environment variable TRAINYARD_EVENTS names; rank 0 writes them.
Without that variable they do nothing. No value, file or signal makes them raise an exception: a figure that
is no number is left out, and a line that cannot be written is dropped. Callbacks use the other functions.
"""

import os
import sys
import time
from types import ModuleType

TYPE_CHECKING = False  # that of `typing` would import it
if TYPE_CHECKING:
    from collections.abc import Callable

__version__ = "0.1.0"


def begin(step: int, steps: int | None = None) -> None:
    """Record that training starts after `step` steps, 0 for a new model, and is to end after `steps`.

    `steps` is None where the program does not know it.
    """
    _append("begin", step, {"steps": steps})


def log(*, step: int, **figures: object) -> None:
    """Record figures of optimizer step `step`, the first one being 1: `loss`, `learning_rate`, any name.

    A figure is a number, a scalar of NumPy or torch, or any object that `float` accepts.
    """
    _append("row", step, figures)


def checkpoint(path: str | os.PathLike[str], *, step: int) -> None:
    """Record that the file or folder `path` is completely written and holds the state after `step` steps.

    Where several processes write it, call this after a barrier.
    """
    _append("saved", step, {}, path)


def end(step: int, steps: int | None = None) -> None:
    """Record that training has ended by itself after `step` of `steps` steps, early or not."""
    _append("end", step, {"steps": steps})


def latest_checkpoint() -> str | None:
    """Return the path of the checkpoint to resume from, or None: train from the beginning."""
    return (os.environ.get("TRAINYARD_CHECKPOINT") or None) if has_run() else None


def stop_requested() -> bool:
    """Return whether to save a checkpoint now and exit with 75, because of SIGTERM or the run's deadline.

    The first call handles SIGTERM from then on, and passes it to the handler that the program had set before.
    The answer is that of this process. Where torch.distributed is initialized, all ranks get the same answer:
    then every rank must call this in its main thread after the same steps.

    SIGTERM reaches the worker processes of a DataLoader, too, and without them it raises an exception: let
    its `worker_init_fn` ignore the signal.
    """
    return has_run() and _STOP.requested()


def has_run() -> bool:
    """Return whether the program is part of a run, which reads its events."""
    return bool(os.environ.get("TRAINYARD_EVENTS"))


def _append(
    event: str, step: object, figures: dict[str, object], path: str | os.PathLike[str] | None = None
) -> None:
    """Append a line in one write. An incomplete line of another process is ended first."""
    file = os.environ.get("TRAINYARD_EVENTS")
    try:
        if not file or _rank() != 0:
            return
        import json

        numbers = {name: number for name in figures if (number := _number(figures[name])) is not None}
        number = _number(step)
        if isinstance(number, str) or number is None or number != int(number) or number < 0:
            return
        fields: dict[str, object] = {**numbers, "event": event, "step": int(number), "time": time.time()}
        if path is not None:
            fields |= {"path": os.path.abspath(os.fsdecode(path)), "files": files_of(os.fsdecode(path))}
        # A pipe without a reader or a terminal must not hold the program up.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(file, flags, 0o644)
        try:
            os.write(descriptor, f"\n{json.dumps(fields)}\n".encode())
        finally:
            os.close(descriptor)
    except Exception:
        return


def _number(value: object) -> int | float | str | None:
    """Return a figure as a number of JSON; `nan`, `inf` or `-inf` if it is not finite; None if it is none."""
    try:
        item = getattr(value, "item", None)
        value = item() if callable(item) else value
        if isinstance(value, int):
            whole = int(value)
            if abs(whole) > sys.float_info.max:
                return "inf" if whole > 0 else "-inf"
            return whole if abs(whole) < 1 << 63 else float(whole)
        number = float(value)  # type: ignore[arg-type]
        return number if abs(number) <= sys.float_info.max else str(number)
    except Exception:
        return None


def files_of(path: str) -> dict[str, list[int]]:
    """Return size and time of modification (ns) of a file, or of each file in a folder by its path there."""
    if not os.path.isdir(path):
        facts = os.stat(path)
        return {os.path.basename(path): [facts.st_size, facts.st_mtime_ns]}
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    facts_of = {file: os.stat(file) for file in files if os.path.exists(file)}
    return {os.path.relpath(file, path): [f.st_size, f.st_mtime_ns] for file, f in facts_of.items()}


def _rank() -> int:
    distributed = _distributed()
    return int(distributed.get_rank()) if distributed else int(os.environ.get("RANK") or 0)


def _distributed() -> ModuleType | None:
    """Return torch.distributed where the program has initialized it, else None. Torch is not imported."""
    module = sys.modules.get("torch.distributed")
    return module if module and module.is_available() and module.is_initialized() else None


class StopRequest:
    """The request to stop one training: SIGTERM, or the file that TRAINYARD_STOP_FILE names."""

    def __init__(self) -> None:
        self.signal_received = False
        self._is_agreed = self._is_installed = False
        self._previous: object = None
        self._vote: tuple[Callable[[], object], Callable[[], object]] | None = None

    def requested(self) -> bool:
        """Return whether to stop; it raises no exception. All ranks must call it after the same steps."""
        try:
            if not self._is_agreed:
                self.install()
                file = os.environ.get("TRAINYARD_STOP_FILE")
                wanted = self.signal_received or bool(file and os.path.exists(file))
                self._is_agreed = self._agree(wanted)
            return self._is_agreed
        except Exception:
            return self.signal_received

    def install(self, *, anew: bool = False) -> None:
        """Handle SIGTERM from now on; with `anew` also if another handler was set since."""
        import signal
        import threading

        if (self._is_installed and not anew) or threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._receive)
        self._is_installed = True
        # A forked worker ends on SIGTERM as it did before.
        os.register_at_fork(after_in_child=self._uninstall)

    def close(self) -> None:
        """End the group to vote in, and restore the handler of SIGTERM: for the main thread."""
        self._destroy_group(os.getpid())
        self._uninstall()

    def _receive(self, number: int, frame: object) -> None:
        self.signal_received = True
        if callable(self._previous):
            self._previous(number, frame)

    def _uninstall(self) -> None:
        import signal

        if self._is_installed and signal.getsignal(signal.SIGTERM) == self._receive:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)  # type: ignore[arg-type]
            self._is_installed = False

    def _agree(self, wanted: bool) -> bool:
        """Return whether any rank wants to stop. The ranks vote in a group of their own, over gloo."""
        distributed = _distributed()
        if not distributed or distributed.get_world_size() == 1 or not distributed.is_gloo_available():
            return wanted
        group = self._group(distributed)
        vote = sys.modules["torch"].tensor([int(wanted)])
        distributed.all_reduce(vote, op=distributed.ReduceOp.MAX, group=group)
        return bool(vote.item())

    def _group(self, distributed: ModuleType) -> object:
        """Return the group to vote in, a new one for each world.

        Only torch.distributed holds it: a group that outlived `destroy_process_group` would have threads at
        the interpreter's end, which can abort the program.
        """
        import atexit
        import weakref

        world = distributed.group.WORLD
        group = self._vote[1]() if self._vote and self._vote[0]() is world else None
        if group is None:
            if self._vote is None:
                atexit.register(self._destroy_group, os.getpid())
            group = distributed.new_group(backend="gloo")
            self._vote = (weakref.ref(world), weakref.ref(group))
        return group

    def _destroy_group(self, process: int) -> None:
        """Destroy the group at the end of `process` if it is left. A fork has none of its threads."""
        try:
            group = self._vote[1]() if self._vote and os.getpid() == process else None
            if group is not None and (distributed := _distributed()):
                distributed.destroy_process_group(group)
        except Exception:
            return


_STOP = StopRequest()
