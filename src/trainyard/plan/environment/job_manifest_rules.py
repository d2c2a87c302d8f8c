"""Judge the fields of a manifest that decide whether training runs, and whether it uses the rented network.

It finds errors that the schema and the webhooks of a cluster would refuse, before anything is sent.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from trainyard.plan.environment.located_yaml import LocatedMapping, Text
from trainyard.plan.environment.settings_reading import instance_of, nodes_of, pod_specs
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import EFA, GPU

_LOCAL_DISKS = ("/mnt/k8s-disks", "/opt/dlami/nvme", "/opt/sagemaker", "/local", "/tmp")  # noqa: S108
_NODE_RANK = re.compile(r"--node[_-]rank[= ]?\d+|--machine_rank[= ]?\d+")
SHARED_MEMORY = "/dev/shm"  # noqa: S108
_DEVICES = "/dev/infiniband"
_OF_THE_POD = {"emptyDir", "configMap", "secret", "downwardAPI", "projected"}
"""Volumes that end with the pod, or that nothing is saved in."""
_SAVED_IN = re.compile(
    r"--(?:(?!resume|load)[\w-]*(?:checkpoint|ckpt)[\w-]*|save|(?:save|output)[-_](?:dir|path|folder))"
    r"[= ]['\"]?(\.{0,2}/[^\s'\"]*|\.)"
)
"""An option that names the folder of checkpoints, and its value: a path."""
_MOVING = ("latest", "main", "master", "nightly", "edge", "dev")


def judge_manifest(document: LocatedMapping) -> Iterator[Finding]:
    """Yield judgements about a document that describes pods; none about any other document."""
    title = " ".join((document.text("kind"), document.mapping("metadata").text("name"))).strip()
    pods = list(pod_specs(document))
    if not pods:
        return
    several = (nodes_of(document) or 1) > 1
    found = [*map(_volumes, pods)]
    if document.text("kind") == "PyTorchJob":
        found.append(_pytorch_job(document))
    yield from (replace(each, area=title) for rule in found for each in rule)
    for pod in pods:
        for container in pod.items_of("containers"):
            where = f"{title}, container {container.text('name')}"
            yield from (replace(each, area=where) for each in _container(container, pod, several=several))


def _error(line: int, subject: str, reason: str, fix: str = "remove it") -> Finding:
    return Finding(subject, Severity.ERROR, reason, fix, line=line)


def _warning(line: int, subject: str, reason: str, fix: str) -> Finding:
    return Finding(subject, Severity.WARNING, reason, fix, line=line)


def _pytorch_job(document: LocatedMapping) -> Iterator[Finding]:
    spec = document.mapping("spec")
    for role, replicas in spec.mapping("pytorchReplicaSpecs").items():
        if not isinstance(replicas, LocatedMapping):
            continue
        if replicas.text("replicas").number == 0:
            yield _error(
                replicas.lines["replicas"],
                f"{role} replicas",
                "the operator refuses a role without pods",
                f"leave {role} out, or set replicas to 1 or more",
            )
        containers = replicas.mapping("template", "spec").items_of("containers")
        names = [str(container.text("name")) for container in containers]
        if containers and "pytorch" not in names:
            yield _error(
                containers[0].line,
                f"{role} containers",
                f"the operator refuses it: no container is called pytorch ({', '.join(names)})",
                "name the container pytorch",
            )
    if not spec.mapping("runPolicy").text("cleanPodPolicy"):
        yield _warning(
            spec.line,
            "runPolicy.cleanPodPolicy",
            "it is not set: pods that still run when the job has ended keep their GPUs",
            "set cleanPodPolicy: Running",
        )


def _volumes(pod: LocatedMapping) -> Iterator[Finding]:
    mounted = {
        str(mount.text("name")): str(mount.text("mountPath"))
        for container in pod.items_of("containers")
        for mount in container.items_of("volumeMounts")
    }
    for volume in pod.items_of("volumes"):
        path = str(volume.mapping("hostPath").text("path"))
        name = str(volume.text("name"))
        if path.rstrip("/") == SHARED_MEMORY:
            yield _warning(
                volume.line,
                SHARED_MEMORY,
                "all pods of the node share the host's /dev/shm",
                "use an emptyDir with medium: Memory and a sizeLimit",
            )
        elif path.startswith(_DEVICES):
            yield _warning(
                volume.line,
                f"volume {name}",
                f"the host's {path} covers the EFA devices that the device plugin gives the pod: on some "
                "types NCCL then uses TCP, without an error",
                f"remove the volume and privileged, and request {EFA}",
            )
        elif path.startswith(_LOCAL_DISKS) and re.search(
            "checkpoint|ckpt|output", path + mounted.get(name, "")
        ):
            yield _warning(
                volume.line,
                f"volume {name}",
                f"{path} is on a disk of one node: others lack it, and it is lost with the node",
                "use a PersistentVolumeClaim that all nodes share, such as FSx for Lustre",
            )


def _container(container: LocatedMapping, pod: LocatedMapping, *, several: bool) -> Iterator[Finding]:
    resources = container.mapping("resources")
    requests, limits = resources.mapping("requests"), resources.mapping("limits")
    for name in (GPU, EFA):
        wanted, most = requests.text(name), limits.text(name)
        if wanted and wanted != most:
            yield _error(
                requests.lines[name],
                name,
                f"the request is {wanted} and the limit {most or 'not set'}: such a pod is refused",
                "set request and limit to the same number",
            )
    mounted = [mount.text("mountPath").rstrip("/") for mount in container.items_of("volumeMounts")]
    if limits.text(GPU).number and SHARED_MEMORY not in mounted:
        yield _warning(
            container.line,
            SHARED_MEMORY,
            "it is not mounted: the default of 64 MiB is too small for data loaders and NCCL",
            "mount an emptyDir with medium: Memory there",
        )
    yield from _interfaces(limits, pod, several=several)
    yield from _command(container, pod, several=several)
    image = container.text("image")
    tag = image.rpartition("/")[2].partition(":")[2]
    is_open = re.search(r"\$(\w+|\{\w+\})$", image)  # the template's variable has the tag
    if image and "@" not in image and not is_open and (not tag or tag in _MOVING):
        yield _warning(
            image.line,
            "image",
            f"the tag of {image[:80]} can move: pods that start later may run another image",
            "pin it by digest (@sha256:…)",
        )


def _interfaces(limits: LocatedMapping, pod: LocatedMapping, *, several: bool) -> Iterator[Finding]:
    instance = instance_of(pod)
    if instance is None:
        return
    wanted, gpus = limits.text(EFA).number or 0, limits.text(GPU).number or 0
    if wanted > instance.efa:
        yield _error(
            limits.lines[EFA],
            EFA,
            f"{wanted} are requested, and {instance.name} has {instance.efa}: the pod never starts",
            f"request {instance.efa}" if instance.efa else "remove it",
        )
    elif several and instance.efa and gpus == instance.gpus and wanted < instance.efa:
        yield _warning(
            limits.line,
            EFA,
            f"only {wanted} of the {instance.efa} interfaces of {instance.name} are requested",
            f"request {instance.efa}",
        )
    if gpus > instance.gpus:
        yield _error(
            limits.lines[GPU],
            GPU,
            f"{gpus} are requested, and {instance.name} has {instance.gpus}: the pod never starts",
            f"request at most {instance.gpus}",
        )


def _command(container: LocatedMapping, pod: LocatedMapping, *, several: bool) -> Iterator[Finding]:
    """Yield fixed node ranks, and folders for checkpoints that are on no volume.

    A relative folder is below the working directory of the image, so it is only known to be lost if the
    container has no volume.
    """
    lost = [str(volume.text("name")) for volume in pod.items_of("volumes") if set(volume) & _OF_THE_POD]
    kept = [
        PurePosixPath(mount.text("mountPath"))
        for mount in container.items_of("volumeMounts")
        if str(mount.text("name")) not in lost and mount.text("mountPath") != SHARED_MEMORY
    ]
    folder = PurePosixPath(container.text("workingDir") or ".")
    for key in ("command", "args"):
        words = container.get(key)
        line = " ".join(word for word in words if isinstance(word, Text)) if isinstance(words, list) else ""
        if several and _NODE_RANK.search(line):
            yield _error(
                container.lines[key],
                key,
                "the node rank is a number in a template that pods share: all get the same rank",
                "remove it: torchrun reads PET_NODE_RANK; for other launchers write $(PET_NODE_RANK)",
            )
        for found in _SAVED_IN.finditer(line):
            path = folder / found[1]
            if any(path.is_relative_to(mount) for mount in kept) or (kept and not path.is_absolute()):
                continue
            yield _warning(
                container.lines[key],
                key,
                f"{found[1][:80]} is on no volume: checkpoints there are lost with the pod",
                "mount a PersistentVolumeClaim, and save below its mountPath",
            )
