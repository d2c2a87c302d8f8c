"""Observe the training in this interpreter; the `sitecustomize` beside this module starts it.

It appends the events that `programs/program_events.py` states to the file of TRAINYARD_EVENTS: the steps of
torch's optimizers and the loss, whether they change the weights, rounds of xgboost and lightgbm, batches of
Keras, `partial_fit` of scikit-learn, saves, what torch.load reads before the first step, the world and the
machine, the modules that were imported, the exception that ended the interpreter, and the exit code.

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
MOST_FILES = 5000
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
    "joblib.numpy_pickle": {"dump": "filename"},
    "keras.src.saving.saving_api": {"save_model": "filepath", "save_weights": "filepath"},
    "xgboost.core": {"Booster.save_model": "fname"},
    "lightgbm.basic": {"Booster.save_model": "filename"},
    "orbax.checkpoint._src.checkpointers.checkpointer": {"Checkpointer.save": "directory"},
    "orbax.checkpoint._src.checkpointers.async_checkpointer": {"AsyncCheckpointer.save": "directory"},
}
# In the names of xgboost's metrics that fall; whether one of somebody's own falls is not known.
LOSSES = ("loss", "error", "rms", "mae", "mape", "mphe", "nloglik", "deviance", "quantile")
# Of the first optimizers so many parameters are watched, with so many numbers of each; the largest gradients
# of a parameter are searched in so many. A save is compared with them in so many of its tensors.
MOST_OPTIMIZERS, MOST_PARAMETERS, MOST_NUMBERS, MOST_SEARCHED, MOST_TENSORS = 8, 16, 64, 1 << 16, 4000
# So many numbers are searched in any order; fewer show nothing. So rarely does chance make numbers that
# follow from others.
MOST_SORTED, MOST_PAIRS, FEWEST_NUMBERS, CHANCE = 1 << 18, 1 << 14, 8, 1e-4
# So many numbers of a parameter show whether a file has it, in so many parameters of up to so many numbers.
EXCERPT, MOST_EXCERPTS, MOST_SHARED = 16, 8, 1 << 16
# The size of glibc's drand48_data; PROT_READ | PROT_WRITE, MAP_SHARED.
EXIT_BYTES, READ_WRITE, SHARED = 24, 3, 1
# A program that reads more files of torch than these before its first step reads data with it; one that
# loads more states than these into models does not undo a search by them.
MOST_READS, MOST_STATES, MOST_MODELS = 64, 16, 32
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


def file_of(module: Any) -> Any:
    """Return the file of a module; the attributes of a lazy one would import it."""
    return (quietly(object.__getattribute__)(module, "__dict__") or {}).get("__file__")


def imported_files(main: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the files in `root` that were imported with their modules, and that of the main module."""
    paths = [(main, ""), *((file_of(module), name) for name, module in list(sys.modules.items()))]
    for path, name in paths:
        path = os.path.abspath(path) if isinstance(path, str) else ""
        if is_below(path, root) and os.path.isfile(path):
            yield path, name


def imported_packages(but: set[str]) -> dict[str, list[str]]:
    """Return the modules that were imported from packages, by the folder of these, but for some.

    Of a namespace the first two words are given: `google/protobuf`.
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if name in but:
            continue
        place, path = name.replace(".", "/"), file_of(module)
        if "." in name and (name.count(".") > 1 or file_of(sys.modules.get(name.partition(".")[0]))):
            continue
        folder, mark, rest = str(path).rpartition("-packages" + os.sep)
        if mark and rest.startswith((place + os.sep, place + ".")):
            found.setdefault(folder + mark[:-1], []).append(place)
    return found


def resolve(torch: Any, name: str) -> Any:
    found = torch
    for each in name.split("."):
        found = getattr(found, each)
    return found() if callable(found) else found


def first_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline().strip()


def has_nan(value: Any, depth: int = 0) -> bool:
    """Return whether an array or a tensor in an object, such as a model of scikit-learn, has a NaN."""
    if hasattr(value, "dtype"):
        return bool(getattr(value.dtype, "kind", "f") == "f" and (value != value).any())
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts = value if isinstance(value, (list, tuple)) else list(inner.values())
    return depth < 6 and any(has_nan(each, depth + 1) for each in parts[:1000])


def dress(wrapper: Any, function: Any) -> Any:
    """Return a wrapper with the names of the function. The module `functools` would be imported for it."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        quietly(setattr)(wrapper, name, getattr(function, name, None))
    wrapper.__dict__.update(getattr(function, "__dict__", {}), __wrapped__=function)
    return wrapper


def have_common_parameter(one: Any, other: Any) -> bool:
    """Return whether two optimizers train the same parameter."""
    first, second = ({id(p) for group in each.param_groups for p in group["params"]} for each in (one, other))
    return not first.isdisjoint(second)


