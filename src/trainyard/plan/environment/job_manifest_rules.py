"""Judge the fields of a manifest that decide whether training runs, and whether it uses the rented network.

It finds errors that the schema and the webhooks of a cluster would refuse, before anything is sent.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from trainyard.config.secret_forms import secret_value_kind
from trainyard.plan.environment.located_yaml import LocatedMapping, Text, all_mappings
from trainyard.plan.environment.settings_reading import has_gpus, instance_of, nodes_of, pod_specs
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import EFA, GPU

_LOCAL_DISKS = ("/mnt/k8s-disks", "/opt/dlami/nvme", "/opt/sagemaker", "/local", "/tmp")  # noqa: S108
_NODE_RANK = re.compile(r"--node[_-]rank[= ]?\d+|--machine_rank[= ]?\d+")
SHARED_MEMORY = "/dev/shm"  # noqa: S108
_DEVICES = "/dev/infiniband"
_OF_THE_POD = {"emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected"}
"""Volumes that end with the pod, or that nothing is saved in."""
_SAVED_IN = re.compile(
    r"--(?:(?!resume|load)[\w-]*(?:checkpoint|ckpt)[\w-]*|save|(?:save|output)[-_](?:dir|path|folder))"
    r"[= ]['\"]?(\.{0,2}/[^\s'\"]*|\.)"
)
"""An option that names the folder of checkpoints, and its value: a path."""
_RENDEZVOUS = re.compile(r"(?i)rdzv|master[-_]addr|standalone|nnodes[= ]1\b(?!:)")
PLAIN_SECRET = Finding.error(
    "a secret in plain text: everyone who can read the file, the image or the object can use it",
    "store it in a Secret, refer to that with valueFrom.secretKeyRef, and replace the exposed value",
)
_MOVING = ("latest", "main", "master", "nightly", "edge", "dev")


def judge_manifest(document: LocatedMapping) -> Iterator[Finding]:
    """Yield judgements about a document that describes pods; none about any other document."""
    title = " ".join((document.text("kind"), document.mapping("metadata").text("name"))).strip()
    kind, pods, several = document.text("kind"), list(pod_specs(document)), (nodes_of(document) or 1) > 1
    # A template of one pod may have its own node rank: the Master has 0.
    single = [
        each.mapping("template", "spec") for each in all_mappings(document) if each.text("replicas") == "1"
    ]
    found = [*map(_volumes, pods)]
    if kind not in ("Secret", "ConfigMap"):
        found.append(_secrets(document))
    if kind == "PyTorchJob":
        found.append(_pytorch_job(document, several=several))
    yield from (replace(each, area=title) for rule in found for each in rule)
    for pod in pods:
        for number, container in enumerate(pod.items_of("containers")):
            where = f"{title}, container {container.text('name')}"
            shares = several and not any(pod is each for each in single)
            for each in _container(container, pod, several=several, shares=shares):
                # KubeRay mounts a /dev/shm of the size of the memory in the first one.
                if number or each.subject != SHARED_MEMORY or not kind.startswith("Ray"):
                    yield replace(each, area=where)


def _error(line: int, subject: str, reason: str, fix: str = "remove it") -> Finding:
    return Finding(subject, Severity.ERROR, reason, fix, line=line)


def _warning(line: int, subject: str, reason: str, fix: str) -> Finding:
    return Finding(subject, Severity.WARNING, reason, fix, line=line)


def _secrets(document: LocatedMapping) -> Iterator[Finding]:
    """Yield tokens of a known form outside of variables, as in a command."""
    for mapping in all_mappings(document):
        for key, value in mapping.items():
            line = _line_of(value if isinstance(value, list) else [value])
            if key != "value" and secret_value_kind(line.encode(errors="surrogateescape")):
                yield replace(PLAIN_SECRET, subject=key, line=mapping.lines[key])


def _line_of(words: object) -> str:
    return " ".join(word for word in words if isinstance(word, Text)) if isinstance(words, list) else ""


def _pytorch_job(document: LocatedMapping, *, several: bool) -> Iterator[Finding]:
    """Yield pods that cannot find each other, and what the operator's webhook (1.9) refuses."""
    spec, roles = document.mapping("spec"), document.mapping("spec", "pytorchReplicaSpecs")
    commands = [_line_of(each.get(key)) for each in all_mappings(roles) for key in ("command", "args")]
    names = [str(one.text("name")) for each in all_mappings(roles) for one in each.items_of("env")]
    has_address = isinstance(spec.get("elasticPolicy"), LocatedMapping) or "Master" in roles
    has_address |= any(map(_RENDEZVOUS.search, [*commands, *names]))
    if several and not has_address and any(re.search(r"\btorchrun\b", line) for line in commands):
        yield _error(
            roles.line,
            "Master",
            "without one, and without elasticPolicy, torchrun gets no address: each pod waits for itself",
            "add a Master, or elasticPolicy: {rdzvBackend: c10d}",
        )
    for role, replicas in roles.items():
        if not isinstance(replicas, LocatedMapping):
            continue
        count, is_master = replicas.text("replicas"), role == "Master"
        if is_master and not count:
            reason = "training-operator 1.8 and later refuse a Master that does not say so"
            yield _warning(replicas.line, f"{role} replicas", reason, "set replicas: 1")
        elif count.number is not None and (count.number != 1 if is_master else count.number == 0):
            yield _error(
                count.line,
                f"{role} replicas",
                f"the operator refuses it: {'a Master is one pod' if is_master else 'no pods'}",
                "set replicas: 1" if is_master else f"leave {role} out, or set replicas to 1 or more",
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
    if has_gpus(roles) and not spec.mapping("runPolicy").text("cleanPodPolicy"):
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


def _container(
    container: LocatedMapping, pod: LocatedMapping, *, several: bool, shares: bool
) -> Iterator[Finding]:
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
    yield from _command(container, pod, shares=shares)
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


def _command(container: LocatedMapping, pod: LocatedMapping, *, shares: bool) -> Iterator[Finding]:
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
        line = _line_of(container.get(key))
        if shares and _NODE_RANK.search(line):
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
