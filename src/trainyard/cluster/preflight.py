"""Whether this machine can run a configuration: pure judgement over facts that are handed in.

It asks no driver and reads no file. Every check answers, so that all that is wrong is said in one go.

    Facts + Config ──judge──> Finding, Finding, …      (the worst verdict decides)

The need for memory and disk is a floor that no run can go below, not a forecast: a machine that fails it
cannot train this configuration, one that passes may still run out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config

SUPPORTED_PYTHON = ((3, 11), (3, 13))
"""First and last minor release the lock is resolved for."""
TRAINING_BYTES_PER_PARAMETER = 16
"""Float32 weight, gradient and AdamW's two moments."""
CHECKPOINT_BYTES_PER_PARAMETER = 12
"""The same without the gradient."""
_MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major release -> driver branch that runs all of it (docs.nvidia.com/deploy/cuda-compatibility)."""


class Verdict(StrEnum):
    """How a check ended; the values are the words that people see."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


@dataclass(frozen=True)
class Gpu:
    """One GPU as its driver sees it."""

    name: str
    driver: str


@dataclass(frozen=True)
class Facts:
    """What was found on this machine."""

    python: str
    torch: str | None
    """None when it cannot be imported."""
    torch_cuda: str | None
    """The CUDA release torch was built for; None for a CPU build."""
    torch_gpu_bytes: tuple[int, ...]
    """The memory of each GPU that torch can use."""
    gpus: tuple[Gpu, ...]
    gpu_trouble: str | None
    """What the driver said instead of an answer."""
    disk: str
    """The folder that the run will be written to."""
    disk_free_bytes: int
    """Free, and what this run's own checkpoints already take of it."""
    data_bytes: int
    """Size of the training and validation data, as it will be prepared on that disk."""
    lock_differences: tuple[str, ...]
    """`name version instead of version`, or `name version missing`."""
    missing_for_compiling: tuple[str, ...] = ()
    """What torch.compile needs of the system and does not find."""


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    check: str
    verdict: Verdict
    found: str
    fix: str | None = None
    """What to do; None when nothing is to be done."""


def judge(config: Config, facts: Facts) -> tuple[Finding, ...]:
    """Every check's answer, in the order people read them."""
    return (
        _python(facts),
        _packages(facts),
        _torch(facts),
        *_compiler(config, facts),
        *_gpu(config.model.device, facts),
        *_gpu_memory(config, facts),
        _disk(config, facts),
    )


def worst(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict of the whole: failed beats degraded beats ok."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.FAILED, Verdict.DEGRADED) if v in verdicts), Verdict.OK)


def gpu_bytes_needed(config: Config) -> int:
    """The least GPU memory a step takes: 16 bytes a parameter, and the logits with their gradient.

    Activations come on top and depend on the kernels, so they are left out.
    """
    logits = config.training.batch_size * config.data.sequence_length * config.model.architecture.vocab_size
    number = 2 if config.model.dtype == "bfloat16" else 4
    return (
        TRAINING_BYTES_PER_PARAMETER * count_parameters(config.model.architecture).total + 2 * number * logits
    )


def disk_bytes_needed(config: Config, data_bytes: int) -> int:
    """Room for the checkpoints that are kept, the one being written, and the prepared data."""
    checkpoint = CHECKPOINT_BYTES_PER_PARAMETER * count_parameters(config.model.architecture).total
    return _checkpoints_held(config) * checkpoint + data_bytes


def _checkpoints_held(config: Config) -> int:
    """The last ones, the one being written, and those that stay for good up to max_steps."""
    saving, steps = config.checkpointing, config.training.max_steps
    permanent = steps // saving.keep_every if saving.keep_every and steps else 0
    return saving.keep_last + 1 + permanent


def _python(facts: Facts) -> Finding:
    first, last = SUPPORTED_PYTHON
    if first <= _numbers(facts.python)[:2] <= last:
        return Finding("python", Verdict.OK, f"Python {facts.python}")
    wanted = f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
    return Finding(
        "python",
        Verdict.FAILED,
        f"Python {facts.python}, but the lock is resolved for {wanted}",
        f"install a Python from {wanted}, remove .venv and run: make install",
    )


def _packages(facts: Facts) -> Finding:
    if not facts.lock_differences:
        return Finding("packages", Verdict.OK, "every package is the one of the lock")
    shown = ", ".join(facts.lock_differences[:5])
    more = len(facts.lock_differences) - 5
    return Finding(
        "packages",
        Verdict.FAILED,
        f"the packages differ from requirements-training.txt: {shown}"
        + (f" and {more} more" if more > 0 else ""),
        "install the lock again: make install",
    )


def _torch(facts: Facts) -> Finding:
    if facts.torch is None:
        return Finding(
            "torch", Verdict.FAILED, "torch cannot be imported", "install the lock again: make install"
        )
    built = f"for CUDA {facts.torch_cuda}" if facts.torch_cuda else "for the CPU"
    return Finding("torch", Verdict.OK, f"torch {facts.torch}, built {built}")


def _compiler(config: Config, facts: Facts) -> Iterator[Finding]:
    if not config.compute.compile:
        return
    if not facts.missing_for_compiling:
        yield Finding("compiler", Verdict.OK, "torch.compile finds what it needs")
        return
    yield Finding(
        "compiler",
        Verdict.FAILED,
        f"compute.compile is on, and torch.compile does not find {' and '.join(facts.missing_for_compiling)}",
        "install them (Debian and Ubuntu: apt-get install g++ python3-dev), or --set compute.compile=false",
    )


def _gpu(device: str, facts: Facts) -> Iterator[Finding]:
    if device == "cpu":
        yield Finding("gpu", Verdict.OK, "not asked for (model.device is cpu)")
        return
    problem = _gpu_problem(device, facts)
    if problem is None:
        yield Finding(
            "gpu", Verdict.OK, gpu_names(facts) if facts.torch_gpu_bytes else "none, training on CPU"
        )
        return
    found, fix = problem
    # With `auto` the run can go on, slower than its owner expects: that is said, not forbidden.
    yield Finding("gpu", Verdict.DEGRADED if device == "auto" else Verdict.FAILED, found, fix)


def _gpu_problem(device: str, facts: Facts) -> tuple[str, str] | None:
    """What keeps `device` from working, and the fix."""
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


def _driver_problem(facts: Facts) -> tuple[str, str] | None:
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


def _torch_problem(device: str, facts: Facts) -> tuple[str, str] | None:
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
        f"the driver shows {gpu_names(facts)}, but torch can use none of it",
        "check CUDA_VISIBLE_DEVICES, and that /dev/nvidia* may be opened by this user",
    )


