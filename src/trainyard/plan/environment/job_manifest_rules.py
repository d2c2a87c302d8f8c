"""Judge the fields of a manifest that decide whether training runs, and whether it uses the rented network.

It finds errors that the schema and the webhooks of a cluster would refuse, before anything is sent.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from trainyard.plan.environment.located_yaml import LocatedMapping, Text, all_mappings
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
    yield from _ray_parameters(document, title)
    if document.text("kind") == "PyTorchJob":
        yield from _pytorch_job(document, title)
    several = (nodes_of(document) or 1) > 1
    for pod in pods:
        yield from _pod(pod, title, several=several)


def _judged_field(
    line: int, subject: str, where: str, severity: Severity, *, reason: str, fix: str = "remove it"
) -> Finding:
    return Finding(subject, severity, reason, fix, area=where, line=line)


def _ray_parameters(document: LocatedMapping, title: str) -> Iterator[Finding]:
    for mapping in all_mappings(document):
        parameters = mapping.mapping("rayStartParams")
        for name, value in parameters.items():
            if isinstance(value, Text) and not value.is_text:
                yield _judged_field(
                    parameters.lines[name],
                    f"rayStartParams.{name}",
                    title,
                    Severity.ERROR,
                    reason="the API server refuses it: the values must be strings",
                    fix=f'write {name}: "{value}"',
                )


def _pytorch_job(document: LocatedMapping, title: str) -> Iterator[Finding]:
    spec = document.mapping("spec")
    for role, replicas in spec.mapping("pytorchReplicaSpecs").items():
        if not isinstance(replicas, LocatedMapping):
            continue
        if replicas.text("replicas").number == 0:
            yield _judged_field(
                replicas.lines["replicas"],
                f"{role} replicas",
                title,
                Severity.ERROR,
                reason="the operator refuses a role without pods",
                fix=f"leave {role} out, or set replicas to 1 or more",
            )
        containers = replicas.mapping("template", "spec").items_of("containers")
        names = [str(container.text("name")) for container in containers]
        if containers and "pytorch" not in names:
            yield _judged_field(
                containers[0].line,
                f"{role} containers",
                title,
                Severity.ERROR,
                reason=f"the operator refuses it: no container is called pytorch ({', '.join(names)})",
                fix="name the container pytorch",
            )
    if not spec.mapping("runPolicy").text("cleanPodPolicy"):
        yield _judged_field(
            spec.line,
            "runPolicy.cleanPodPolicy",
            title,
            Severity.WARNING,
            reason="it is not set: pods that still run when the job has ended keep their GPUs",
            fix="set cleanPodPolicy: Running",
        )


def _pod(pod: LocatedMapping, title: str, *, several: bool) -> Iterator[Finding]:
    if pod.text("hostNetwork").is_true:
        yield _judged_field(
            pod.lines["hostNetwork"],
            "hostNetwork",
            title,
            Severity.INFO,
            reason="EFA does not need it; pods then share the ports of their node",
        )
    yield from _volumes(pod, title)
    for container in pod.items_of("containers"):
        yield from _container(container, pod, title, several=several)


def _volumes(pod: LocatedMapping, title: str) -> Iterator[Finding]:
    mounted = {
        str(mount.text("name")): str(mount.text("mountPath"))
        for container in pod.items_of("containers")
        for mount in container.items_of("volumeMounts")
    }
    for volume in pod.items_of("volumes"):
        path = str(volume.mapping("hostPath").text("path"))
        target = mounted.get(str(volume.text("name")), "")
        if path.rstrip("/") == SHARED_MEMORY:
            yield _judged_field(
                volume.line,
                SHARED_MEMORY,
                title,
                Severity.WARNING,
                reason="all pods of the node share the host's /dev/shm",
                fix="use an emptyDir with medium: Memory and a sizeLimit",
            )
        elif path.startswith(_DEVICES):
            yield _judged_field(
                volume.line,
                f"volume {volume.text('name')}",
                title,
                Severity.WARNING,
                reason=f"the host's {path} covers the EFA devices that the device plugin gives the pod: on "
                "some types NCCL then uses TCP, without an error",
                fix=f"remove the volume and privileged, and request {EFA}",
            )
        elif path.startswith(_LOCAL_DISKS) and re.search("checkpoint|ckpt|output", path + target):
            yield _judged_field(
                volume.line,
                f"volume {volume.text('name')}",
                title,
                Severity.WARNING,
                reason=f"{path} is on a disk of one node: others lack it, and it is lost with the node",
                fix="use a PersistentVolumeClaim that all nodes share, such as FSx for Lustre",
            )


def _container(
    container: LocatedMapping, pod: LocatedMapping, title: str, *, several: bool
) -> Iterator[Finding]:
    where = f"{title}, container {container.text('name')}"
    resources = container.mapping("resources")
    requests, limits = resources.mapping("requests"), resources.mapping("limits")
    for name in (GPU, EFA):
        wanted, most = requests.text(name), limits.text(name)
        if wanted and wanted != most:
            yield _judged_field(
                requests.lines[name],
                name,
                where,
                Severity.ERROR,
                reason=f"the request is {wanted} and the limit {most or 'not set'}: such a pod is refused",
                fix="set request and limit to the same number",
            )
    mounted = [mount.text("mountPath").rstrip("/") for mount in container.items_of("volumeMounts")]
    if limits.text(GPU).number and SHARED_MEMORY not in mounted:
        yield _judged_field(
            container.line,
            SHARED_MEMORY,
            where,
            Severity.WARNING,
            reason="it is not mounted: the default of 64 MiB is too small for data loaders and NCCL",
            fix="mount an emptyDir with medium: Memory there",
        )
    yield from _interfaces(limits, pod, where, several=several)
    yield from _command(container, where, several=several)
    yield from _checkpoints(container, pod, where)
    yield from _image(container, where)


def _interfaces(
    limits: LocatedMapping, pod: LocatedMapping, where: str, *, several: bool
) -> Iterator[Finding]:
    instance = instance_of(pod)
    if instance is None:
        return
    wanted, gpus = limits.text(EFA).number or 0, limits.text(GPU).number or 0
    if wanted > instance.efa:
        yield _judged_field(
            limits.lines[EFA],
            EFA,
            where,
            Severity.ERROR,
            reason=f"{wanted} are requested, and {instance.name} has {instance.efa}: the pod never starts",
            fix=f"request {instance.efa}" if instance.efa else "remove it",
        )
    elif several and instance.efa and gpus == instance.gpus and wanted < instance.efa:
        yield _judged_field(
            limits.line,
            EFA,
            where,
            Severity.WARNING,
            reason=f"only {wanted} of the {instance.efa} interfaces of {instance.name} are requested",
            fix=f"request {instance.efa}",
        )
    if gpus > instance.gpus:
        yield _judged_field(
            limits.lines[GPU],
            GPU,
            where,
            Severity.ERROR,
            reason=f"{gpus} are requested, and {instance.name} has {instance.gpus}: the pod never starts",
            fix=f"request at most {instance.gpus}",
        )


def _command(container: LocatedMapping, where: str, *, several: bool) -> Iterator[Finding]:
    for key in ("command", "args"):
        words = container.get(key)
        line = " ".join(word for word in words if isinstance(word, Text)) if isinstance(words, list) else ""
        if several and _NODE_RANK.search(line):
            yield _judged_field(
                container.lines[key],
                key,
                where,
                Severity.ERROR,
                reason="the node rank is a number in a template that pods share: all get the same rank",
                fix="remove it: torchrun reads PET_NODE_RANK; for other launchers write $(PET_NODE_RANK)",
            )


def _checkpoints(container: LocatedMapping, pod: LocatedMapping, where: str) -> Iterator[Finding]:
    """Yield folders for checkpoints that are on no volume; a relative one only if the container has none."""
    lost = [str(volume.text("name")) for volume in pod.items_of("volumes") if set(volume) & _OF_THE_POD]
    kept = [
        PurePosixPath(mount.text("mountPath"))
        for mount in container.items_of("volumeMounts")
        if str(mount.text("name")) not in lost and mount.text("mountPath") != SHARED_MEMORY
    ]
    folder = PurePosixPath(container.text("workingDir") or ".")
    for key in ("command", "args"):
        words = container.get(key)
        texts = [word for word in words if isinstance(word, Text)] if isinstance(words, list) else []
        for found in _SAVED_IN.finditer(" ".join(texts)):
            path = folder / found[1]
            if any(path.is_relative_to(mount) for mount in kept) or (kept and not path.is_absolute()):
                continue
            yield _judged_field(
                container.lines[key],
                key,
                where,
                Severity.WARNING,
                reason=f"{found[1][:80]} is on no volume: checkpoints there are lost with the pod",
                fix="mount a PersistentVolumeClaim, and save below its mountPath",
            )


def _image(container: LocatedMapping, where: str) -> Iterator[Finding]:
    image = str(container.text("image"))
    tag = image.rpartition("/")[2].partition(":")[2]
    if image and "@" not in image and (not tag or tag in _MOVING):
        yield _judged_field(
            container.text("image").line,
            "image",
            where,
            Severity.WARNING,
            reason=f"the tag of {image[:80]} can move: pods that start later may run another image",
            fix="pin it by digest (@sha256:…)",
        )
