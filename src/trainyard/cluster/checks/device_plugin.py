"""Check the device plugin that offers the GPUs, to explain GPUs that are missing.

If every node offers its GPUs, nothing is wrong, whoever installed the plugin: Bottlerocket and EKS Auto Mode
have it built in. The DaemonSets are found by every label set that their installers use.
"""

from collections.abc import Iterable, Iterator

from trainyard.cluster.capacity import UNCOUNTED
from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.fitness import Fitness
from trainyard.cluster.snapshot import MissingData, Node, Workload
from trainyard.plan.finding import Finding
from trainyard.plan.instances import GPU

# Of the GPU operator, the static manifest, the Helm chart and GKE.
_NVIDIA_LABELS = (
    ("app", "nvidia-device-plugin-daemonset"),
    ("name", "nvidia-device-plugin-ds"),
    ("app.kubernetes.io/name", "nvidia-device-plugin"),
    ("k8s-app", "nvidia-gpu-device-plugin"),
)
_EFA_SUFFIX = "aws-efa-k8s-device-plugin"
INSTALL = "install the NVIDIA device plugin (github.com/NVIDIA/k8s-device-plugin) at a pinned version"


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.wants_gpus or not facts.fits:
        yield Finding.skipped("there is no node with GPUs to check")
        return
    if isinstance(facts.snapshot.daemons, MissingData):
        yield facts.snapshot.daemons.as_finding()
        return
    plugins = tuple(daemon for daemon in facts.snapshot.daemons if _is_nvidia(daemon))
    counted = [fitness for fitness in facts.fits if not fitness.uncounted]
    if not counted:
        yield Finding.skipped(f"not checked: {UNCOUNTED}")
        return
    without = [fitness for fitness in counted if fitness.gpus is None]
    bare = [fitness for fitness in without if "nvidia.com/" not in " ".join(fitness.node.allocatable)]
    if bare:
        why, fix = _explain_missing_gpus(bare, plugins)
        nodes = list_names(fitness.node.name for fitness in bare)
        yield facts.error_unless_enough(f"{nodes}: {why}", fix)
    else:
        yield Finding.success(_describe_provider(counted, plugins))


def _explain_missing_gpus(bare: list[Fitness], plugins: tuple[Workload, ...]) -> tuple[str, str]:
    """Return why nodes offer no GPU, and the fix."""
    if all(has_built_in_plugin(fitness.node) for fitness in bare):
        return (
            f"{bare[0].node.os_image or 'EKS Auto Mode'} has the plugin built in, and offers no GPU",
            "check whether the image is its variant for NVIDIA (aws-k8s-*-nvidia)",
        )
    if not plugins:
        return "no NVIDIA device plugin was found under any of its labels and names", INSTALL
    plugin = plugins[0]
    where = f"kubectl -n {plugin.namespace}"
    if plugin.available < plugin.wanted:
        return describe_daemon(plugin), f"{where} describe daemonset {plugin.name}"
    return (
        f"{describe_daemon(plugin)}, and the node offers no {GPU}: the driver may have come after the "
        "plugin, or its DaemonSet does not select the node",
        f"{where} rollout restart daemonset {plugin.name}, after checking its nodeSelector and tolerations",
    )


def _describe_provider(fits: list[Fitness], plugins: tuple[Workload, ...]) -> str:
    if plugins:
        return describe_daemon(plugins[0])
    if all(has_built_in_plugin(fitness.node) for fitness in fits):
        return "built into the operating system"
    return "none was found, and the nodes offer their GPUs"


def describe_daemon(found: Workload) -> str:
    return f"{found.namespace}/{found.name}, {found.available} of {found.wanted} pods ready"


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


CHECK = Check("device-plugin", "the plugin that offers the GPUs", judge)