def leaves_of(loss: Any) -> Iterator[Any]:
    """Yield the parameters from which a loss was computed."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_SEARCHED:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable


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


def follow(file: Any) -> Callable[[], Any] | None:
    """Return a function that gives the path of an open file once it is closed, and False before.

    It may have been renamed by then. None for a pipe. The descriptor that is kept is one of a path: it does
    not hold the file open for writing, and closing it gives up no lock.
    """
    number = file.fileno()
    if not os.path.isfile(f"/proc/self/fd/{number}"):
        return None
    link = os.open(f"/proc/self/fd/{number}", os.O_PATH)
    known = os.fstat(link)

    def path() -> Any:
        if quietly(os.path.sameopenfile)(number, link):
            return False
        if not os.path.samestat(os.fstat(link), known):
            return None  # the program has closed every descriptor, and this is another file's now
        found = os.readlink(f"/proc/self/fd/{link}")
        os.close(link)
        return found

    return path


def compare_numbers(pairs: Any) -> tuple[bool, bool]:
    """Return whether numbers follow from others by more than chance, and whether all surely do not.

    A pair has the number of a parameter, numbers, and lists of others. The share of them that no constant
    and no multiples of the others explain is beta distributed where they have no relation.
    """
    best: dict[int, tuple[float, int]] = {}
    for number, found, *others in pairs:
        free, basis = len(found) - 3, [[1.0] * len(found)]
        for each in others:
            basis.append(without(each, basis))
        size = sum(each * each for each in without(found, basis[:1]))
        if free > 0 and size:
            share = sum(each * each for each in without(found, basis)) / size
            if share ** (free / 2) * len(pairs) < CHANCE:
                return True, False
            best[number] = min(best.get(number, (1.0, 0)), (share, free))
    total = sum(free for _, free in best.values())
    return False, total >= 5 and sum(share * free for share, free in best.values()) > total / 2


def without(numbers: list[float], basis: list[list[float]]) -> list[float]:
    """Return numbers without their parts along orthogonal lists."""
    left = [float(each) for each in numbers]
    for each in basis:
        size = sum(x * x for x in each)
        if size > 1e-12 * sum(x * x for x in numbers):
            along = sum(map(float.__mul__, left, each)) / size
            left = [x - along * each[place] for place, x in enumerate(left)]
    return left


def bytes_of(numbers: Any) -> str:
    """Return the bytes of a tensor, as they are in memory and in most files, in hexadecimal."""
    storage = numbers.cpu().clone().untyped_storage()
    return bytes(storage.tolist()).hex()


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


def has_left_loop(trace: Any, sites: dict[Any, int], frame: Any) -> bool:
    """Return whether an exception has ended a loop that made steps.

    `sites` has the line of each function at which it was when a step was made, and `frame` is one that runs
    now: the loop of the function that handles the exception may have the handler in it, and continue.
    """
    modules, first = sys.modules, trace.tb_frame
    while frame is not None and frame is not first:
        frame = frame.f_back
    while trace is not None:
        code, handler = trace.tb_frame.f_code, frame.f_lineno if trace.tb_frame is frame else 0
        if code in sites:
            lines = modules["linecache"].getlines(code.co_filename, trace.tb_frame.f_globals)
            for loop in modules["ast"].walk(modules["ast"].parse("".join(lines))):
                if type(loop).__name__ in ("For", "While", "AsyncFor"):
                    its_lines = range(loop.lineno, loop.end_lineno + 1)
                    if sites[code] in its_lines and trace.tb_lineno in its_lines and handler not in its_lines:
                        return True
        trace = trace.tb_next
    return False


class Sample:
    """Some numbers of a parameter: the `first` ones are from before its first step."""

    def __init__(self, parameter: Any, places: Any) -> None:
        from weakref import ref

        self.parameter, self.shape, self.places = ref(parameter), parameter.shape, places
        self.first = self.numbers_of(parameter)
        middle = parameter.detach().view(-1)[parameter.numel() // 2 :][:EXCERPT]
        self.excerpt = middle.clone()
        # It shares the memory of the parameter, and keeps it; the program may give it up before its end.
        size = parameter.untyped_storage().nbytes()
        self.shared: Any = middle if size <= MOST_SHARED * parameter.element_size() else None

    def numbers_of(self, tensor: Any) -> Any:
        """Return the numbers of a tensor of this shape at the same places."""
        return tensor.detach().reshape(-1)[self.places.to(tensor.device)]

    def is_first(self, tensor: Any) -> bool:
        """Return whether a tensor has the first numbers."""
        is_same = tensor.shape == self.shape
        return is_same and bool((self.numbers_of(tensor) == self.first.to(tensor)).all())

    @property
    def is_constant(self) -> bool:
        """Whether the first numbers may be in any model, as the zeros of a bias."""
        return not bool((self.first != self.first[0]).any())


class Weights:
    """Some numbers of the parameters that a process trains, as they were before its first step.

    Only plain tensors of 32 or 64 bits are watched: of a shard the numbers may be elsewhere later, and in 16
    bits a small step may be rounded off.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._owners = 0
        self._samples: list[Sample] = []
        self._every: list[Any] = []  # parameters that are trained
        self.is_all = True  # whether these are all of them, and each could be watched
        self._flag: Any = None
        self._copied: Any = None
        self.have_changed: Any = None  # None: not known
        self.has_read = False  # whether the program may have resumed

    def watch(self, parameters: Any, is_all: bool = True) -> None:
        """Keep numbers of an owner's parameters before it steps first: those with the largest gradients."""
        from weakref import ref

        every, self._owners = list(parameters), self._owners + 1
        given = [each for each in every if self._is_plain(each)]
        # A weak reference keeps torch from swapping a tensor, as `Module.to` does with a DTensor.
        self._every += [ref(each) for each in given if each.requires_grad]
        self.is_all &= is_all and len(given) == len(every) and self._owners <= MOST_OPTIMIZERS
        if self._owners > MOST_OPTIMIZERS:
            return
        moving = [each for each in given if each.grad is not None]
        dense = [each for each in moving or given if each.grad is None or self._is_plain(each.grad)]
        for each in dense[:: len(dense) // MOST_PARAMETERS + 1]:
            flat, pace = each.detach().view(-1), each.numel() // MOST_SEARCHED + 1
            size = (flat if each.grad is None else each.grad.detach().view(-1))[::pace].abs()
            self._samples.append(Sample(each, size.topk(min(MOST_NUMBERS, len(size))).indices * pace))

    def _is_plain(self, tensor: Any) -> bool:
        torch = self._torch
        if getattr(torch.__future__, "get_swap_module_params_on_conversion", bool)():
            return False  # see `watch`
        is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        is_exact = tensor.dtype in (torch.float32, torch.float64) and tensor.device.type in ("cpu", "cuda")
        return is_known and is_exact and tensor.is_contiguous() and tensor.numel() > 0

    def _current(self) -> Iterator[tuple[Sample, Any]]:
        """Yield the samples of the parameters that still exist, with the present numbers."""
        for sample in self._samples:
            parameter = sample.parameter()
            if (
                parameter is not None
                and parameter.shape == sample.shape
                and parameter.device == sample.first.device
            ):
                yield sample, sample.numbers_of(parameter)
            else:
                self.is_all = False

    def have_any(self, parameters: Any) -> bool:
        """Return whether one of these parameters was trained before, or may have been."""
        known = {id(each()) for each in self._every}
        return any(id(each) in known or not self._is_plain(each) for each in parameters)

    def is_undone(self, parameters: Any) -> bool:
        """Return whether the training was undone: the weights are those from before the first step again.

        They may be in the same parameters, or in a copy if those are no more.
        """
        if not self._samples or self.read(time.monotonic() + LAST_SECONDS) is not True:
            return False
        copies = [each for each in parameters if self._is_plain(each)]
        for sample in self._samples:
            parameter = sample.parameter()
            same = copies if parameter is None else [parameter]
            if not any(map(sample.is_first, same)):
                return False
        return not all(each.is_constant for each in self._samples)

    def compare(self) -> None:
        """Compare the parameters with their first numbers; on a GPU the answer comes later."""
        if self.have_changed or not self._samples:
            return
        torch, news = self._torch, [(now != sample.first).any() for sample, now in self._current()]
        if news and all(each.device.type == "cpu" for each in news):
            self.have_changed = any(map(bool, news))
        elif news:
            if self._flag is None:
                self._flag = torch.zeros(1, dtype=torch.bool, pin_memory=True)
            self.read()
            self._copied = torch.cuda.Event()
            self._flag.copy_(
                torch.stack([each.to(news[-1].device) for each in news]).any(), non_blocking=True
            )
            self._copied.record()

    def read(self, until: float = 0.0) -> Any:
        """Return whether the weights have changed, as far as the answers came by a time; None: not known."""
        while self._copied is not None and not self.have_changed:
            if self._copied.query():
                self.have_changed, self._copied = bool(self._flag), None
            elif time.monotonic() >= until:
                break
            else:
                time.sleep(0.001)
        return self.have_changed

    def excerpts(self, until: float) -> Any:
        """Return bytes of parameters, those of before the first step and those of now; None without any.

        They show what a file has whose save was not seen.
        """
        if not self._owners:
            return None
        # A program may have freed the memory of its parameters.
        shared = [each for each in self._samples if each.shared is not None and each.shared.untyped_storage()]
        for device in {each.shared.device for each in shared if each.shared.is_cuda}:
            while not self._torch.cuda.current_stream(device).query():
                if time.monotonic() >= until:
                    return []
                time.sleep(0.001)
        pairs = [(each.excerpt, each.shared) for each in shared[:: len(shared) // MOST_EXCERPTS + 1]]
        return [[bytes_of(first), bytes_of(last)] for first, last in pairs]

    def relation_of(self, saved: Any) -> str:
        """Return which weights are saved: the `trained` ones, or the `given` ones of before the first step.

        Those that are `near` follow from these by more than chance: an average, rounded ones, those of an
        earlier step. `other` ones have no relation with what is trained. `none`: no tensor
        is saved. `unknown`: nothing can be shown. Empty if no weight has changed.
        """
        torch, current = self._torch, list(self._current())
        watched = [(each, now) for each, now in current if bool((now != each.first).any())]
        # A program may load what it had copied before the training, as a best state that was never replaced.
        # After a resume these may be the best ones of the run.
        are_back = not watched and self.is_all and not self.has_read and self.read() is True
        watched = current if are_back else watched
        tensors = self._tensors_in(saved)
        if tensors == [] and self._samples:
            return "none"
        if not watched or not tensors:
            return "" if tensors == [] or (self.is_all and not watched) else "unknown"
        by_shape: dict[Any, Any] = {}
        answer, pairs = "", []
        for each in tensors:
            by_shape.setdefault(each.shape, []).append(each)
        for number, (sample, now) in enumerate(watched):
            for each in by_shape.get(sample.shape, ()):
                found, first = sample.numbers_of(each), sample.first
                # A constant, such as the zeros of a bias, may be in any model.
                is_exact = found.is_floating_point() and torch.equal(found, now.to(found))
                if is_exact and not are_back and bool((now != now[0]).any()):
                    return "trained"
                if not sample.is_constant and torch.equal(found, first.to(found)):
                    answer = "given"
                pairs += [(number, found.tolist(), now.tolist(), first.tolist())] if len(found) > 1 else []
        is_near, is_far = compare_numbers(pairs)
        if are_back:
            return answer
        if answer or is_near:
            return answer or "near"
        return self._judge_far(tensors, by_shape, has_pairs=bool(pairs), is_far=is_far or not pairs)

    def _tensors_in(self, saved: Any) -> Any:
        """Return the tensors of numbers in an object, without an optimizer's; None if some are hidden."""
        found: list[Any] = []
        torch, waiting, seen = self._torch, [saved], {}
        while waiting:
            each = waiting.pop()
            if each is None or isinstance(each, (str, bytes, int, float, type)) or id(each) in seen:
                continue
            seen[id(each)] = each
            if len(seen) > MOST_SEARCHED or len(found) > MOST_TENSORS:
                return None
            if isinstance(each, torch.Tensor):
                is_plain = type(each).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
                if not is_plain or each.layout is not torch.strided or each.is_quantized:
                    return None
                each = each.detach()
                numbers = torch.view_as_real(each.resolve_conj()) if each.is_complex() else each
                found += [] if each.dtype is torch.bool else [numbers]
            elif isinstance(each, torch.nn.Module):
                waiting += each.parameters()
            elif isinstance(each, dict):
                waiting += () if {"state", "param_groups"} <= each.keys() else each.values()
            elif isinstance(each, (list, tuple, set)):
                waiting += each
            elif hasattr(each, "__array_interface__"):
                waiting += [torch.from_numpy(each.copy())] if each.dtype.kind == "f" else []
            elif type(each).__name__ == "ExportedProgram":
                waiting.append(each.state_dict)
            elif hasattr(each, "__dict__"):
                waiting += () if isinstance(each, torch.optim.Optimizer) else vars(each).values()
            elif not isinstance(each, (torch.device, torch.dtype)):
                return None
        return found

    def _judge_far(self, tensors: Any, by_shape: Any, *, has_pairs: bool, is_far: bool) -> str:
        """Return whether tensors without the watched numbers are `near` or `other`, else `unknown`.

        They may be of a parameter that is not watched, quantized, or frozen weights with merged adapters. If
        no shape is known, an optimizer may also hold shards, or flat copies that are of no module.
        """
        import gc

        torch, every = self._torch, [each() for each in self._every]
        # isinstance would load a lazy object
        modules = [each for each in gc.get_objects() if torch.nn.Module in type(each).__mro__]
        held = [quietly(list)(each.parameters()) or [] for each in modules]
        trained = {*map(id, every)}
        inside = [each for some in held if not trained.isdisjoint(map(id, some)) for each in some]
        alive = {id(each): each for each in (*every, *inside) if each is not None}.values()
        if sum(len(by_shape.get(each.shape, ())) for each in alive) > MOST_PAIRS:
            return "unknown"
        # Frozen weights are in many saves that have nothing of what was trained beside them.
        moving = [each for each in alive if each.requires_grad or id(each) in trained]
        if self._have_parts(tensors, by_shape, moving):
            return "near"
        is_alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        size = sum(each.numel() for each in tensors)
        of_bytes = sum(each.numel() for each in tensors if each.dtype in (torch.int8, torch.uint8))
        is_searched = FEWEST_NUMBERS <= size <= MOST_SORTED
        is_known = has_pairs or (is_alone and is_searched and bool(inside))
        is_plain = 2 * of_bytes < size and all(each.requires_grad for each in alive)
        return "other" if self.is_all and is_far and is_known and is_plain else "unknown"

    def _have_parts(self, tensors: Any, by_shape: Any, parameters: Any) -> bool:
        """Return whether tensors have the numbers of a parameter, in any order, or near ones."""
        torch, pairs, parts = self._torch, [], []
        for number, each in enumerate(parameters):
            pace = each.numel() // MOST_NUMBERS + 1
            parts.append(each.detach().reshape(-1)[::pace].float().cpu())
            same = [other.reshape(-1)[::pace].tolist() for other in by_shape.get(each.shape, ())]
            pairs += [(number, found, parts[-1].tolist()) for found in same]
        exact = [each for each in tensors if each.is_floating_point()]
        is_near, size = compare_numbers(pairs)[0], sum(each.numel() for each in exact)
        if is_near or not 0 < size <= MOST_SORTED:
            return is_near
        numbers, found = torch.cat(parts), torch.cat([each.reshape(-1).float().cpu() for each in exact])
        is_there = torch.isin(numbers, found) & (numbers != 0) & (numbers != 1)
        return any(2 * int(each.sum()) >= max(4, len(each)) for each in is_there.split(list(map(len, parts))))


class Observer:
    """Counts and reports what one process of the program does."""

    def __init__(self, file: str) -> None:
        self._file, self._root = file, repository_or(os.getcwd())
        self._script = (getattr(sys, "argv", None) or [""])[0]
        self._main_file = os.path.abspath(self._script)  # at the end the main module has none any more
        words = getattr(sys, "orig_argv", [])  # Python 3.10 or later
        if self._script == "-m" and "-m" in words[:-1]:
            self._script = words[words.index("-m") + 1]
        self._torch: Any = None
        self._is_compiling: Callable[[], bool] = lambda: False
        self.hooks = {
            **dict.fromkeys(SAVES, self.watch_saves),
            "IPython.core.interactiveshell": self.watch_notebook,
            "torch": self.arm,
            "torch.distributed.fsdp.sharded_grad_scaler": self.watch_scaler,
            "keras.src.callbacks.callback_list": self.watch_keras,
            "lightgbm.basic": self.watch_lightgbm,
            "multiprocessing.popen_fork": self.watch_children,
            "multiprocessing.process": self.watch_run,
            "sklearn.base": self.watch_sklearn,
            "xgboost.core": self.watch_xgboost,
        }
        self._modules: dict[str, str] = {}  # path -> SHA-256; a forked process has the code of its parent
        self._edited: list[str] = []  # those that may have been edited between import and look
        self._sought: dict[str, float] = {}  # when the import of a module began
        self._imported = 0  # how many modules there were at the last look
        self._early = set(sys.modules)  # imported by .pth files of the environment
        self._reset()
        os.register_at_fork(after_in_child=quietly(self._reset))
        atexit.register(quietly(self.end))

    def _reset(self) -> None:
        """Start from nothing: what a forked process has is of its parent."""
        self._began = time.time()
        self.step, self._main = 0, get_ident()
        self._is_known = self._has_machine = self._has_ended = False
        self._of_passes = True  # backward passes are the steps until an optimizer steps
        self._steps_of: Any = None
        self._followed = 0  # the step that an optimizer made first, after another of its parameters; -1: any
        self._joined = 0  # the optimizer that has just stepped first, as part of a step that was counted
        self._loss: Any = None  # of the last backward pass
        self._bad: Any = None  # a loss since the last row that is not finite
        self._sum: Any = None  # of the losses on a GPU since the last row: NaN, if one of them is
        self._divisor = 1.0  # by which the program has divided the loss
        self._backwards = 0  # since an optimizer has stepped
        self._loaded: Any = None  # the steps that each optimizer had before it began: of its loaded state
        self._has_captured = False  # whether a CUDA graph has captured a step
        self._is_partial = False  # whether some steps were not seen, and neither were their losses
        self._batch, self._data, self._reads = -1, 0, 0
        self._figures: Any = None  # of the last step, if they are not reported yet
        self._has_loss = False  # whether a loss of that step was observed
        self._row: Any = None  # of the last step, if it has none yet
        self._rows: list[Any] = []  # whose loss is still copied from the GPU
        self._row_time = 0.0
        self._scaled: Any = (lambda: None, None, 1.0)
        self._slots: Any = None
        self._open: list[Any] = []  # saves into files that the program has not closed yet
        self._saving: set[int] = set()  # threads
        self._background = 0
        self._noted: set[str] = set()  # modules
        self._installed: dict[str, list[str]] = {}
        self._thread = 0  # the one that steps
        self._sites: dict[Any, int] = {}  # the line of each function that was running at a step
        self._thread_exception: dict[str, str] = {}  # which ended it
        self._code = 0  # given to os._exit
        self._stopped: set[int] = set()  # children that this process itself has sent a signal
        self._weights = Weights(self._torch)
        self._loads, self._is_loaded = 0, False  # states of models that were loaded after a step
        self._has_saved = False  # whether weights were saved after a step
        self._newest = 0  # the optimizer that came last
        self._models: Any = []  # the steps after which another model's training began; None: they take turns

    def report(self, event: str, **facts: Any) -> None:
        """Append a line in one write; the first one of a process says which it is."""
        lines = [(event, facts)]
        if not self._is_known:
            self._is_known = True
            facts = {"python": sys.version.split()[0], "script": self._script, "parents": ancestors()}
            facts["began"] = self._began
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
        self._sought.setdefault(name, time.time())
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
        self._torch, self._weights = torch, Weights(torch)
        quietly(self._note_modules)(reports=False)  # before somebody edits the program
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._is_compiling)
        is_compiling, count, modules = self._is_compiling, quietly(self._count), sys.modules
        sample = quietly(self._sample)

        # Torch's compiler traces these two, and would compile anew whenever what they read changes.
        def before_step(optimizer: Any, _args: Any, _options: Any) -> None:
            is_new = self._steps_of is None or optimizer not in self._steps_of
            if (is_new or self._is_loaded) and not is_compiling():
                sample(optimizer, is_new)

        def after_step(optimizer: Any, _args: Any, _options: Any) -> None:
            if not is_compiling():
                count(optimizer)

        optimizers: Any = modules["torch.optim.optimizer"]
        quietly(lambda: optimizers.register_optimizer_step_post_hook(after_step))()
        quietly(lambda: optimizers.register_optimizer_step_pre_hook(before_step))()
        quietly(self._skip)(count.__code__, "SKIP")  # of all that is guarded: the compiler sees none of it
        self._watch(optimizers.Optimizer, "__init__", after=self._note_loaded)
        self._watch(optimizers.Optimizer, "load_state_dict", after=self._note_loaded)
        self._watch(torch.nn.Module, "load_state_dict", after=self._note_state)
        self._watch(torch.Tensor, "backward", before=self._keep_loss, after=self._sample_leaves)
        self._watch(os, "_exit", before=self._leave)
        self._watch(modules["threading"], "excepthook", before=self._note_thread)
        self._watch(modules["traceback"].TracebackException, "__init__", before=self._note_caught)
        self._watch(torch, "load", before=self._note_read)
        scripts = map(vars(torch.jit).get, ("ScriptModule", "RecursiveScriptModule"))
        for owner in (torch, torch.jit, vars(torch).get("export"), *scripts):
            self._watch_save(owner, "save", "f")
        for name in ("load", "save"):
            quietly(setattr)(torch.serialization, name, getattr(torch, name))
        scalers = modules.get("torch.amp.grad_scaler") or modules.get("torch.cuda.amp.grad_scaler")
        quietly(self.watch_scaler)(scalers)

    def _watch(self, owner: Any, name: str, before: Any = None, after: Any = None) -> None:
        """Call `before(*args)` and `after(its answer, result, *args)` with each call of a function.

        The result is NotImplemented for a call that raises. Torch's compiler skips the frame in between.
        """
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

            setattr(owner, name, dress(watched, function))
            if self._torch:
                self._skip(watched.__code__, "DEFAULT")

        quietly(watch)()

    def _skip(self, code: Any, action: str) -> None:
        """Keep torch's compiler from compiling a function; `action` is for those that it calls."""
        frames = self._torch._C._dynamo.eval_frame
        actions = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, getattr(actions, action)))

    def watch_scaler(self, module: Any) -> None:
        for name in {"GradScaler", "ShardedGradScaler"} & vars(module).keys():
            if "scale" in vars(getattr(module, name)):
                self._watch(getattr(module, name), "scale", after=self._keep_scaled)

    def watch_keras(self, module: Any) -> None:
        """Count batches, several at a time with steps_per_execution, and take the figures of epochs."""

        def count(callbacks: Any, batch: int, *_args: Any, **_options: Any) -> None:
            more, self._batch = batch - self._batch if batch > self._batch else batch + 1, batch
            self._count(callbacks, more)

        def note(_callbacks: Any, _epoch: int, logs: Any = None, **_options: Any) -> None:
            self._note_figures({name: float(value) for name, value in (logs or {}).items()})

        self._watch(module.CallbackList, "on_train_batch_end", before=count)
        self._watch(module.CallbackList, "on_epoch_end", before=note)

    def watch_lightgbm(self, module: Any) -> None:
        self.watch_saves(module)
        self._watch(module.Booster, "update", after=self._count_round)
        for method, loss in (("eval_train", "loss"), ("eval_valid", "val_loss")):

            def note(_token: Any, result: Any, *_args: Any, loss: str = loss, **_options: Any) -> None:
                figures = {f"{data} {metric}": value for data, metric, value, _ in result}
                falling = [value for _, _, value, is_rising in result if not is_rising]
                self._note_figures({**figures, **({loss: falling[0]} if falling else {})})

            self._watch(module.Booster, method, after=note)

    def watch_xgboost(self, module: Any) -> None:
        self.watch_saves(module)
        self._watch(module.Booster, "update", after=self._count_round)

        def note(_token: Any, result: str, _booster: Any, *args: Any, **options: Any) -> None:
            """Take the figures of a round: a line such as `[0]<TAB>train-rmse:0.5<TAB>eval-rmse:0.6`."""
            figures = {}
            for text in result.split("\t")[1:]:
                name, _, value = text.rpartition(":")
                figures[name] = float(value)
                for data, of_data in options["evals"] if "evals" in options else args[0]:
                    metric = name[len(of_data) + 1 :]
                    if name.startswith(of_data + "-") and any(each in metric for each in LOSSES):
                        figures.setdefault("loss" if id(data) == self._data else "val_loss", float(value))
            self._note_figures(figures)

        self._watch(module.Booster, "eval_set", after=note)

    def _count_round(
        self, _token: Any, result: Any, booster: Any, data: Any = None, *_args: Any, **options: Any
    ) -> None:
        if result is not NotImplemented:
            self._data = id(options.get("dtrain", data))
            self._count(booster)

    def watch_sklearn(self, module: Any) -> None:
        """Count calls of `partial_fit`, through the decorator that every class of scikit-learn gives it."""
        make, count = module._fit_context, quietly(self._count_fit)

        def make_context(**options: Any) -> Any:
            decorate = make(**options)

            def decorator(method: Any) -> Any:
                fit = decorate(method)

                def partial_fit(estimator: Any, *args: Any, **options: Any) -> Any:
                    result = fit(estimator, *args, **options)
                    count(estimator)
                    return result

                return dress(partial_fit, fit) if method.__name__ == "partial_fit" else fit

            return decorator

        module._fit_context = make_context

    def _count_fit(self, estimator: Any) -> None:
        loss = getattr(estimator, "loss_", None)
        self._loss = float(loss) if isinstance(loss, float) else None
        self._count(estimator)

    def watch_saves(self, module: Any) -> None:
        """Hook into the functions of SAVES in a module that the program has just imported."""
        for name, parameter in SAVES[module.__name__].items():
            owner, _, method = name.rpartition(".")
            self._watch_save(getattr(module, owner, None) if owner else module, method, parameter)
        if hasattr(module, "AsyncCheckpointer"):  # orbax
            wait = lambda *_: self._report_closed()  # noqa: E731
            self._watch(module.AsyncCheckpointer, "wait_until_finished", after=wait)

    def _watch_save(self, owner: Any, name: str, parameter: str) -> None:
        call = f"{getattr(owner, '__name__', '')}.{name}"

        def begin(*_args: Any, **_options: Any) -> Any:
            thread = get_ident()
            # A part of another save, or of one that runs in the background.
            if thread in self._saving or (self._background and thread != self._main):
                return None
            self._saving.add(thread)
            self._background += name == "async_save"
            quietly(self._count_unseen)()
            return thread, time.time_ns(), self._place()

        def end(token: Any, result: Any, *args: Any, **options: Any) -> None:
            if token is not None:
                thread, began, place = token
                self._saving.discard(thread)
                where = options.get(parameter, args[1] if len(args) > 1 else options.get("storage_writer"))
                future = getattr(result, "upload_completion", result)
                if hasattr(future, "add_done_callback"):
                    future.add_done_callback(quietly(lambda ended: done(ended, (call, where, began, place))))
                    return
                self._background -= name == "async_save"
                thing = options.get("state_dict") or (args[0] if args else options.get("obj"))
                known = quietly(self._weights.relation_of)(thing) if self.step else ""
                if known == "none" and owner is not self._torch:  # others hide their numbers
                    known = ""
                self._has_saved |= bool(self.step) and known != "none"
                if known != "":
                    place["weights"] = known or "unknown"
                is_packed = hasattr(where, "write") and not hasattr(where, "raw")
                is_old = options.get("_use_new_zipfile_serialization") is False
                if owner.__name__ != "joblib.numpy_pickle":  # a shard of others would wait for its group
                    thing = self._weights._tensors_in(thing) if is_packed or is_old else None
                if quietly(has_nan)(thing):
                    place["nan"] = True  # nobody can read it in the file
                if result is not NotImplemented:
                    self._note_save(call, where, began, place)

        def done(future: Any, save: Any) -> None:
            self._background -= 1
            if future.exception() is None:
                self._report_save(*save)

        self._watch(owner, name, begin, end)

    def _leave(self, status: int) -> None:
        """Report the end of forked workers, and of programs that do not wait for their threads."""
        if self.step:
            self._code = status
            self.end()

    def _note_thread(self, ended: Any) -> None:
        """Keep what ended the thread of the training; the program may end with 0, or train on in another."""
        if get_ident() == self._thread and not isinstance(ended.exc_value, SystemExit):
            self._thread_exception = self._describe(ended.exc_value, ended.exc_traceback)

    def _note_caught(self, _text: Any, _type: Any, error: Any, trace: Any, **_options: Any) -> None:
        """Keep an exception that ended the loop of the training, if the program prints its traceback.

        It caught the exception, and may end with 0. One that it prints in the loop has not ended it, and the
        end of an iterator or Ctrl-C is no error.
        """
        is_error = isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration))
        is_of_training = is_error and self.step and trace is not None and get_ident() == self._thread
        if is_of_training and has_left_loop(trace, self._sites, sys._getframe()):
            self._thread_exception = self._describe(error, trace)

    def watch_notebook(self, module: Any) -> None:
        """Report an exception that ended the loop of the training in a cell.

        A client may be asked to run the next cells all the same, and kills a kernel that takes long to end.
        """

        def note(_shell: Any, raised: Any = None, *_args: Any, **_options: Any) -> None:
            kind, error, trace = raised or sys.exc_info()
            self._note_caught(None, kind, error, trace)
            if self._thread_exception:
                self.report("exception", **self._thread_exception, **self._place())

        self._watch(module.InteractiveShell, "showtraceback", before=note)

    def watch_run(self, module: Any) -> None:
        """Hook into what a process of multiprocessing runs, which catches every exception."""

        def note(_token: Any, result: Any, _process: Any) -> None:
            kind, error, trace = sys.exc_info()
            if result is NotImplemented and self.step and kind is not SystemExit:
                self._thread_exception = self._describe(error, trace)

        self._watch(module.BaseProcess, "run", after=note)

    def watch_children(self, module: Any) -> None:
        """Report the children that a signal has ended, and whether it was one of this process."""
        known: set[int] = set()

        def note(_token: Any, code: Any, child: Any, *_args: Any, **_options: Any) -> None:
            if isinstance(code, int) and code < 0 and child.pid not in known:
                known.add(child.pid)
                self.report("killed", child=child.pid, stopped=child.pid in self._stopped)

        self._watch(module.Popen, "_send_signal", before=lambda child, _: self._stopped.add(child.pid))
        self._watch(module.Popen, "poll", after=note)

    def _keep_exit_code(self) -> None:
        """Let the C library write the exit code into a file, because a shell may hide it.

        No hook of Python sees `raise SystemExit(1)`, and none runs when the code is certain. A function given
        to glibc's `on_exit` does; srand48_r stores its first argument in the memory of the second. The file
        is mapped, because the program may close descriptors. A fork writes into the file of its parent, too,
        which writes again at its own end.
        """
        import ctypes

        library, pointer = ctypes.CDLL(None), ctypes.c_void_p
        descriptor = os.open(f"{self._file}.{os.getpid()}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, EXIT_BYTES)
            library.mmap.argtypes = [pointer, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
            library.mmap.restype = pointer
            place = library.mmap(None, EXIT_BYTES, READ_WRITE, SHARED, descriptor, 0)
        finally:
            os.close(descriptor)
        if place != pointer(-1).value:
            library.on_exit(library.srand48_r, pointer(place))

    # Steps, losses and weights

    def _sample(self, optimizer: Any, is_new: bool) -> None:
        """Keep numbers of the parameters of an optimizer before its first step.

        If the weights are those of the start again, as after a search for a learning rate, and none were
        saved in between, the training begins here.
        """
        if self._is_idle():
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._is_loaded = False
        if self._steps_of is None:
            self._watch_anew()  # not what its passes have shown
        else:
            is_undone = self._weights.is_undone(parameters)
            if self._models is not None and len(self._models) >= MOST_MODELS:
                self._models = None  # as many short ones are no folds
            is_other = is_new and self._models is not None and not self._weights.have_any(parameters)
            if is_undone and not self._has_saved:
                self._begin_again()
                is_new = True
            elif is_other or (is_undone and self._models is not None):
                self._models.append(self.step)
        if is_new:
            self._weights.watch(parameters)
            self._newest = id(optimizer)

    def _begin_again(self) -> None:
        """Count from 0: what was trained until now was undone."""
        self.report("anew")
        for optimizer in list(self._loaded or ()):
            self._loaded[optimizer] = self._own_steps(optimizer)
        self._watch_anew()
        self._weights.is_all = False  # what is saved may be of the steps before
        (self._steps_of or {}).clear()
        self._models = []
        self.step, self._followed, self._row, self._figures, self._bad = 0, 0, None, None, None
        self._rows.clear()

    def _watch_anew(self) -> None:
        before, self._weights = self._weights, Weights(self._torch)
        self._weights.has_read = before.has_read

    def _note_state(self, *_args: Any, **_options: Any) -> None:
        """Remember that a model has loaded a state; a program may do so all the time, for a second model."""
        if self.step and self._loads < MOST_STATES:
            self._loads, self._is_loaded = self._loads + 1, True

    def _sample_leaves(self, _token: Any, _result: Any, loss: Any, *_args: Any, **_options: Any) -> None:
        """Keep numbers of the parameters of a program that has no optimizer, after its first pass."""
        if self._of_passes and self.step == 1 and not self._is_idle():
            self._weights.watch(leaves_of(loss), is_all=False)

    def _is_idle(self) -> bool:
        if not self._torch:
            return False
        cuda, worker = self._torch.cuda, sys.modules.get("torch.utils.data._utils.worker")
        is_capturing = cuda.is_initialized() and cuda.is_current_stream_capturing()
        return self._is_compiling() or is_capturing or getattr(worker, "_worker_info", None) is not None

    def _note_loaded(self, _token: Any, _result: Any, optimizer: Any, *_args: Any, **_options: Any) -> None:
        if self._loaded is None:
            from weakref import WeakKeyDictionary

            self._loaded = WeakKeyDictionary()
        self._loaded[optimizer] = self._own_steps(optimizer)

    def _own_steps(self, optimizer: Any) -> int:
        """Return the steps that an optimizer counts itself, as Adam does; 0 if it counts none."""
        step = next((state.get("step", 0) for state in optimizer.state.values()), 0)
        return int(step) if type(step) in (int, float, self._torch.Tensor) else 0

    def _count_unseen(self) -> None:
        """Count what a CUDA graph or a compiled function has stepped, by the optimizers' own counts.

        Reading one waits for the GPU, so this is for saves and the end.
        """
        if self._loaded and (self._has_captured or "torch._dynamo" in sys.modules):
            of_each = [quietly(self._own_steps)(each) or 0 for each in self._loaded]
            most = max(map(int.__sub__, of_each, self._loaded.values()))
            if most > self.step:
                self.step, self._of_passes, self._is_partial = most, False, True

    def _keep_scaled(self, _token: Any, scaled: Any, _scaler: Any, loss: Any) -> None:
        """Keep the loss of what GradScaler made. That has the graph, which must not live longer."""
        from weakref import ref

        self._scaled = (ref(scaled), loss.detach(), self._divisor_of(loss))

    def _keep_loss(self, tensor: Any, *_args: Any, **_options: Any) -> None:
        """Keep the scalar of a backward pass. One on a GPU is read later: reading would wait."""
        if self._is_idle():
            return
        scaled, loss, divisor = self._scaled
        if scaled() is not tensor:
            loss, divisor = tensor, self._divisor_of(tensor)
        self._backwards += 1
        self._loss, self._divisor = None, divisor
        # The tensors of other dispatchers, such as DTensor, would communicate.
        is_plain = type(loss).__torch_dispatch__ is self._torch.Tensor.__torch_dispatch__
        if is_plain and loss.numel() == 1 and loss.is_floating_point():
            if loss.device.type == "cpu":
                self._loss = loss.item()
                if self._loss - self._loss != 0:
                    self._bad = self._loss
            elif loss.device.type == "cuda":
                self._loss = loss.detach()
                self._sum = self._loss.float() if self._sum is None else self._sum + self._loss
        if self._of_passes:
            is_loaded, self._is_loaded = self._is_loaded and not self._has_saved, False
            if is_loaded and self._weights.is_undone([]):
                self._begin_again()
            self.step += 1
            self._note_step(None, 1)

    def _divisor_of(self, loss: Any) -> float:
        """Return by what a loss was divided in its last operation, if it is not the first pass of a step."""
        last = type(loss.grad_fn).__name__ if self._backwards else ""
        other = loss.grad_fn._saved_other if last in ("DivBackward0", "MulBackward0") else None
        if other is None or other.numel() != 1 or other.device.type != "cpu":
            return 1.0
        number = float(other) or 1.0
        return round(number if last == "DivBackward0" else 1 / number, 3)

    def _count(self, owner: Any, more: int = 1) -> None:
        """Count a step of the program: one of an optimizer that has stepped since the last one was counted.

        GAN pairs and per-parameter optimizers step once each in an iteration. An optimizer that follows on
        another, which is no more or trains the same parameters, continues its count; one that wraps another
        steps without a backward pass in between. A model of another library is as an optimizer.
        """
        if self._is_idle():
            self._has_captured = True
            return
        if self._of_passes:
            from weakref import WeakKeyDictionary

            self._of_passes, self._steps_of = False, WeakKeyDictionary()
            self.step, self._row = 0, None
        last, steps = self._steps_of.get(owner), self._steps_of
        if last is not None and not self._backwards and "deepspeed" in sys.modules:
            return  # ZeRO-3 steps once for each group of parameters
        if last is None:
            beside = [each for each, at in steps.items() if at == self.step]
            may_follow = self._backwards and self._followed != self.step
            is_next = may_follow and any(quietly(have_common_parameter)(owner, each) for each in beside)
            is_new = not beside or is_next
            if is_next:
                self._followed = self.step + 1
        else:
            if id(owner) != self._newest:
                self._models = None
            is_new = last == self.step
            if is_new and self._joined == id(owner):
                # The others do not step any more: their training had ended before its first step.
                more, self._followed = more + 1, -1
            if not is_new and self._followed in (-1, self.step):  # it returns: both step once in an iteration
                steps.update({each: self.step - 1 for each, at in list(steps.items()) if at == self.step})
                self._followed = 0
        self.step += more * is_new
        steps[owner] = self.step
        if is_new:
            if self._loss is not None and self._backwards == self._divisor > 1:  # as the program prints it
                self._loss = self._loss * self._backwards
            groups = getattr(owner, "param_groups", None)
            self._note_step(groups[0].get("lr") if groups else None, self._backwards)
        self._joined = id(owner) if last is None and self._backwards and not is_new else 0
        self._backwards, self._loss = 0, None

    def _note_step(self, rate: Any, backwards: int) -> None:
        now, self._figures, self._has_loss = time.monotonic(), None, self._loss is not None
        self._code, self._thread_exception, self._thread = 0, {}, get_ident()
        is_compared = not self.step & (self.step - 1)
        self._row = (rate, backwards, self._loss if self._bad is None else self._bad)
        is_due = self.step % (1 << (self.step // FAST_ROWS).bit_length()) == 0 or self._bad is not None
        if is_due or now - self._row_time >= ROW_SECONDS:
            is_compared |= now - self._row_time >= ROW_SECONDS
            self._row_time = now
            self._begin_row()
        if is_compared:
            frame: Any = sys._getframe()
            while frame is not None:
                self._sites[frame.f_code] = frame.f_lineno
                frame = frame.f_back
            if not self._weights.have_changed:
                self._weights.compare()
        if self._rows:
            self._write_rows()
        if not self._has_machine:
            self._note_machine()
        if self._imported != len(sys.modules):
            self._imported = len(sys.modules)
            quietly(self._note_modules)()
        if self._open:
            self._report_closed()

    def _note_figures(self, figures: dict[str, float]) -> None:
        """Take what a library says of the last step; a loss that was observed in it is better."""
        self._figures = {**(self._figures or {}), **figures}
        if self._row is None:
            self._write_figures()

    def _write_figures(self) -> None:
        figures, self._figures = self._figures or {}, None
        figures.pop("loss" if self._has_loss else "", None)
        if figures and self.step and not self._rank():
            self.report("row", **{**figures, **self._place(), "time": time.time()})

    def _begin_row(self) -> None:
        """Start the row of this step; a loss on a GPU is copied behind what the GPU has yet to do."""
        if self._row is None or len(self._rows) >= MOST_PENDING or self._rank():
            return
        (rate, backwards, loss), self._row, self._bad = self._row, None, None
        row, done = {**self._place(), "time": time.time()}, None
        if isinstance(rate, (int, float)):
            row["learning_rate"] = rate
        if backwards > 1:
            row["accumulated"] = backwards
        if loss is not None and not isinstance(loss, float):
            torch: Any = self._torch
            if self._slots is None:
                self._slots = torch.empty(MOST_PENDING, 2, dtype=torch.float32, pin_memory=True)
            slot, done = self._slots[self.step % MOST_PENDING], torch.cuda.Event()
            slot[0].copy_(loss.reshape(()), non_blocking=True)
            # The first backward pass has had a row: it was a step until the optimizer stepped.
            slot[1].copy_((loss if self._sum is None else self._sum).reshape(()), non_blocking=True)
            done.record()
            loss, self._sum = slot, None
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
            if done is not None:
                loss, total = loss.tolist()
                row.update({"nan_steps": 1} if total - total != 0 else {})
            self.report("row", **row, **({} if loss is None else {"loss": float(loss)}))

    def _place(self) -> dict[str, Any]:
        """Return the step; `passes` says that it counts backward passes."""
        return {"step": self.step, **({"passes": True} if self._of_passes else {})} if self.step else {}

    # Saves, and reads

    def _note_read(self, file: Any = None, *_args: Any, **options: Any) -> None:
        """Report what torch.load reads before the second step, by which the program may resume."""
        if self.step <= 1 and self._reads <= MOST_READS and not self._is_idle():
            self._reads += 1
            self._weights.has_read = True
            where = options.get("f", file)
            if not isinstance(where, os.PathLike):  # a Path has a `name`, too, that of the file alone
                where = getattr(where, "name", where)
            facts: dict[str, Any] = {"path": ""}
            if isinstance(where, (str, bytes, os.PathLike)) and self._reads <= MOST_READS:
                # The program may remove it before anybody else sees it: a copy, or one that a newer replaces.
                found = os.stat(where)
                facts = {"path": os.path.abspath(os.fsdecode(where))}
                facts["changed"] = [found.st_dev, found.st_ctime_ns]
            self.report("read", **facts, **self._place())

    def _note_save(self, call: str, where: Any, began: int, place: dict[str, Any]) -> None:
        """Report a save that has returned; one into a file that is open, when that is closed.

        Orbax renames its folder when all is written.
        """
        if len(self._open) >= MOST_PENDING and hasattr(where, "write"):
            return
        archive = getattr(where, "_zipfile", None)  # that of a member
        path_of = quietly(follow)(archive.fp if archive else where)
        if "Checkpointer" in call:
            path_of = lambda: os.path.exists(where) and where  # noqa: E731
        if path_of is None:
            self._report_save(call, where, began, place)
        else:
            self._open.append((path_of, call, began, place))
            self._report_closed()

    def _report_closed(self) -> None:
        kept, self._open = self._open, []
        for each in kept:
            path = quietly(each[0])()
            if path is False:
                self._open.append(each)
            elif path:
                quietly(self._report_save)(each[1], path, *each[2:])

    def _report_save(self, call: str, where: Any, began: int, place: dict[str, Any]) -> None:
        path = where if isinstance(where, (str, bytes, os.PathLike)) else where.path  # of a writer of DCP
        path = os.path.abspath(os.fsdecode(path))
        if not (os.path.isdir(path) and self._rank()):
            self.report("saved", **place, path=path, call=call, files=files_of(path, began))

    # Facts

    def _note_machine(self) -> None:
        """Report the world and the machine, which the program has set up by its first step."""
        self._has_machine = True
        quietly(self._keep_exit_code)()
        torch: Any = self._torch
        facts = {name: quietly(resolve)(torch, place) for name, place in MACHINE.items()}
        facts["host"], facts["world"] = os.uname().nodename, quietly(self._world)()
        if torch and torch.cuda.is_initialized():
            facts["driver"] = quietly(first_line)("/proc/driver/nvidia/version")
            facts["gpus"] = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        self.report("machine", **{name: fact for name, fact in facts.items() if fact is not None})

    def _note_modules(self, reports: bool = True) -> None:
        """Report the code of the repository that was imported, with its SHA-256 of soon after its import."""
        from hashlib import sha256

        names = {} if self._rank() else dict(imported_files(self._main_file, self._root))
        for path in names.keys() - self._modules.keys():
            with open(path, "rb") as file:
                self._modules[path], facts = sha256(file.read()).hexdigest(), os.fstat(file.fileno())
            sought = self._sought.get(names[path], self._began)
            self._edited += [path] if max(facts.st_mtime, facts.st_ctime) > sought else []
        found = {path: sha for path, sha in self._modules.items() if path not in self._noted}
        installed = imported_packages(self._early)
        if reports and (found or installed != self._installed) and not self._rank():
            self.report("modules", files=found, edited=self._edited, installed=installed)
            self._noted, self._installed = self._noted | found.keys(), installed

    def _note_exception(self) -> None:
        """Report the exception that ended the interpreter, also if the program replaced `sys.excepthook`.

        The traceback of one that a console or a notebook has shown begins in a frame that others called.
        """
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        trace = getattr(error, "__traceback__", None)
        is_end = trace is not None and trace.tb_frame.f_back is None
        facts = self._describe(error, trace) if is_end else self._thread_exception
        if facts:
            self.report("exception", **facts, **self._place())

    def _describe(self, error: Any, trace: Any) -> dict[str, str]:
        """Return the facts of an exception: its type, message and place, and its cause."""
        deepest, cause, code = quietly(find_cause)(error) or (error, "", "")
        places = []
        for frames in (trace, getattr(deepest, "__traceback__", None)):
            while frames is not None:
                places.append((os.path.abspath(frames.tb_frame.f_code.co_filename), frames.tb_lineno))
                frames = frames.tb_next
        file, line = ([each for each in places if is_below(each[0], self._root)] or places)[-1]
        file = os.path.relpath(file, self._root) if is_below(file, self._root) else file
        message = (quietly(str)(error) or "")[:1000]
        facts = {"type": type(error).__name__, "message": message, "place": f"{file}:{line}"}
        return {**facts, "cause": cause, "code": code}

    def end(self) -> None:
        """Report the last row and what was not reported yet, the exception, and the end."""
        if self._has_ended or not (self._is_known or self.step):
            return
        self._has_ended = True
        quietly(self._begin_row)()
        quietly(self._count_unseen)()
        quietly(self._write_figures)()
        quietly(self._write_rows)(time.monotonic() + LAST_SECONDS)
        quietly(self._report_closed)()
        quietly(self._note_modules)()
        quietly(self._note_exception)()
        quietly(self._weights.compare)()
        changed = quietly(self._weights.read)(time.monotonic() + LAST_SECONDS)
        known = {} if changed is None else {"weights_changed": changed}
        known.update({"partial": True} if self._is_partial else {})
        excerpts = quietly(self._weights.excerpts)(time.monotonic() + LAST_SECONDS)
        known.update({} if excerpts is None else {"excerpts": excerpts})
        known.update({"models": self._models} if self._models else {})
        self.report("exit", **({"code": self._code} if self._code else {}), **known, **self._place())


def observe() -> None:
    """Begin to observe this interpreter."""
    observer: Any = Observer(os.environ["TRAINYARD_EVENTS"])
    observer.report("")
    sys.meta_path.insert(0, observer)
    for name in observer.hooks.keys() & sys.modules.keys():  # a .pth file has imported it
        quietly(observer.hooks[name])(sys.modules[name])
