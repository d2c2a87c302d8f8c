"""Check the device plugin that offers the GPUs, to explain GPUs that are missing.

If every node offers its GPUs, nothing is wrong, whoever installed the plugin.
"""

from collections.abc import Iterator

from trainyard.cluster.capacity import UNCOUNTED
from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.checks.installers import describe_daemon, has_built_in_plugin, nvidia_plugins
from trainyard.cluster.fitness import Fitness
from trainyard.cluster.snapshot import MissingData, Workload
from trainyard.plan.finding import Finding
from trainyard.plan.instances import GPU

INSTALL = "install the NVIDIA device plugin (github.com/NVIDIA/k8s-device-plugin) at a pinned version"


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.wants_gpus or not facts.fits:
        yield Finding.skipped("there is no node with GPUs to check")
        return
    if isinstance(facts.snapshot.daemons, MissingData):
        yield facts.snapshot.daemons.as_finding()
        return
    plugins = nvidia_plugins(facts.snapshot.daemons)
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


CHECK = Check("device-plugin", "the plugin that offers the GPUs", judge)
