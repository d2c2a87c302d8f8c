"""Facts about GPUs from the NVIDIA driver, through `nvidia-smi`.

It makes no judgement: if the driver cannot answer, its own message is reported.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from trainyard.errors import ConfigError
from trainyard.gateways.process import Finished, run_program

_INFOROM_CORRUPTED = 14  # a warning about the card's own memory; the output is still valid
_SECONDS = 30
_MIB = 1 << 20
_USED_BYTES = 256 * _MIB
"""A process that computes on a GPU holds more than this for its context."""
_LOST, _IS_LOST = ("GPU is lost", "ERR!", "Unknown Error"), "the driver has lost it"


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one moment; None where the driver does not know a value."""

    index: int
    name: str = ""
    utilization_percent: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: float | None = None
    is_throttled: bool | None = None
    """Whether its clock is lowered because it is too hot."""
    ecc_corrected: float | None = None
    """Memory errors since the driver was loaded."""
    ecc_uncorrected: float | None = None
    faults: tuple[str, ...] = ()
    """Its defects, in words."""
    driver: str = ""
    """Version of the kernel driver, for example `580.65.06`."""

    @property
    def is_lost(self) -> bool:
        """Return whether it has crashed, or has fallen off the bus."""
        return _IS_LOST in self.faults

    @property
    def is_used(self) -> bool:
        """Return whether a process computes on it."""
        return self.memory_used_bytes is not None and self.memory_used_bytes > _USED_BYTES


@dataclass(frozen=True)
class NvidiaAnswer:
    """The answer of `nvidia-smi`."""

    gpus: tuple[GpuReading, ...]
    trouble: str | None
    """Why the answer cannot be used; None when it can, or when there is no `nvidia-smi`."""


def query_gpus() -> NvidiaAnswer:
    """Query the driver for its GPUs; a machine without `nvidia-smi` has none."""
    done = run_program(["nvidia-smi", "-q", "-x"], seconds=_SECONDS)
    # If a folder in PATH may not be entered, the error for a missing program is "permission denied".
    if done.exit_code is None and shutil.which("nvidia-smi") is None:
        return NvidiaAnswer((), None)
    gpus, trouble = gpus_in(done.stdout.strip() or done.stderr, done.exit_code)
    if lost := [str(gpu.index) for gpu in gpus if gpu.is_lost]:
        trouble = f"the driver has lost GPU {', '.join(lost)}: it has crashed or fallen off the bus"
    elif done.exit_code not in (0, _INFOROM_CORRUPTED):
        trouble = trouble or f"nvidia-smi failed (exit code {done.exit_code})"
    return NvidiaAnswer((), trouble) if trouble else NvidiaAnswer(gpus, None)


def gpus_in(answer: str, code: object) -> tuple[tuple[GpuReading, ...], str]:
    """Return the GPUs in the answer of `nvidia-smi -q -x`, which ended with `code`, or why it is unusable."""
    try:
        root = ElementTree.fromstring(answer[answer.index("<?xml") :])  # noqa: S314 - expat bounds entities
        driver = root.findtext("driver_version", "")
        return tuple(_gpu_in(gpu, index, driver) for index, gpu in enumerate(root.iter("gpu"))), ""
    except (ValueError, ElementTree.ParseError):
        first = next((line.strip() for line in answer.splitlines() if line.strip()), "nothing")
        return (), f"nvidia-smi failed (exit code {code}): {first[:200]}"


def _gpu_in(gpu: ElementTree.Element, index: int, driver: str) -> GpuReading:
    corrected, uncorrected = _ecc_of(gpu)
    return GpuReading(
        index,
        name=gpu.findtext("product_name", ""),
        utilization_percent=_number(gpu.findtext("utilization/gpu_util")),
        memory_used_bytes=_bytes(gpu.findtext("fb_memory_usage/used")),
        memory_total_bytes=_bytes(gpu.findtext("fb_memory_usage/total")),
        temperature_celsius=_number(gpu.findtext("temperature/gpu_temp")),
        power_watts=_number(gpu.findtext("gpu_power_readings/instant_power_draw")),
        power_limit_watts=_number(gpu.findtext("gpu_power_readings/current_power_limit")),
        sm_clock_mhz=_number(gpu.findtext("clocks/sm_clock")),
        is_throttled=_is_throttled(gpu),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        faults=tuple(_faults_of(gpu, uncorrected)),
        driver=driver,
    )


def _is_throttled(gpu: ElementTree.Element) -> bool | None:
    thermal = [
        each.text for each in gpu.iterfind("clocks_event_reasons/*") if each.tag.endswith("_thermal_slowdown")
    ]
    return "Active" in thermal if thermal else None


def _ecc_of(gpu: ElementTree.Element) -> tuple[float | None, float | None]:
    """Return the corrected and uncorrected errors since the driver was loaded, of all kinds of memory."""
    volatile = gpu.find("ecc_errors/volatile")
    counts: dict[bool, list[float]] = {False: [], True: []}
    for each in volatile.iter() if volatile is not None else ():
        value = _number(each.text)
        if value is not None and "correctable" in each.tag:
            counts["uncorrectable" in each.tag].append(value)
    return tuple(sum(found) if found else None for found in counts.values())  # type: ignore[return-value]


def _faults_of(gpu: ElementTree.Element, uncorrected: float | None) -> Iterator[str]:
    if uncorrected:
        yield f"{uncorrected:.0f} memory errors that ECC could not correct"
    if (gpu.findtext("remapped_rows/remapped_row_failure") or "").strip() == "Yes":
        yield "its memory has no spare rows left"
    if any((each.text or "").strip() in _LOST for each in gpu.iter()):
        yield _IS_LOST


def _number(text: str | None) -> float | None:
    """`39 C` -> 39; None for `N/A`."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\b", text or "")
    return float(found[1]) if found else None


def _bytes(text: str | None) -> float | None:
    value = _number(text)
    return None if value is None else value * _MIB


def _query(what: str) -> Finished:
    return run_program(["nvidia-smi", what, "--format=csv,noheader,nounits"], seconds=_SECONDS)


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
    """Return the processes in the CSV answer; other rows are ignored."""
    found = []
    for line in text.splitlines():
        columns = line.strip().split(", ")
        if len(columns) < 4 or not columns[0].isdecimal() or not columns[-1].startswith(("GPU-", "MIG-")):
            continue
        # A name may hold a comma, so the columns behind it are taken from the end.
        pid, *name, memory, gpu = columns
        size = int(memory) * _MIB if memory.isdecimal() else None
        found.append(ComputeProcess(int(pid), ", ".join(name), size, gpu))
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
