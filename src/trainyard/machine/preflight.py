"""Judge whether this machine can run a configuration. Pure: the facts are passed in.

It asks no driver and reads no file. Every check gives a finding, so that all problems are reported at once.

    Facts + Config ──judge_machine──> Finding, Finding, …      (the worst verdict decides)

The need for GPU memory and disk is a lower bound and not a forecast: a machine below it cannot train this
configuration, a machine above it may still run out. `plan` computes the need for main memory from the model's
operations; a machine is refused only if it lacks more than that estimate's possible error.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.config.parameters import OPTIMIZER_BYTES, count_parameters
from trainyard.config.schema import Config
from trainyard.plan.finding import Finding, Severity
from trainyard.run.sizes import format_size

if TYPE_CHECKING:
    from trainyard.gateways.nvidia import GpuReading

SUPPORTED_PYTHON = ((3, 11), (3, 13))
"""The first and the last minor release for which the lock is resolved."""
_FLOAT = 4
"""Bytes of a float32 weight, and of its gradient."""
_MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major release -> oldest driver branch that runs every minor release of it.

docs.nvidia.com/deploy/cuda-compatibility
"""


MEMORY_TOLERANCE = 0.1
"""The computed need for main memory may be this much too high (`benchmarks/memory_fit.py`: 0.03 to 0.04)."""


@dataclass(frozen=True)
class Memory:
    """Main memory, in bytes."""

    total: int
    available: int
    swap: int
    """Free swap."""
    needed: int
    """The need of the tensors."""
    reserve: int
    """A cautious estimate of what the processes use besides tensors."""


@dataclass(frozen=True)
class MachineFacts:
    """The facts about this machine."""

    python: str
    torch: str | None
    """None when it cannot be imported."""
    torch_cuda: str | None
    """The CUDA release torch was built for; None for a CPU build."""
    torch_gpu_bytes: tuple[int, ...]
    """The memory of each GPU that torch can use."""
    gpus: "tuple[GpuReading, ...]"
    gpu_trouble: str | None
    """The driver's error message; None when it answered."""
    disk: str
    """The folder that the run will be written to."""
    disk_free_bytes: int
    """Free bytes, plus the size of the checkpoints that this run already has there."""
    lock_differences: tuple[str, ...]
    """`name version instead of version`, or `name version missing`."""
    missing_for_compiling: tuple[str, ...] = ()
    """The missing system packages that torch.compile needs."""
    store: str = ""
    """The store, if it is a folder and the run is not in it yet."""
    store_free_bytes: int | None = None
    """Free bytes on the disk of the store; None if it is the disk of the run."""
    memory: Memory | None = None
    """None when it is not known or does not matter."""
    has_commit: bool = True
    """Whether git, or the image, knows the commit of the code."""


def success(check: str, found: str) -> Finding:
    """The finding of a check that passed."""
    return Finding.success(found, check)


def failure(check: str, found: str, fix: str) -> Finding:
    """The finding of a check that failed."""
    return Finding.error(found, fix, check)


def judge_machine(config: Config, facts: MachineFacts) -> tuple[Finding, ...]:
    """The findings of all checks, in the order in which they are shown."""
    return (
        _python(facts),
        _packages(facts),
        *_commit(facts),
        _torch(facts),
        *_compiler(config, facts),
        *_gpu(config.model.device, facts),
        *_gpu_memory(config, facts),
        *_memory(config, facts.memory),
        *_disks(config, facts),
    )


