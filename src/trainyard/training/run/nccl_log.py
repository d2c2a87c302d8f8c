"""Read from NCCL's log which network connected the machines of a run. Pure: lines in, a value out.

Only the channels that NCCL opened decide. The names of plugins and devices, `Using network …` and bootstrap
lines also appear in logs of runs that use another network or none; without a channel, nothing is concluded.
Supported log formats: NCCL 2.4 to 2.31, aws-ofi-nccl 1.4 to 1.21.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/(?P<network>[^/\n]+?)/\d")
_WISH = re.compile(r"NCCL_(?P<name>NET|IB_DISABLE|NET_PLUGIN) set by environment to (?P<value>[^\s.]+)")


class Fabric(StrEnum):
    """A network between machines that is faster than the ordinary one."""

    EFA = "EFA"
    INFINIBAND = "InfiniBand"


_CAUSES = {
    Fabric.EFA: (
        (r"NET/OFI No eligible providers were found", "libfabric found no EFA provider"),
        (r"NET/OFI (?:Unable to find a protocol|aws-ofi-nccl initialization failed)", "its plugin failed"),
        (r"NET/OFI GDR disabled on GDR-supported", "FI_EFA_USE_DEVICE_RDMA=0 makes its plugin fail"),
        (r"NET/Plugin ?: (?:.*No plugin found|Using internal network plugin)", "its plugin was not found"),
        (r"NET/Plugin: Could not find:", "its plugin was not found"),
    ),
    Fabric.INFINIBAND: (
        (r"Failed to open libibverbs", "libibverbs is not installed"),
        (r"NET/IB : No device found", "NCCL sees no device"),
    ),
}
"""Log lines that explain why a fabric was not used. Healthy logs have them too, so they never decide."""


@dataclass(frozen=True)
class NetworkUse:
    """The network use in one process's log."""

    channels: Mapping[str, int]
    """Number of channels per network, as NCCL calls it: Socket, IB, AWS Libfabric …"""
    wishes: Mapping[str, str]
    """What the environment requested from NCCL: NET, IB_DISABLE, NET_PLUGIN."""
    causes: Mapping[Fabric, str]
    """Why a fabric was not used."""

    @property
    def by_tcp(self) -> bool:
        return self.channels.get("Socket", 0) > 0

    def asked_for_tcp(self, fabric: Fabric) -> bool:
        """Return whether the environment told NCCL not to use `fabric`."""
        if self.wishes.get("NET", "").lower() == "socket":
            return True
        if fabric is Fabric.EFA:
            return self.wishes.get("NET_PLUGIN", "").lower() == "none"
        return self.wishes.get("IB_DISABLE", "0") != "0"


def read_network(lines: Iterable[str]) -> NetworkUse:
    """Read one process's log with NCCL_DEBUG=INFO; a log without NCCL lines gives no facts."""
    channels: Counter[str] = Counter()
    wishes: dict[str, str] = {}
    causes: dict[Fabric, str] = {}
    for line in lines:
        channels.update(found["network"] for found in _CHANNEL.finditer(line))
        wishes.update((found["name"], found["value"]) for found in _WISH.finditer(line))
        for fabric, known in _CAUSES.items():
            why = next((words for pattern, words in known if re.search(pattern, line)), None)
            if why is not None:
                causes.setdefault(fabric, why)
    return NetworkUse(channels, wishes, causes)


def fallback(use: NetworkUse, fabric: Fabric | None) -> str | None:
    """Return why TCP was used instead of the machine's `fabric`; None if it was not, or was requested.

    An empty text means that the log does not explain it.
    """
    if fabric is None or not use.by_tcp or use.asked_for_tcp(fabric):
        return None
    return use.causes.get(fabric, "")
