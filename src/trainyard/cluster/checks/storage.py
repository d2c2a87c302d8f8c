"""Check the volume for checkpoints: access modes, driver, zone, and that it is not the disk of one node."""

import posixpath
from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.snapshot import ZONE, MissingData, Volume
from trainyard.plan.finding import Finding

NODE_LOCAL = (
    *("/opt/dlami/nvme", "/opt/sagemaker", "/mnt/k8s-disks", "/mnt/disks", "/local", "/local-ssd"),
    *("/scratch-local", "/dev/shm", "/tmp", "/var/tmp"),  # noqa: S108 - named to be refused
)
_SHARED, _READ_ONLY = "ReadWriteMany", "ReadOnlyMany"
_MOUNTPOINT = "s3.csi.aws.com"
_EBS = ("ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs")
"""The driver, that of EKS Auto Mode, and the earlier provisioner."""
_FSX = "use a file system that all nodes write to, such as FSx for Lustre (fsx.csi.aws.com)"


def judge(facts: Facts) -> Iterator[Finding]:
    path = posixpath.normpath(facts.job.mount_path) if facts.job.mount_path else ""
    local = next((root for root in NODE_LOCAL if path == root or path.startswith(f"{root}/")), None)
    if local:
        yield Finding.error(
            f"checkpoints would go to {path}, which is on a disk of each node and is lost with it",
            f"mount a claim and write there (--volume, --checkpoint-path); {local} is for caches only",
        )
    volume = facts.snapshot.volume
    if not facts.job.claim:
        yield Finding.skipped("no claim is named (--volume)")
    elif isinstance(volume, MissingData):
        yield volume.as_finding()
    elif volume is None:
        name, space = facts.job.claim, facts.job.namespace
        yield Finding.error(
            f"the namespace {space} has no PersistentVolumeClaim {name}",
            "set cluster.volume and then trainyard cluster fix --apply, or create the claim yourself",
        )
    else:
        found = list(_judge_volume(volume, facts))
        yield from found
        if not found and not local:
            modes = ", ".join(volume.access_modes)
            yield Finding.success(f"claim {volume.name}: {modes}, {volume.driver or 'driver not known'}")


def _judge_volume(volume: Volume, facts: Facts) -> Iterator[Finding]:
    nodes = facts.job.nodes
    if volume.phase == "Lost":
        yield Finding.error(
            f"claim {volume.name}: its volume is gone (Lost)", "create a new claim; the data are not in it"
        )
    elif volume.phase == "Pending" and not volume.waits_for_consumer:
        command = f"kubectl -n {facts.job.namespace} describe pvc {volume.name}"
        yield Finding.error(f"claim {volume.name} is not bound to a volume (Pending)", command)
    if volume.terminating:
        yield Finding.error(
            f"claim {volume.name} is being deleted: no new pod can use it", "create a claim of another name"
        )
    modes = ", ".join(volume.access_modes)
    if volume.access_modes and set(volume.access_modes) == {_READ_ONLY}:
        yield Finding.error(f"claim {volume.name} is {modes}: nobody can write to it", _FSX)
    elif nodes > 1 and volume.access_modes and _SHARED not in volume.access_modes:
        yield Finding.error(f"claim {volume.name} is {modes}: {nodes} nodes cannot write to it", _FSX)
    elif volume.driver in _EBS and nodes > 1:
        yield Finding.error(f"claim {volume.name} is a block device of EBS, which one node can mount", _FSX)
    if volume.driver == _MOUNTPOINT:
        yield Finding.error(
            f"claim {volume.name} is Mountpoint for S3, which has no rename and no write in place: "
            "checkpoints need both",
            "read data from it, and write checkpoints elsewhere; " + _FSX,
        )
    if volume.local:
        yield Finding.error(f"claim {volume.name} is on a disk of one node (hostPath or local)", _FSX)
    yield from _driver(volume, facts)
    yield from _zone(volume, facts)


def _driver(volume: Volume, facts: Facts) -> Iterator[Finding]:
    installed = facts.snapshot.drivers
    if isinstance(installed, MissingData) or not volume.driver.endswith(".csi.aws.com"):
        return
    if volume.driver not in installed:
        yield Finding.error(
            f"claim {volume.name} needs the CSI driver {volume.driver}, which is not installed",
            f"install it: aws eks create-addon --addon-name aws-{volume.driver.split('.')[0]}-csi-driver",
        )


def _zone(volume: Volume, facts: Facts) -> Iterator[Finding]:
    usable = [fitness.node for fitness in facts.fits if fitness.fit]
    labels = {node.labels.get(ZONE, "") for node in usable} - {""}
    if volume.zones and labels and not labels & set(volume.zones):
        yield Finding.error(
            f"claim {volume.name} is in {list_names(volume.zones)}, "
            f"the nodes are in {list_names(sorted(labels))}",
            "take nodes or a volume of the same zone",
        )
    elif volume.zones and labels - set(volume.zones):
        outside = list_names(sorted(labels - set(volume.zones)))
        yield Finding.warning(
            f"claim {volume.name} is in {list_names(volume.zones)}; nodes in {outside} cannot use it",
            "keep the job in one zone",
        )


CHECK = Check("storage", "the volume for checkpoints", judge)
