"""Read the GPUs and network adapters of a machine, here or in a pod, with a script that changes nothing.

    sh -c SCRIPT --> nvidia-smi's XML, Xid lines of the kernel, /sys/class/infiniband --> NodeReading

A tool that is missing, or refused, leaves its part unknown. No judgement is made here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainyard.gateways.nvidia import GpuReading, gpus_in
from trainyard.gateways.process import run_program

_SECONDS = 60
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
_COUNTER = re.compile(r"([^/]+)/ports/[^/]+/\w+/(\w+) (\d+)")
_XID = re.compile(r"\[\s*(\d+\.\d+)\].*?(NVRM: Xid \([^)]*\): (\d+)\b.*)")
_INFINIBAND_WORD = 4
"""`port_xmit_data` and `port_rcv_data` of InfiniBand count words of this many bytes."""


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
    kernel = parts.get("@kernel", [])
    return NodeReading(
        *_gpus_in(parts.get("@gpus", [])),
        tuple(_xids_in(kernel)) if kernel else None,
        _counters_in(parts["@network"]),
    )


def _gpus_in(lines: list[str]) -> tuple[tuple[GpuReading, ...], str]:
    if not lines:
        return (), "nvidia-smi is missing"
    gpus, trouble = gpus_in("\n".join(lines[:-1]), lines[-1].partition("@code ")[2])
    return gpus, trouble if gpus or trouble else "nvidia-smi lists no GPU"


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
