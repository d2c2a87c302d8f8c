"""The known facts about the place where a process will run; None is unknown, and no rule uses it."""

import re
from dataclasses import dataclass

from trainyard.plan.instances import InstanceType

Version = tuple[int, ...]


@dataclass(frozen=True)
class VariableScope:
    """Places where variables will have their effect."""

    instance: InstanceType | None = None
    nodes: int | None = None
    efa: int | None = None
    """EFA interfaces that a process is given."""
    gpus: int | None = None
    """GPUs of one node that are used."""
    network: str = "auto"
    """As in `compute.network`."""
    plugin: Version | None = None
    """The version of aws-ofi-nccl."""
    torch: Version | None = None
    host_network: bool = False
    is_pod: bool = False
    """Whether all variables of a container are known, so that a missing one is missing."""

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
        """Return whether machines are to talk over EFA: several of them, interfaces, and no wish for TCP."""
        return bool(self.nodes and self.nodes > 1 and self.efa and self.network != "tcp")


def version_of(text: str) -> Version | None:
    """The numbers of `1.13.0` or `v2.13`; None where there are none."""
    found = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,3})", text)
    return tuple(int(part) for part in found[1].split(".")) if found else None
