"""Read the GPUs and network adapters of a machine, here or in a pod, with a script that changes nothing.

    sh -c SCRIPT --> nvidia-smi's XML, Xid lines of the kernel, /sys/class/infiniband --> NodeReading

A tool that is missing, or refused, leaves its part unknown. No judgement is made here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from trainyard.gateways.process import run_program

_SECONDS = 60
_MIB = 1 << 20
_USED_BYTES = 256 * _MIB
"""A process that computes on a GPU holds more than this for its context."""
SCRIPT = """
echo @gpus; command -v nvidia-smi >/dev/null && { nvidia-smi -q -x 2>&1; echo "@code $?"; }
echo @kernel; dmesg >/dev/null 2>&1 && { cat /proc/uptime; dmesg | grep -a 'NVRM: Xid'; }
echo @network; cd /sys/class/infiniband 2>/dev/null &&
for f in */ports/*/hw_counters/* */ports/*/counters/port_*_data; do
  [ -r "$f" ] && echo "$f $(cat "$f" 2>/dev/null)"
done
echo @end
"""
"""Also for busybox, which has no `dmesg -T`."""
_LOST = ("GPU is lost", "ERR!", "Unknown Error")
_COUNTER = re.compile(r"([^/]+)/ports/[^/]+/\w+/(\w+) (\d+)")
_XID = re.compile(r"\[\s*(\d+\.\d+)\].*?(NVRM: Xid \([^)]*\): (\d+)\b.*)")
_INFINIBAND_WORD = 4
"""`port_xmit_data` and `port_rcv_data` of InfiniBand count words of this many bytes."""


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

    @property
    def is_used(self) -> bool:
        """Return whether a process computes on it."""
        return self.memory_used_bytes is not None and self.memory_used_bytes > _USED_BYTES


@dataclass(frozen=True)
class XidReading:
    """A line of the kernel about a fault of a GPU."""

    number: int
    seconds_ago: float
    text: str


@dataclass(frozen=True)
class NodeReading:
    """One machine at one moment."""

    gpus: tuple[GpuReading, ...] = ()
    gpu_trouble: str = ""
    """Why the GPUs are not known; empty when they are."""
    xids: tuple[XidReading, ...] | None = None
    """None where the kernel's log may not be read."""
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """Network adapter -> counter -> value, summed over its ports."""

    @property
    def network_bytes(self) -> tuple[int, int] | None:
        """Bytes sent and received by all adapters since they started; None without adapters."""
        known = [pair for counters in self.counters.values() if (pair := _bytes_of(counters)) is not None]
        return (sum(sent for sent, _ in known), sum(got for _, got in known)) if known else None


def read_this_node() -> NodeReading:
    """Read this machine."""
    done = run_program(["sh", "-c", SCRIPT], seconds=_SECONDS)
    return read_node_answer(done.stdout)


def read_node_answer(text: str) -> NodeReading:
    """Return the reading in the output of `SCRIPT`; a part that is cut off is unknown."""
    parts: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line in ("@gpus", "@kernel", "@network", "@end"):
            lines = parts.setdefault(line, [])
        elif parts:
            lines.append(line)
    if "@end" not in parts:
        return NodeReading(gpu_trouble="the machine gave no complete answer")
    gpus, trouble = _gpus_in(parts.get("@gpus", []))
    kernel = parts.get("@kernel", [])
    return NodeReading(
        gpus, trouble, tuple(_xids_in(kernel)) if kernel else None, _counters_in(parts["@network"])
    )


def _gpus_in(lines: list[str]) -> tuple[tuple[GpuReading, ...], str]:
    if not lines:
        return (), "nvidia-smi is missing"
    code, text = lines[-1].partition("@code ")[2], "\n".join(lines[:-1])
    try:
        gpus = read_gpus(text[text.index("<?xml") :])
    except (ValueError, ElementTree.ParseError):
        first = next((line.strip() for line in lines if line.strip()), "nothing")
        return (), f"nvidia-smi failed (exit code {code}): {first[:200]}"
    return gpus, "" if gpus else "nvidia-smi lists no GPU"


def read_gpus(xml: str) -> tuple[GpuReading, ...]:
    """Return the GPUs in the answer of `nvidia-smi -q -x`. Raises ElementTree.ParseError."""
    root = ElementTree.fromstring(xml)  # noqa: S314 - expat bounds what entities may expand to
    return tuple(_gpu_in(gpu, index) for index, gpu in enumerate(root.iter("gpu")))


def _gpu_in(gpu: ElementTree.Element, index: int) -> GpuReading:
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
        yield "the driver has lost it"


def _xids_in(lines: list[str]) -> Iterator[XidReading]:
    uptime = float(lines[0].split()[0]) if re.match(r"\d+\.\d+ ", lines[0]) else 0.0
    for line in lines[1:]:
        if found := _XID.search(line):
            yield XidReading(int(found[3]), max(0.0, uptime - float(found[1])), found[2])


def _counters_in(lines: list[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        if match := _COUNTER.fullmatch(line):
            counters = found.setdefault(match[1], {})
            counters[match[2]] = counters.get(match[2], 0) + int(match[3])
    return found


def _bytes_of(counters: dict[str, int]) -> tuple[int, int] | None:
    """EFA counts bytes, InfiniBand words."""
    if "tx_bytes" in counters:
        return counters["tx_bytes"], counters.get("rx_bytes", 0)
    if "port_xmit_data" in counters:
        received = counters.get("port_rcv_data", 0)
        return counters["port_xmit_data"] * _INFINIBAND_WORD, received * _INFINIBAND_WORD
    return None


def _number(text: str | None) -> float | None:
    """`39 C` -> 39; None for `N/A`."""
    found = re.match(r"\s*(\d+(?:\.\d+)?)\b", text or "")
    return float(found[1]) if found else None


def _bytes(text: str | None) -> float | None:
    value = _number(text)
    return None if value is None else value * _MIB
