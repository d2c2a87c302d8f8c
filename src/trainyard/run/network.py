"""What NCCL's own log says of the network between the machines of a run. Pure: lines in, a value out.

Only the channels that NCCL opened decide. The names of plugins and devices, `Using network …` and the lines
of bootstrapping stand in logs of runs that use something else, or nothing; without a channel nothing is said.
Forms of the lines: NCCL 2.4 to 2.31, aws-ofi-nccl 1.4 to 1.21.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

_CHANNEL = re.compile(r"\[(?:send|receive)\] via NET/(?P<network>[^/\n]+?)/\d")
_WISH = re.compile(r"NCCL_(?P<name>NET|IB_DISABLE|NET_PLUGIN) set by environment to (?P<value>[^\s.]+)")


class Fabric(StrEnum):
    """What machines are joined by that is faster than their ordinary network."""

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
"""Lines that say why a fabric was not used; they stand in healthy logs too, and explain but never decide."""


@dataclass(frozen=True)
class NetworkUse:
    """What one process's log shows."""

    channels: Mapping[str, int]
    """How many of them by which network, as NCCL calls it: Socket, IB, AWS Libfabric …"""
    wishes: Mapping[str, str]
    """What the environment told NCCL: NET, IB_DISABLE, NET_PLUGIN."""
    causes: Mapping[Fabric, str]
    """Why a fabric was not used, if it was not."""

    @property
    def by_tcp(self) -> bool:
        return self.channels.get("Socket", 0) > 0

    def asked_for_tcp(self, fabric: Fabric) -> bool:
        """Whether somebody told NCCL to leave `fabric` alone."""
        if self.wishes.get("NET", "").lower() == "socket":
            return True
        if fabric is Fabric.EFA:
            return self.wishes.get("NET_PLUGIN", "").lower() == "none"
        return self.wishes.get("IB_DISABLE", "0") != "0"


def read_network(lines: Iterable[str]) -> NetworkUse:
    """Read the log of one process, of NCCL_DEBUG=INFO; of a silent log nothing is known."""
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
    """Why TCP instead of the `fabric` that the machine has; None where nothing shows that, or it was wished.

    An empty text is a fallback that the log does not explain.
    """
    if fabric is None or not use.by_tcp or use.asked_for_tcp(fabric):
        return None
    return use.causes.get(fabric, "")
