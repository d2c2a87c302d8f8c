"""Find the DaemonSets that install devices on nodes, by every label set that their installers use.

A missing DaemonSet is not a fault by itself: Bottlerocket and EKS Auto Mode have the plugin built in.
"""

from collections.abc import Iterable

from trainyard.cluster.snapshot import Node, Workload

# Of the GPU operator, the static manifest, the Helm chart and GKE.
_NVIDIA_LABELS = (
    ("app", "nvidia-device-plugin-daemonset"),
    ("name", "nvidia-device-plugin-ds"),
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("k8s-app", "nvidia-gpu-device-plugin"),
)
_EFA_SUFFIX = "aws-efa-k8s-device-plugin"


def describe_daemon(found: Workload) -> str:
    return f"{found.namespace}/{found.name}, {found.available} of {found.wanted} pods ready"


def nvidia_plugins(daemons: Iterable[Workload]) -> tuple[Workload, ...]:
    """NVIDIA's device plugins."""
    return tuple(daemon for daemon in daemons if _is_nvidia(daemon))


def _is_nvidia(daemon: Workload) -> bool:
    if "mps" in daemon.name or "feature-discovery" in daemon.name:
        return False
    by_label = any(daemon.labels.get(key) == value for key, value in _NVIDIA_LABELS)
    by_name = "nvidia-device-plugin" in daemon.name or "nvidia-gpu-device-plugin" in daemon.name
    by_image = any("k8s-device-plugin" in image and _EFA_SUFFIX not in image for image in daemon.images)
    return by_label or by_name or by_image


def efa_plugins(daemons: Iterable[Workload]) -> tuple[Workload, ...]:
    """EFA's device plugins."""
    return tuple(
        daemon
        for daemon in daemons
        if any(_EFA_SUFFIX in text for text in (daemon.name, daemon.labels.get("name", ""), *daemon.images))
    )


def has_built_in_plugin(node: Node) -> bool:
    """Return whether the node's operating system includes NVIDIA's device plugin."""
    return "Bottlerocket" in node.os_image or node.labels.get("eks.amazonaws.com/compute-type") == "auto"
