"""Find the DaemonSets that install devices on nodes, by every label set that their installers use.

A missing DaemonSet is not a fault by itself: Bottlerocket and EKS Auto Mode have the plugin built in.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.cluster.snapshot import Node, Workload

_NVIDIA_LABELS = (
    ("app", "nvidia-device-plugin-daemonset", "GPU operator"),
    ("name", "nvidia-device-plugin-ds", "static manifest"),
    ("app.kubernetes.io/name", "nvidia-device-plugin", "Helm chart"),
    ("k8s-app", "nvidia-gpu-device-plugin", "GKE"),
)
_EFA_SUFFIX = "aws-efa-k8s-device-plugin"


@dataclass(frozen=True)
class InstalledDaemonSet:
    """A DaemonSet that was found, and its installer."""

    workload: Workload
    installer: str

    @property
    def text(self) -> str:
        found = self.workload
        ready = f"{found.available} of {found.wanted} pods ready"
        return f"{found.namespace}/{found.name} ({self.installer}), {ready}"


def nvidia_plugins(daemons: Iterable[Workload]) -> tuple[InstalledDaemonSet, ...]:
    """NVIDIA's device plugins."""
    return tuple(found for daemon in daemons if (found := _nvidia(daemon)) is not None)


def _nvidia(daemon: Workload) -> InstalledDaemonSet | None:
    if "mps" in daemon.name or "feature-discovery" in daemon.name:
        return None
    if daemon.name.startswith("dependencies-") and "nvidia-device-plugin" in daemon.name:
        return InstalledDaemonSet(daemon, "HyperPod chart")
    for key, value, installer in _NVIDIA_LABELS:
        if daemon.labels.get(key) == value:
            return InstalledDaemonSet(daemon, installer)
    by_name = "nvidia-device-plugin" in daemon.name or "nvidia-gpu-device-plugin" in daemon.name
    by_image = any("k8s-device-plugin" in image and _EFA_SUFFIX not in image for image in daemon.images)
    return InstalledDaemonSet(daemon, "own manifest") if by_name or by_image else None


def efa_plugins(daemons: Iterable[Workload]) -> tuple[InstalledDaemonSet, ...]:
    """EFA's device plugins."""
    return tuple(
        InstalledDaemonSet(
            daemon, "HyperPod chart" if daemon.name.startswith("dependencies-") else "EFA chart"
        )
        for daemon in daemons
        if _EFA_SUFFIX in daemon.name
        or daemon.labels.get("name", "").endswith(_EFA_SUFFIX)
        or any(_EFA_SUFFIX in image for image in daemon.images)
    )


def has_built_in_plugin(node: Node) -> bool:
    """Return whether the node's operating system includes NVIDIA's device plugin."""
    return "Bottlerocket" in node.os_image or node.labels.get("eks.amazonaws.com/compute-type") == "auto"
