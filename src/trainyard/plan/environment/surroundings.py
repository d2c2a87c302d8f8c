"""The known facts about the place where a process will run. None is unknown: no rule may assume a value."""

import re
from dataclasses import dataclass

from trainyard.plan.instances import InstanceType

Version = tuple[int, ...]


@dataclass(frozen=True)
class VariableScope:
    """The place where variables take effect."""

    instance: InstanceType | None = None
    nodes: int | None = None
    efa: int | None = None
    """EFA interfaces of a process."""
    gpus: int | None = None
    """GPUs per node that are used."""
    network: str = "auto"
    """The value of `compute.network`."""
    plugin: Version | None = None
    """The version of aws-ofi-nccl."""
    torch: Version | None = None
    host_network: bool = False
    is_pod: bool = False
    """Whether all variables of a container are known, so that an absent one is really not set."""

    @property
    def rdma(self) -> bool | None:
        """Return whether its EFA reads and writes the memory of GPUs and hosts directly (RDMA)."""
        return None if self.instance is None else self.instance.rdma

    @property
    def has_efa(self) -> bool | None:
        """Return whether there is an EFA interface to use."""
        if self.efa is not None:
            return self.efa > 0
        return False if self.instance is not None and self.instance.efa == 0 else None

    @property
    def on_efa(self) -> bool:
        """Return whether machines communicate over EFA: several, with interfaces, and network is not tcp."""
        return bool(self.nodes and self.nodes > 1 and self.efa and self.network != "tcp")


def version_of(text: str) -> Version | None:
    """Return the numbers of a version such as `1.13.0` or `v2.13`; None if `text` starts with no version."""
    found = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})", text)
    return tuple(int(part) for part in found[1].split(".")) if found else None