def findings_record(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the worst verdict and the findings as plain data."""
    found = [*findings]
    keys = ("check", "verdict", "found", "fix")
    rows = [(each.subject, each.severity.verdict, each.evidence, each.fix or None) for each in found]
    records = [dict(zip(keys, row, strict=True)) for row in rows]
    return {"verdict": worst_severity(found).verdict, "findings": records}


def worst_severity(findings: Iterable[Finding]) -> Severity:
    """The worst severity of all findings; passed if there is none."""
    return min((each.severity for each in findings), key=list(Severity).index, default=Severity.PASSED)


def gpu_bytes_needed(config: Config) -> int:
    """The least GPU memory that a step takes: weights, gradients, optimizer state, logits and their gradient.

    Activations are left out, because their size depends on the kernels.
    """
    gradients = _FLOAT * count_parameters(config.model.architecture).total
    logits = config.training.batch_size * config.data.sequence_length * config.model.architecture.vocab_size
    number = 2 if config.model.dtype == "bfloat16" else 4
    return _checkpoint_bytes(config) + gradients + 2 * number * logits


def disk_bytes_needed(config: Config) -> int:
    """Disk space for the kept checkpoints and the one being written."""
    return _checkpoints_held(config) * _checkpoint_bytes(config)


def store_bytes_needed(config: Config) -> int:
    """Size of the checkpoints that a new run keeps at its end."""
    saving, steps = config.checkpointing, config.training.max_steps
    saves = -(-steps // saving.save_steps) if steps else 1
    kept = min(saves, _checkpoints_held(config) - 1)  # at the end none is being written
    return kept * _checkpoint_bytes(config)


def _checkpoint_bytes(config: Config) -> int:
    """Float32 weights and the optimizer's state."""
    each = _FLOAT + OPTIMIZER_BYTES
    return each * count_parameters(config.model.architecture).total


def _checkpoints_held(config: Config) -> int:
    """The number of the last checkpoints, the one being written, and the permanent ones up to max_steps."""
    saving, steps = config.checkpointing, config.training.max_steps
    permanent = steps // saving.keep_every if saving.keep_every and steps else 0
    return saving.keep_last + 1 + permanent


def _python(facts: MachineFacts) -> Finding:
    first, last = SUPPORTED_PYTHON
    if first <= _numbers(facts.python)[:2] <= last:
        return success("python", f"Python {facts.python}")
    wanted = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return failure(
        "python",
        f"Python {facts.python}, but the lock is resolved for {wanted}",
        f"install a Python from {wanted}, remove .venv and run: make install",
    )


def _packages(facts: MachineFacts) -> Finding:
    if not facts.lock_differences:
        return success("packages", "every package is the one of the lock")
    shown = ", ".join(facts.lock_differences[:5])
    more = len(facts.lock_differences) - 5
    return failure(
        "packages",
        f"the packages differ from requirements-training.txt: {shown}"
        + (f" and {more} more" if more > 0 else ""),
        "install the lock again: make install",
    )


def _commit(facts: MachineFacts) -> Iterator[Finding]:
    if facts.has_commit:
        return
    yield Finding(
        "commit",
        Severity.WARNING,
        "this copy of the code belongs to no commit, so its runs will not be proven repeatable",
        "use a git clone (not a ZIP), or an image that was built from a commit without changes",
    )


def _torch(facts: MachineFacts) -> Finding:
    if facts.torch is None:
        return failure("torch", "torch cannot be imported", "install the lock again: make install")
    built = f"for CUDA {facts.torch_cuda}" if facts.torch_cuda else "for the CPU"
    return success("torch", f"torch {facts.torch}, built {built}")


def _compiler(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    if not config.compute.compile:
        return
    if not facts.missing_for_compiling:
        yield success("compiler", "torch.compile finds what it needs")
        return
    yield failure(
        "compiler",
        f"compute.compile is on, and torch.compile does not find {' and '.join(facts.missing_for_compiling)}",
        "install them (Debian and Ubuntu: apt-get install g++ python3-dev; RHEL and Rocky: dnf install "
        "gcc-c++ python3.12-devel), or --set compute.compile=false",
    )


def _gpu(device: str, facts: MachineFacts) -> Iterator[Finding]:
    if device == "cpu":
        yield success("gpu", "not requested (model.device is cpu)")
        return
    problem = _gpu_problem(device, facts)
    if problem is None:
        yield success("gpu", gpu_names(facts) if facts.torch_gpu_bytes else "none, training on CPU")
        return
    found, fix = problem
    # With `auto` the run can train on the CPU, slower than its owner expects: report that, do not refuse it.
    yield Finding("gpu", Severity.WARNING if device == "auto" else Severity.ERROR, found, fix)


def _gpu_problem(device: str, facts: MachineFacts) -> tuple[str, str] | None:
    """The problem that keeps `device` from working, and its fix; None if there is none."""
    if facts.gpu_trouble:
        return (
            facts.gpu_trouble,
            "reset the GPU or restart the machine; take the runner out of service if it comes back",
        )
    if not facts.gpus and not facts.torch_gpu_bytes:
        if device == "auto":
            return None
        return (
            f"model.device is {device}, but this machine has no NVIDIA GPU or no driver",
            "run on a machine with a GPU, install the NVIDIA driver, or --set model.device=cpu",
        )
    return _driver_problem(facts) or _torch_problem(device, facts)


def _driver_problem(facts: MachineFacts) -> tuple[str, str] | None:
    if facts.torch_cuda is None or not facts.gpus:
        return None
    needed = _MINIMUM_DRIVER.get(_numbers(facts.torch_cuda)[0])
    driver = facts.gpus[0].driver
    if needed is None or _numbers(driver)[0] >= needed:
        return None
    return (
        f"driver {driver} is too old for torch {facts.torch}, built for CUDA {facts.torch_cuda}",
        f"install NVIDIA driver {needed} or newer",
    )


def _torch_problem(device: str, facts: MachineFacts) -> tuple[str, str] | None:
    index, usable = _device_index(device), len(facts.torch_gpu_bytes)
    if index < usable:
        return None
    if facts.torch is not None and facts.torch_cuda is None:
        return f"torch {facts.torch} is a build for the CPU only", "install the lock again: make install"
    if usable:
        return (
            f"model.device is {device}, but torch finds {usable} GPU(s)",
            f"--set model.device=cuda:{usable - 1}",
        )
    return (
        f"the driver shows {gpu_names(facts)}, but torch cannot use any of it",
        "check CUDA_VISIBLE_DEVICES, and that /dev/nvidia* may be opened by this user",
    )


def _gpu_memory(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    index = _device_index(config.model.device)
    if config.model.device == "cpu" or index >= len(facts.torch_gpu_bytes):
        return
    has, needs = facts.torch_gpu_bytes[index], gpu_bytes_needed(config)
    if has >= needs:
        yield success("gpu memory", f"{format_size(has)}, at least {format_size(needs)} needed")
        return
    yield failure(
        "gpu memory",
        f"{format_size(has)}, but {config.model.name} needs at least {format_size(needs)} "
        f"({count_parameters(config.model.architecture).total / 1e6:,.0f} M parameters, "
        f"batch {config.training.batch_size})",
        "take a larger GPU, a smaller model.architecture, or lower training.batch_size and raise "
        "training.gradient_accumulation_steps",
    )


def _memory(config: Config, memory: Memory | None) -> Iterator[Finding]:
    if memory is None:
        return
    has, needs = format_size(memory.available), format_size(memory.needed)
    if memory.needed + memory.reserve <= memory.available:
        yield success("memory", f"{has} of main memory available, {needs} needed")
        return
    of = f"{config.model.name}, batch {config.training.batch_size:,}"
    if memory.needed * (1 - MEMORY_TOLERANCE) > memory.available + memory.swap:
        has_in_all = f"{has} of main memory available ({format_size(memory.total)} in all)"
        found = f"{has_in_all}, but {needs} are needed ({of})"
        yield failure("memory", found, _memory_fix(config))
        return
    found = (
        f"{has} of main memory available; {needs} are needed for tensors, and about "
        f"{format_size(memory.reserve)} beside them ({of})"
    )
    yield Finding("memory", Severity.WARNING, found, f"if the run is killed: {_memory_fix(config)}")


def _memory_fix(config: Config) -> str:
    saving = "" if config.checkpointing.mode == "sync" else ", checkpointing.mode=sync"
    return (
        "lower training.batch_size and raise training.gradient_accumulation_steps"
        f"{saving}, end other programs, or take a machine (or a container's limit) with more memory"
    )


def _disks(config: Config, facts: MachineFacts) -> Iterator[Finding]:
    run, copy = disk_bytes_needed(config), store_bytes_needed(config) if facts.store else 0
    what = f"{_checkpoints_held(config)} checkpoints"
    if facts.store_free_bytes is not None:
        yield _disk(facts.store, facts.store_free_bytes, copy, "the stored copy")
    elif copy:
        run, what = run + copy, f"{what}; the copy in {facts.store}: {format_size(copy)}"
    yield _disk(facts.disk, facts.disk_free_bytes, run, what)


def _disk(place: str, free: int, needs: int, what: str) -> Finding:
    if free >= needs:
        return success("disk", f"{format_size(free)} free, {format_size(needs)} needed")
    return failure(
        "disk",
        f"{format_size(free)} free at {place}, but {format_size(needs)} are needed ({what})",
        "free space, lower checkpointing.keep_last, raise checkpointing.keep_every, or put the run directory "
        "or the store on a larger disk",
    )


def _device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _numbers(version: str) -> tuple[int, ...]:
    """`580.65.06` as a tuple of numbers, which can be compared; (0,) when the text has none."""
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)


def gpu_names(facts: MachineFacts) -> str:
    """`1 × NVIDIA H100 (driver 580.65.06)`; only the number of GPUs if the driver did not name them."""
    if not facts.gpus:
        return f"{len(facts.torch_gpu_bytes)} GPU(s)"
    return f"{len(facts.gpus)} × {facts.gpus[0].name} (driver {facts.gpus[0].driver})"


def summarize_machine(config: Config, facts: MachineFacts) -> str:
    """One line: `Python 3.11.7, torch 2.13.0, no GPU (training on CPU), 71 GB free`."""
    torch = f"torch {facts.torch}" if facts.torch else "no torch"
    gpus, free = _gpus_in_words(config, facts), format_size(facts.disk_free_bytes)
    return f"Python {facts.python}, {torch}, {gpus}, {free} free"


def refusal_text(findings: tuple[Finding, ...]) -> str:
    """Every failed check with its fix, and that nothing was started."""
    failed = [finding for finding in findings if finding.severity is Severity.ERROR]
    lines = [f"{finding.subject}: {finding.evidence}\n  fix: {finding.fix}" for finding in failed]
    count = "1 check" if len(lines) == 1 else f"{len(lines)} checks"
    return "\n".join([*lines, f"{count} failed. Nothing was started."])


def _gpus_in_words(config: Config, facts: MachineFacts) -> str:
    if config.model.device == "cpu" or not facts.torch_gpu_bytes:
        return "no GPU (training on CPU)" if config.model.device in ("cpu", "auto") else "no usable GPU"
    return gpu_names(facts)