def _gpu_memory(config: Config, facts: Facts) -> Iterator[Finding]:
    index = _device_index(config.model.device)
    if config.model.device == "cpu" or index >= len(facts.torch_gpu_bytes):
        return
    has, needs = facts.torch_gpu_bytes[index], gpu_bytes_needed(config)
    if has >= needs:
        yield Finding("gpu memory", Verdict.OK, f"{gigabytes(has)}, at least {gigabytes(needs)} needed")
        return
    yield Finding(
        "gpu memory",
        Verdict.FAILED,
        f"{gigabytes(has)}, but {config.model.name} needs at least {gigabytes(needs)} "
        f"({count_parameters(config.model.architecture).total / 1e6:,.0f} M parameters, "
        f"batch {config.training.batch_size})",
        "take a larger GPU, a smaller model.architecture, or lower training.batch_size and raise "
        "training.gradient_accumulation_steps",
    )


def _disk(config: Config, facts: Facts) -> Finding:
    needs = disk_bytes_needed(config, facts.data_bytes)
    if facts.disk_free_bytes >= needs:
        return Finding(
            "disk", Verdict.OK, f"{gigabytes(facts.disk_free_bytes)} free, {gigabytes(needs)} needed"
        )
    return Finding(
        "disk",
        Verdict.FAILED,
        f"{gigabytes(facts.disk_free_bytes)} free at {facts.disk}, but {gigabytes(needs)} are needed "
        f"({_checkpoints_held(config)} checkpoints and the data)",
        "free space, lower checkpointing.keep_last, raise checkpointing.keep_every, or put the run directory "
        "on a larger disk",
    )


def _device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _numbers(version: str) -> tuple[int, ...]:
    """`580.65.06` as numbers that compare; (0,) when there are none."""
    return tuple(int(part) for part in re.findall(r"\d+", version)) or (0,)


def gpu_names(facts: Facts) -> str:
    """`1 × NVIDIA H100 (driver 580.65.06)`, or how many when only torch sees them."""
    if not facts.gpus:
        return f"{len(facts.torch_gpu_bytes)} GPU(s)"
    return f"{len(facts.gpus)} × {facts.gpus[0].name} (driver {facts.gpus[0].driver})"


def gigabytes(size: int) -> str:
    """Bytes in GB (10⁹), with a decimal below ten."""
    return f"{size / 1e9:,.0f} GB" if size >= 10e9 else f"{size / 1e9:,.1f} GB"
