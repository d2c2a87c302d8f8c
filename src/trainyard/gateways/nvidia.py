"""Facts about GPUs from the NVIDIA driver, through `nvidia-smi`.

It makes no judgement: if the driver cannot answer, its own message is reported.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.gateways.process import Finished, run_program

# Without options, `nvidia-smi` prints ERR! for a crashed GPU and exits 0; a query for its name fails
# (https://github.com/pytorch/test-infra, .github/actions/setup-nvidia).
_QUERY = "name,driver_version,memory.total,temperature.gpu"
_INFOROM_CORRUPTED = 14  # a warning about the card's own memory; the output is still valid
_SECONDS = 30
_MIB = 1 << 20


@dataclass(frozen=True)
class NvidiaGpu:
    """One GPU as its driver sees it."""

    name: str
    driver: str
    """Version of the kernel driver, for example `580.65.06`."""
    memory_bytes: int
    temperature_celsius: int | None


@dataclass(frozen=True)
class NvidiaAnswer:
    """The answer of `nvidia-smi`."""

    gpus: tuple[NvidiaGpu, ...]
    trouble: str | None
    """Why the answer cannot be used; None when it can, or when there is no `nvidia-smi`."""


def query_gpus() -> NvidiaAnswer:
    """Query the driver for its GPUs; a machine without `nvidia-smi` has none."""
    done = _query(f"--query-gpu={_QUERY}")
    # If a folder in PATH may not be entered, the error for a missing program is "permission denied".
    if done.exit_code is None and shutil.which("nvidia-smi") is None:
        return NvidiaAnswer((), None)
    if done.exit_code not in (0, _INFOROM_CORRUPTED):
        message = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[0]
        return NvidiaAnswer((), f"nvidia-smi failed (exit code {done.exit_code}): {message}")
    return read_answer(done.stdout)


def _query(what: str) -> Finished:
    return run_program(["nvidia-smi", what, "--format=csv,noheader,nounits"], seconds=_SECONDS)


def read_answer(text: str) -> NvidiaAnswer:
    """Return the GPUs in the CSV answer; any other row (`ERR!`, `[Unknown Error]`) sets `trouble`."""
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4 or "ERR!" in line or not fields[2].isdigit():
            return NvidiaAnswer(
                (), f'nvidia-smi answered "{line}", so the GPU has crashed or fallen off the bus'
            )
        temperature = int(fields[3]) if fields[3].isdigit() else None
        gpus.append(NvidiaGpu(fields[0], fields[1], int(fields[2]) * _MIB, temperature))
    return NvidiaAnswer(tuple(gpus), None)


@dataclass(frozen=True)
class ComputeProcess:
    """A process that computes on a GPU, as the driver lists it."""

    pid: int
    name: str
    """The driver's name of the program; a path, or only its last part."""
    memory_bytes: int | None
    """None where the driver does not know it."""
    gpu: str = ""
    """The UUID of its GPU; empty if it was not requested."""


def query_compute_processes(environment: Mapping[str, str] = os.environ) -> tuple[ComputeProcess, ...]:
    """Return the processes on the GPUs that CUDA_VISIBLE_DEVICES leaves to this environment.

    Empty without a driver that lists them, and for a part of a GPU (MIG), because the driver lists the
    processes of the other parts with it.
    """
    done = _query("--query-compute-apps=pid,name,used_memory,gpu_uuid")
    found = read_compute_processes(done.stdout) if done.exit_code in (0, _INFOROM_CORRUPTED) else ()
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if not found or chosen is None:
        return found
    names = [name.strip() for name in chosen.split(",")]
    rows = (line.split(", ") for line in _query("--query-gpu=index,uuid").stdout.splitlines())
    uuids = {row[1].strip() for row in rows if len(row) == 2 and _is_chosen(row[0], row[1].strip(), names)}
    return tuple(each for each in found if each.gpu in uuids)


def _is_chosen(index: str, uuid: str, names: list[str]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES names this GPU, by its index or by the beginning of its UUID."""
    return index in names or any(name.startswith("GPU-") and uuid.startswith(name) for name in names)


def read_compute_processes(text: str) -> tuple[ComputeProcess, ...]:
    """Return the processes in the CSV answer, with or without header and units; other rows are ignored."""
    found = []
    for line in text.splitlines():
        pid, _, rest = line.strip().partition(",")
        # A name may hold a comma, so the columns behind it are taken from the end.
        columns = [column.strip() for column in rest.split(",")]
        gpu = columns.pop() if len(columns) > 2 and columns[-1].startswith("GPU-") else ""
        if not pid.isdecimal() or len(columns) < 2:
            continue
        memory = columns.pop().removesuffix(" MiB")
        size = int(memory) * _MIB if memory.isdecimal() else None
        found.append(ComputeProcess(int(pid), ", ".join(columns), size, gpu))
    return tuple(found)


def visible_gpus(environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs that a program of this environment may use, without importing torch.

    CUDA_VISIBLE_DEVICES decides if it is set. An image may lack `nvidia-smi`; the device files count then.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return next((count for count, name in enumerate(names) if name in ("", "-1")), len(names))
    answer = query_gpus()
    if answer.gpus:
        return len(answer.gpus)
    return sum(bool(re.fullmatch(r"nvidia[0-9]+", path.name)) for path in devices.glob("nvidia*"))


def processes_here(requested: int | str, *, on_cpu: bool) -> int:
    """The number of processes for this machine: `requested`, or for a word its GPUs or processors.

    `auto` is one per GPU, and one where there is none or the run trains `on_cpu`. Raises ConfigError for
    `gpu` without GPUs.
    """
    if isinstance(requested, int):
        return requested
    if requested == "cpu":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = 0 if on_cpu and requested == "auto" else visible_gpus()
    if requested == "gpu" and not gpus:
        raise ConfigError(
            "PET_NPROC_PER_NODE=gpu requests one process per GPU, and this machine shows none. Request "
            "nvidia.com/gpu for the pod, or give a number. Nothing was started."
        )
    return max(1, gpus)


def gpu_sampler(*, seconds: float) -> Callable[[], dict[str, float]]:
    """A function that returns the first GPU's utilization and temperature as metrics, at most `seconds` old.

    A thread queries `nvidia-smi`, so that the caller never waits. The result is empty while there is no
    answer.
    """
    latest: dict[str, float] = {}

    def watch() -> None:
        while (answer := _utilization()) is not None:
            latest.update(answer)
            time.sleep(seconds)
        latest.clear()

    threading.Thread(target=watch, name="gpu-sampler", daemon=True).start()
    return lambda: dict(latest)


def _utilization() -> dict[str, float] | None:
    done = _query("--query-gpu=utilization.gpu,temperature.gpu")
    fields = [field.strip() for field in (done.stdout.splitlines() or [""])[0].split(",")]
    if not done.ok or len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    return {"gpu_utilization_percent": float(fields[0]), "gpu_temperature_celsius": float(fields[1])}
