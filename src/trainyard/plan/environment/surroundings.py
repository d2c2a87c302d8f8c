"""The known facts about the place where a process will run. None is unknown: no rule may assume a value."""

from dataclasses import dataclass

from trainyard.plan.instances import InstanceType


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
