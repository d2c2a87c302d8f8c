"""Observe the training in this interpreter: the one module that `trainyard run` puts on a program's path.

Python imports it at its start. It imports the `sitecustomize` of the environment, which it hides, and takes
its own folder off `sys.path`. Without TRAINYARD_EVENTS that is all. With it, it appends the events that
`programs/program_events.py` states to that file: the steps of torch's optimizers and the loss, the saves, the
world and the machine, the modules that were imported, and the exception that ended the interpreter.

It runs inside somebody else's program. It needs the standard library only (Python 3.8 or later), imports
nothing at its start whose name a module of the program could have, never raises, prints, starts a thread or
imports torch, and waits for no GPU. It is idle under compile tracing, in the capture of a CUDA graph, and in
workers of a DataLoader.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # that of `typing` would import it
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
# The steps before the first number have a row each, and half as many in each doubling from there: `learned`
# reads the end of a training of a second, too. Of the others one has a row after so many seconds.
FAST_ROWS, ROW_SECONDS = 100, 0.5
MODULES_SECONDS, MOST_FILES = 10.0, 5000
# Losses that are on their way from the GPU, and how long the last ones are waited for at the end.
MOST_PENDING, LAST_SECONDS = 128, 1.0
# A file in the folder of a save is of that save if it is not older, up to the resolution of file times.
SAME_SAVE_NS = 1_000_000_000
# Module -> its functions that save, as CLASS.NAME or NAME; the parameter that has the path is the second one.
SAVES = {
    "safetensors.torch": {"save_file": "filename", "save_model": "filename"},
    "torch.distributed.checkpoint.state_dict_saver": {"save": "checkpoint_id", "async_save": "checkpoint_id"},
    "transformers.modeling_utils": {"PreTrainedModel.save_pretrained": "save_directory"},
    "peft.peft_model": {"PeftModel.save_pretrained": "save_directory"},
    # Lightning and Fabric save into memory, and write that with fsspec.
    "lightning.fabric.utilities.cloud_io": {"_atomic_save": "filepath"},
    "lightning_fabric.utilities.cloud_io": {"_atomic_save": "filepath"},
}
MACHINE = {
    "torch": "__version__",
    "cuda": "version.cuda",
    "hip": "version.hip",
    "threads": "get_num_threads",
    "seed": "initial_seed",
    "deterministic": "are_deterministic_algorithms_enabled",
    "cudnn_deterministic": "backends.cudnn.deterministic",
    "cudnn_benchmark": "backends.cudnn.benchmark",
}


def quietly(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` without its errors."""

    def guarded(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except Exception:
            return None

    return guarded


def encode(value: Any) -> str:
    """Return a value as JSON. The module `json` would be imported: the program may have one of its own."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else f'"{float(value)!r}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{encode(str(name))}: {encode(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(encode, value)) + "]"
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(str(value))


def ancestors() -> list[int]:
    """Return the ids of the processes above this one, the nearest first."""
    found = [os.getppid()]
    try:
        while found[-1] > 1 and len(found) < 32:
            with open(f"/proc/{found[-1]}/stat", "rb") as file:
                found.append(int(file.read().rpartition(b")")[2].split()[1]))
    except OSError:  # another system
        pass
    return found


def repository_or(folder: str) -> str:
    """Return the root of the repository around a folder, else the folder."""
    root = folder
    while not os.path.exists(os.path.join(root, ".git")):
        if root == os.path.dirname(root):
            return folder
        root = os.path.dirname(root)
    return root


def is_below(path: str, root: str) -> bool:
    """Return whether a file is code in `root`, and not of an environment that lies in it."""
    is_installed = f"{os.sep}site-packages{os.sep}" in path or path.startswith((sys.prefix + os.sep, FOLDER))
    return path.startswith(root + os.sep) and not is_installed


def imported_files(main: str, root: str) -> Iterator[str]:
    """Yield the files in `root` that were imported, and that of the main module."""
    paths = [main]
    for module in list(sys.modules.values()):
        try:  # the attributes of a lazy module would import it
            paths.append(object.__getattribute__(module, "__dict__").get("__file__"))
        except Exception:
            continue
    for path in paths:
        path = os.path.abspath(path) if isinstance(path, str) else ""
        if is_below(path, root) and os.path.isfile(path):
            yield path


def resolve(torch: Any, name: str) -> Any:
    found = torch
    for each in name.split("."):
        found = getattr(found, each)
    return found() if callable(found) else found


def first_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline().strip()


def files_of(path: str, began: int) -> dict[str, list[int]]:
    """Return size, time (ns), device and inode of a file, or of the files in a folder that a save wrote."""
    names = [os.path.basename(path)]
    if os.path.isdir(path):
        inside = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        path, names = os.path.join(path, ""), [os.path.relpath(each, path) for each in inside]
    found = {}
    for name in names[:MOST_FILES]:
        facts = os.stat(os.path.join(os.path.dirname(path), name))
        if facts.st_mtime_ns >= began - SAME_SAVE_NS:
            found[name] = [facts.st_size, facts.st_mtime_ns, facts.st_dev, facts.st_ino]
    return found


def find_cause(error: Any) -> tuple[Any, str, str]:
    """Return the deepest exception of a chain, its text if it is another one, and the chain's deepest code.

    A code is an errno, or what a service answered: an HTTP status, or AWS's own name.
    """
    cause = code = ""
    for number in range(20):
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None) or getattr(error, "status", None)
        if isinstance(response, dict):
            code = f"({response.get('Error', {}).get('Code')}) when calling"
        elif isinstance(status, int) and status >= 400:
            code = f"HTTP {status}"
        elif isinstance(getattr(error, "errno", None), int):
            code = f"[Errno {error.errno}]"
        if number:
            cause = f"{type(error).__name__}: {quietly(str)(error) or ''}"[:1000]
        deeper = error.__cause__
        # What a fallback was tried for (a key, a module) is no cause.
        fallbacks = (KeyError, AttributeError, ImportError, StopIteration)
        if deeper is None and not error.__suppress_context__ and not isinstance(error.__context__, fallbacks):
            deeper = error.__context__
        if deeper is None:
            break
        error = deeper
    return error, cause, code


class Observer:
    """Counts and reports what one process of the program does."""

    def __init__(self, file: str) -> None:
        self._file, self._root = file, repository_or(os.getcwd())
        self._script = (getattr(sys, "argv", None) or [""])[0]
        self._main_file = os.path.abspath(self._script)  # at the end the main module has none any more
        self._torch: Any = None
        self._is_compiling: Callable[[], bool] = lambda: False
        self.hooks = {
            "torch": self.arm,
            "torch.distributed.fsdp.sharded_grad_scaler": self.watch_scaler,
            **dict.fromkeys(SAVES, self.watch_saves),
        }
        self._reset()
        os.register_at_fork(after_in_child=quietly(self._reset))
        atexit.register(quietly(self.end))

    def _reset(self) -> None:
        """Start from nothing: what a forked process has is of its parent."""
        self.step, self._main = 0, get_ident()
        self._is_known = self._has_machine = self._has_ended = False
        self._steps_of: Any = self._new_steps() if self._torch else None
        self._loss: Any = None  # of the last backward pass
        self._backwards = 0  # since an optimizer has stepped
        self._row: Any = None  # of the last step, if it has none yet
        self._rows: list[Any] = []  # whose loss is still copied from the GPU
        self._row_time = self._modules_time = 0.0
        self._scaled: Any = (lambda: None, None)
        self._slots: Any = None
        self._open: list[Any] = []  # saves into files that the program has not closed yet
        self._saving: set[int] = set()  # threads
        self._background = 0
        self._modules: dict[str, tuple[int, int]] = {}

    def report(self, event: str, **facts: Any) -> None:
        """Append a line in one write; the first one of a process says which it is."""
        lines = [(event, facts)]
        if not self._is_known:
            self._is_known = True
            facts = {"python": sys.version.split()[0], "script": self._script, "parents": ancestors()}
            lines.insert(0, ("loaded", facts))
        place = {"source": "observed", "pid": os.getpid(), "rank": self._rank(), "time": time.time()}
        text = "".join(encode({"event": name, **place, **each}) + "\n" for name, each in lines if name)
        # A pipe without a reader must not hold the program up. A descriptor that is kept could be closed by
        # the program, and then be another file's.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        descriptor = os.open(self._file, flags, 0o644)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _world(self) -> dict[str, Any]:
        group: Any = sys.modules.get("torch.distributed")
        if group is not None and group.is_available() and group.is_initialized():
            return {"rank": group.get_rank(), "size": group.get_world_size(), "backend": group.get_backend()}
        return {"rank": int(os.environ.get("RANK") or 0), "size": int(os.environ.get("WORLD_SIZE") or 1)}

    def _rank(self) -> int:
        return int((quietly(self._world)() or {"rank": 0})["rank"])

    # The hooks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as the others of `sys.meta_path` do; call its hook once it is imported."""
        if name not in self.hooks:
            return None
        others = [each.find_spec for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        spec = next((found for found in (find(name, path, target) for find in others) if found), None)
        if spec is not None:
            quietly(self._follow)(spec.loader, quietly(self.hooks[name]))
        return spec

    def _follow(self, loader: Any, call: Callable[[Any], None]) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.__dict__.pop("exec_module", None)
            execute(module)
            call(module)

        loader.exec_module = exec_module

    def arm(self, torch: Any) -> None:
        """Hook into torch, which the program has just imported."""
        if self._torch:
            return
        self._torch, self._steps_of = torch, self._new_steps()
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._is_compiling)
        is_compiling, count, modules = self._is_compiling, quietly(self._count), sys.modules

        def after_step(optimizer: Any, _args: Any, _options: Any) -> None:
            if not is_compiling():
                count(optimizer)

        optimizers: Any = modules["torch.optim.optimizer"]
        quietly(lambda: optimizers.register_optimizer_step_post_hook(after_step))()
        self._watch(torch.Tensor, "backward", before=self._keep_loss)
        self._watch(os, "_exit", before=self._leave)
        self._watch_save(torch, "save", "f")
        quietly(lambda: setattr(torch.serialization, "save", torch.save))()
        scalers = modules.get("torch.amp.grad_scaler") or modules.get("torch.cuda.amp.grad_scaler")
        quietly(self.watch_scaler)(scalers)

    def _watch(self, owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        """Call `before(*args)` and `after(its answer, result, *args)` with each call of a function.

        The result is NotImplemented for a call that raises. Torch's compiler skips the frame in between.
        """
        from functools import wraps

        first, last = quietly(before or (lambda *_, **__: None)), quietly(after or (lambda *_, **__: None))

        def watch() -> None:
            function = getattr(owner, name)

            def watched(*args: Any, **options: Any) -> Any:
                token, result = first(*args, **options), NotImplemented
                try:
                    result = function(*args, **options)
                finally:
                    last(token, result, *args, **options)
                return result

            setattr(owner, name, wraps(function)(watched))
            frames = self._torch._C._dynamo.eval_frame
            skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
            frames.set_code_exec_strategy(watched.__code__, skip)

        quietly(watch)()

    def watch_scaler(self, module: Any) -> None:
        for name in {"GradScaler", "ShardedGradScaler"} & vars(module).keys():
            if "scale" in vars(getattr(module, name)):
                self._watch(getattr(module, name), "scale", after=self._keep_scaled)

    def watch_saves(self, module: Any) -> None:
        """Hook into the functions of SAVES in a module that the program has just imported."""
        for name, parameter in SAVES[module.__name__].items():
            owner, _, method = name.rpartition(".")
            self._watch_save(getattr(module, owner, None) if owner else module, method, parameter)

    def _watch_save(self, owner: Any, name: str, parameter: str) -> None:
        call = f"{getattr(owner, '__name__', '')}.{name}"

        def begin(*_args: Any, **_options: Any) -> Any:
            thread = get_ident()
            # A part of another save, or of one that runs in the background.
            if thread in self._saving or (self._background and thread != self._main):
                return None
            self._saving.add(thread)
            self._background += name == "async_save"
            return thread, time.time_ns(), self.step

        def end(token: Any, result: Any, *args: Any, **options: Any) -> None:
            if token is not None:
                thread, began, step = token
                self._saving.discard(thread)
                where = options.get(parameter, args[1] if len(args) > 1 else options.get("storage_writer"))
                future = getattr(result, "upload_completion", result)
                if hasattr(future, "add_done_callback"):
                    future.add_done_callback(quietly(lambda ended: done(ended, (call, where, began, step))))
                    return
                self._background -= name == "async_save"
                if result is not NotImplemented:
                    self._note_save(call, where, began, step)

        def done(future: Any, save: Any) -> None:
            self._background -= 1
            if future.exception() is None:
                self._report_save(*save)

        self._watch(owner, name, begin, end)

    def _leave(self, _status: int) -> None:
        """Report the end of forked workers, and of programs that do not wait for their threads."""
        if self.step:
            self.end()

    # Steps and losses

    def _new_steps(self) -> Any:
        from weakref import WeakKeyDictionary

        return WeakKeyDictionary()

    def _is_idle(self) -> bool:
        cuda, worker = self._torch.cuda, sys.modules.get("torch.utils.data._utils.worker")
        is_capturing = cuda.is_initialized() and cuda.is_current_stream_capturing()
        return self._is_compiling() or is_capturing or getattr(worker, "_worker_info", None) is not None

    def _keep_scaled(self, _token: Any, scaled: Any, _scaler: Any, loss: Any) -> None:
        """Keep the loss of what GradScaler made. That has the graph, which must not live longer."""
        from weakref import ref

        self._scaled = (ref(scaled), loss.detach())

    def _keep_loss(self, tensor: Any, *_args: Any, **_options: Any) -> None:
        """Keep the scalar of a backward pass. One on a GPU is read later: reading would wait."""
        if self._is_idle():
            return
        scaled, loss = self._scaled
        loss = loss if scaled() is tensor else tensor
        self._backwards += 1
        self._loss = None
        # The tensors of other dispatchers, such as DTensor, would communicate.
        is_plain = type(loss).__torch_dispatch__ is self._torch.Tensor.__torch_dispatch__
        if is_plain and loss.numel() == 1 and loss.is_floating_point():
            kind = loss.device.type
            self._loss = loss.item() if kind == "cpu" else loss.detach() if kind == "cuda" else None

    def _count(self, optimizer: Any) -> None:
        """Count a step of the program: one of an optimizer that has stepped since the last one was counted.

        GAN pairs and per-parameter optimizers step once each in an iteration. An optimizer that follows on
        another, which is no more, continues its count.
        """
        if self._is_idle():
            return
        last, steps = self._steps_of.get(optimizer), self._steps_of
        is_new = last == self.step if last is not None else self.step not in steps.values()
        self.step += is_new
        steps[optimizer] = self.step
        if is_new:
            self._note_step(optimizer)
        self._backwards, self._loss = 0, None

    def _note_step(self, optimizer: Any) -> None:
        rate, now = optimizer.param_groups[0].get("lr"), time.monotonic()
        self._row = (rate, self._backwards, self._loss)
        is_due = self.step % (1 << (self.step // FAST_ROWS).bit_length()) == 0
        if is_due or now - self._row_time >= ROW_SECONDS:
            self._row_time = now
            self._begin_row()
        if self._rows:
            self._write_rows()
        if not self._has_machine:
            self._note_machine()
        if self._open:
            self._report_closed()

    def _begin_row(self) -> None:
        """Start the row of this step; a loss on a GPU is copied behind what the GPU has yet to do."""
        if self._row is None or len(self._rows) >= MOST_PENDING or self._rank():
            return
        (rate, backwards, loss), self._row = self._row, None
        row, done = {"step": self.step, "time": time.time()}, None
        if isinstance(rate, (int, float)):
            row["learning_rate"] = rate
        if backwards > 1:
            row["accumulated"] = backwards
        if loss is not None and not isinstance(loss, float):
            torch: Any = self._torch
            if self._slots is None:
                self._slots = torch.empty(MOST_PENDING, dtype=torch.float32, pin_memory=True)
            slot, done = self._slots[self.step % MOST_PENDING], torch.cuda.Event()
            slot.copy_(loss.reshape(()), non_blocking=True)
            done.record()
            loss = slot
        self._rows.append((row, loss, done))

    def _write_rows(self, until: float = 0.0) -> None:
        """Write the rows whose loss has arrived; the others are waited for up to a time."""
        while self._rows:
            row, loss, done = self._rows[0]
            while done is not None and not done.query():
                if time.monotonic() >= until:
                    return
                time.sleep(0.001)
            del self._rows[0]
            self.report("row", **row, **({} if loss is None else {"loss": float(loss)}))

    # Saves

    def _note_save(self, call: str, where: Any, began: int, step: int) -> None:
        """Report a save that has returned; one into a file that is open, when that is closed."""
        name = getattr(where, "name", None)
        if isinstance(name, str) and hasattr(where, "closed"):
            from weakref import ref

            self._open.append((ref(where), call, os.path.abspath(name), began, step))
        else:
            self._report_save(call, where, began, step)

    def _report_closed(self) -> None:
        kept, self._open = self._open, []
        for each in kept:
            file = each[0]()
            if file is not None and not file.closed:
                self._open.append(each)
            else:
                quietly(self._report_save)(*each[1:])

    def _report_save(self, call: str, where: Any, began: int, step: int) -> None:
        path = where if isinstance(where, (str, bytes, os.PathLike)) else where.path  # of a writer of DCP
        path = os.path.abspath(os.fsdecode(path))
        if not (os.path.isdir(path) and self._rank()):
            self.report(
                "saved", **({"step": step} if step else {}), path=path, call=call, files=files_of(path, began)
            )
        if time.monotonic() - self._modules_time >= MODULES_SECONDS:
            self._note_modules()

    # Facts

    def _note_machine(self) -> None:
        """Report the world and the machine, which the program has set up by its first step."""
        self._has_machine = True
        torch: Any = self._torch
        facts = {name: quietly(resolve)(torch, place) for name, place in MACHINE.items()}
        facts["host"], facts["world"] = os.uname().nodename, quietly(self._world)()
        if torch.cuda.is_initialized():
            facts["driver"] = quietly(first_line)("/proc/driver/nvidia/version")
            facts["gpus"] = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        self.report("machine", **{name: fact for name, fact in facts.items() if fact is not None})
        self._note_modules()

    def _note_modules(self) -> None:
        """Report the code of the repository that was imported, or has changed since, with its SHA-256."""
        self._modules_time, found = time.monotonic(), {}
        from hashlib import sha256

        for path in () if self._rank() else set(imported_files(self._main_file, self._root)):
            facts = os.stat(path)
            state = (facts.st_size, facts.st_mtime_ns)
            if self._modules.get(path) != state:
                with open(path, "rb") as file:
                    found[path] = sha256(file.read()).hexdigest()
                self._modules[path] = state
        if found:
            self.report("modules", files=found)

    def _note_exception(self) -> None:
        """Report the exception that ended the interpreter, also if the program replaced `sys.excepthook`.

        The traceback of one that a console or a notebook has shown begins in a frame that others called.
        """
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        trace = getattr(error, "__traceback__", None)
        if trace is None or trace.tb_frame.f_back is not None:
            return
        deepest, cause, code = quietly(find_cause)(error) or (error, "", "")
        places = []
        for frames in (trace, getattr(deepest, "__traceback__", None)):
            while frames is not None:
                places.append((os.path.abspath(frames.tb_frame.f_code.co_filename), frames.tb_lineno))
                frames = frames.tb_next
        file, line = ([each for each in places if is_below(each[0], self._root)] or places)[-1]
        file = os.path.relpath(file, self._root) if is_below(file, self._root) else file
        message = (quietly(str)(error) or "")[:1000]
        name = type(error).__name__
        self.report("exception", type=name, message=message, place=f"{file}:{line}", cause=cause, code=code)

    def end(self) -> None:
        """Report the last row and what was not reported yet, the exception, and the end."""
        if self._has_ended or not (self._is_known or self.step):
            return
        self._has_ended = True
        quietly(self._begin_row)()
        quietly(self._write_rows)(time.monotonic() + LAST_SECONDS)
        quietly(self._report_closed)()
        quietly(self._note_modules)()
        quietly(self._note_exception)()
        self.report("exit", **({"step": self.step} if self.step else {}))


def observe() -> None:
    """Begin to observe this interpreter."""
    observer: Any = Observer(os.environ["TRAINYARD_EVENTS"])
    observer.report("")
    sys.meta_path.insert(0, observer)
    for name in observer.hooks.keys() & sys.modules.keys():  # a .pth file has imported it
        quietly(observer.hooks[name])(sys.modules[name])


def import_hidden() -> None:
    """Import the sitecustomize that this one hides; what it raises is raised, as without this one."""
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != FOLDER]
    this = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        sys.modules["sitecustomize"] = this
        if error.name != "sitecustomize":
            raise


if __name__ == "sitecustomize":
    if os.environ.get("TRAINYARD_EVENTS"):
        quietly(observe)()
    import_hidden()
