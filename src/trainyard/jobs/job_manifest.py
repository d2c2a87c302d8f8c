"""Read a job that somebody else wrote, so that it is checked, sent and followed like one of our own.

    texts ──read_objects──> objects ──find_job──> JobManifest ──spec──> JobSpec ──add_record──> Manifests

The job's object gets our labels and a record, and nothing else is changed. The other objects of the manifest,
such as a Service, a claim or a TrainingRuntime, are applied as they are, and stay when the job is deleted.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from trainyard.cluster.resource_quantities import NotAQuantityError, thousandths
from trainyard.config.yaml_reader import parse_documents
from trainyard.errors import ConfigError
from trainyard.jobs.job_kind import JobKind, Manifests
from trainyard.jobs.job_object import JOB_LABEL, record_annotations, record_labels
from trainyard.jobs.job_spec import JobSpec, PodResources, Program, SecretVariable
from trainyard.jobs.kinds import EVERY_KIND, ray_cluster
from trainyard.jobs.pod_template import INSTANCE_TYPE
from trainyard.jobs.state.reading import claims_of, field_of, name_of, read_labels
from trainyard.plan.environment.settings_reading import pod_groups
from trainyard.plan.instances import EFA, GPU

Json = dict[str, Any]
_QUEUE = "kueue.x-k8s.io/queue-name"
_PLACEHOLDER = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_NOT_FILLED_IN = re.compile(r"[<>${}\s]")
_MIB = 1000 * 2**20
_MADE = (
    ("claim", "PersistentVolumeClaim", ""),
    ("secret_environment", "Secret", ""),
    ("queue", "LocalQueue", ""),
    ("service_account", "ServiceAccount", "serviceAccountName"),
    ("priority_class", "PriorityClass", "priorityClassName"),
)
"""Values of a plan that name an object, its kind, and the field that is looked up when a pod is admitted."""
_DEFAULT_GRACE = 30
"""Kubernetes' grace period in seconds."""


@dataclass(frozen=True)
class TrainingPods:
    """The pods of a job that train."""

    count: int
    template: Json
    container: Json
    """The container that trains, or for Ray the one that its pods run."""
    is_complete: bool = True
    """False for a TrainJob whose runtime was not seen: then the template is a part of the real one."""
    is_served: bool = True
    """False for a TrainJob whose runtime is only in the manifest."""


@dataclass(frozen=True)
class JobManifest:
    """A job of a manifest."""

    kind: JobKind
    job: Json
    others: tuple[Json, ...] = ()
    """The other objects, in their order."""

    @property
    def digest(self) -> str:
        """The SHA-256 of all objects."""
        return sha256(json.dumps([self.job, *self.others], sort_keys=True).encode()).hexdigest()

    def pods(self, find_runtime: Callable[[Json], Json | None]) -> TrainingPods:
        """Return the pods with the most GPUs. Raises ConfigError for a job without pods.

        `find_runtime` returns the cluster's object for the reference of a TrainJob; None if it is not seen.
        """
        if self.kind.needs_runtime:
            return self._trainer_pods(find_runtime)
        groups = [
            TrainingPods(count, template, training_container(template, self.kind))
            for count, template in pod_groups(self.job.get("spec"), pod_count)
        ]
        if not groups:
            do = "; send that of the RayCluster that it selects" if self.kind.on_ray else ""
            raise ConfigError(f"{self.title}: no template of pods with containers{do}. Nothing was sent.")
        most = max(_amount(group.container, GPU) for group in groups)
        equal = [group for group in groups if _amount(group.container, GPU) == most]
        return replace(equal[0], count=sum(group.count for group in equal))

    def _trainer_pods(self, find_runtime: Callable[[Json], Json | None]) -> TrainingPods:
        spec = self.job.get("spec") or {}
        trainer, reference = spec.get("trainer") or {}, spec.get("runtimeRef") or {}
        kind, name = str(reference.get("kind") or "ClusterTrainingRuntime"), reference.get("name")
        own = next((o for o in self.others if (o.get("kind"), name_of(o)) == (kind, name)), None)
        runtime = own or find_runtime({"kind": kind, "name": name}) or {}
        templates = [template for _, template in pod_groups(runtime.get("spec"), pod_count)]
        trains = self.kind.container
        named = (t for t in templates if training_container(t, self.kind).get("name") == trains)
        template = deepcopy(next(named, {"spec": {"containers": [{"name": trains}]}}))
        container = training_container(template, self.kind)
        container.update({key: trainer[key] for key in ("image", "command", "args") if trainer.get(key)})
        if resources := trainer.get("resourcesPerNode"):
            container["resources"] = resources
        container["env"] = [*(container.get("env") or ()), *(trainer.get("env") or ())]
        nodes = trainer.get("numNodes") or field_of(runtime, "spec", "mlPolicy", "numNodes")
        return TrainingPods(pod_count("numNodes", nodes), template, container, bool(templates), own is None)

    @property
    def title(self) -> str:
        return f"{self.kind.api_kind} {name_of(self.job)}"

    def spec(self, asked: JobSpec, pods: TrainingPods, own: tuple[str, ...] = ()) -> JobSpec:
        """Return the job as one value: what the preflight judges and what is put on record.

        `asked` has the namespace, the cluster and the retries of the command line. `own` is the command after
        `--`, which a RayCluster needs and no job may have; `asked` names its job. Raises ConfigError.
        """
        if bool(own) is not (self.kind is ray_cluster.KIND):
            do = "remove the command after --" if own else "add the entry point: -- python train.py"
            raise ConfigError(f"{self.title}: {do}. Nothing was sent.")
        container, pod = pods.container, field_of(pods.template, "spec") or {}
        selector = dict(pod.get("nodeSelector") or {})
        claim, mount_path = _claim_of(pod, container)
        entrypoint = " ".join(own) or str(field_of(self.job, "spec", "entrypoint") or "")
        command = tuple(entrypoint.split()) if self.kind.on_ray else container_command(container)
        gpus, image = _amount(container, GPU), str(container.get("image") or "")
        all_keys = (each["secretRef"] for each in container.get("envFrom") or () if each.get("secretRef"))
        if _NOT_FILLED_IN.search(image):
            raise _template_error(f"image: {image!r} is not the name of an image")
        return replace(
            asked,
            name=(asked.name or f"{name_of(self.job)}-job") if own else name_of(self.job),
            kind=self.kind.name,
            image=image,
            program=Program("manifest", command, once=self.kind.on_ray),
            nodes=pods.count,
            processes_per_node=1,
            gpus_per_node=gpus,
            resources=PodResources(
                cpu_millis=_amount(container, "cpu", scale=1),
                memory_mib=_amount(container, "memory", scale=_MIB),
                gpus=gpus,
                efa=_amount(container, EFA),
                hugepages_mib=_amount(container, "hugepages-2Mi", scale=_MIB),
            ),
            instance_type=str(selector.pop(INSTANCE_TYPE, "")),
            node_selector=selector,
            zone=None,
            environment=_network_variables(container),
            secrets=tuple(_secrets(container)),
            secret_environment=next((str(s["name"]) for s in all_keys if not s.get("optional")), ""),
            claim=claim,
            mount_path=mount_path,
            queue=str(read_labels(self.job).get(_QUEUE) or ""),
            priority_class=str(pod.get("priorityClassName") or ""),
            service_account=str(pod.get("serviceAccountName") or ""),
            tolerations=tuple(str(each.get("key") or "") for each in pod.get("tolerations") or ()),
            grace_seconds=int(pod.get("terminationGracePeriodSeconds") or _DEFAULT_GRACE),
            manifest=self.digest,
        )

    def without_own_objects(self, plan: JobSpec, template: Json) -> tuple[JobSpec, Json]:
        """Return plan and template for the preflight, which cannot find what the manifest makes itself."""
        made = {(body["kind"], name_of(body)) for body in self.others}
        own = {name: field for name, kind, field in _MADE if (kind, getattr(plan, name)) in made}
        secrets = tuple(each for each in plan.secrets if ("Secret", each.secret) not in made)
        pod = {key: value for key, value in template["spec"].items() if key not in own.values()}
        blank: Json = dict.fromkeys(own, "")
        return replace(plan, secrets=secrets, **blank), {**template, "spec": pod}

    def add_record(self, plan: JobSpec) -> Manifests:
        """Return the objects to send: the job with our labels and record, the others as they are."""
        if self.kind is ray_cluster.KIND:
            sent = ray_cluster.render(replace(plan, ray_cluster=name_of(self.job))).job
            return Manifests(sent, shared=(*self.others, self.job))
        body = deepcopy(self.job)
        metadata = body["metadata"]
        metadata["namespace"] = plan.namespace
        metadata["labels"] = {**(metadata.get("labels") or {}), JOB_LABEL: plan.name, **record_labels(plan)}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **record_annotations(plan)}
        return Manifests(body, shared=self.others)


def read_objects(texts: Iterable[tuple[str, str]], environment: Mapping[str, str]) -> list[Json]:
    """Return the objects of named texts of YAML or JSON; the items of a List are objects too.

    In a text whose name ends in `-template` variables are filled in, as envsubst does. Raises ConfigError.
    """
    found = list[Json]()
    for name, text in texts:
        filled = _fill_variables(name, text, environment) if name.endswith("-template") else text
        for document in parse_documents(filled, name):
            listed = document.get("items") if isinstance(document, dict) else None
            for body in listed if isinstance(listed, list) else [document]:
                if not (isinstance(body, dict) and body.get("kind") and body.get("apiVersion")):
                    raise ConfigError(f"{name}: not an object of Kubernetes, which has apiVersion and kind")
                found.append(body)
    return found


def _fill_variables(name: str, text: str, environment: Mapping[str, str]) -> str:
    without_comments = re.sub(r"(?m)^\s*#.*", "", text)
    named = dict.fromkeys(first or second for first, second in _PLACEHOLDER.findall(without_comments))
    if missing := [variable for variable in named if variable not in environment]:
        raise ConfigError(
            f"{name}: not set: {', '.join(missing)}. Export them, or pass the finished manifest: "
            "envsubst < FILE | trainyard job deploy --manifest -"
        )
    return _PLACEHOLDER.sub(lambda match: environment.get(match[1] or match[2], match[0]), text)


def find_job(objects: Iterable[Json], name: str = "") -> JobManifest:
    """Return the one job among the objects; of several the one called `name`. Raises ConfigError.

    A job with `generateName` gets the name.
    """
    objects = list(objects)
    kinds = {(kind.api.group_version, kind.api_kind): kind for kind in EVERY_KIND.values()}
    jobs = [body for body in objects if (body["apiVersion"], body["kind"]) in kinds]
    named = [body for body in jobs if name_of(body) == name] if len(jobs) > 1 else jobs
    if len(named) != 1:
        found = ", ".join(map(_title_of, jobs or objects)) or "nothing"
        known = ", ".join(f"{kind} ({version})" for version, kind in kinds)
        do = "Choose one with --job-name; the other is not sent" if jobs else f"Known kinds of jobs: {known}"
        raise ConfigError(f"--manifest: one job is needed, and it has: {found}. {do}. Nothing was sent.")
    job, kind = named[0], kinds[named[0]["apiVersion"], named[0]["kind"]]
    if not (name_of(job) or name):
        raise ConfigError(
            f"--manifest: the {kind.api_kind} has no name; add one with --job-name. Nothing was sent."
        )
    if reason := kind.why_not_sent(job):
        raise ConfigError(f"{kind.api_kind} {name_of(job)}: {reason}. Nothing was sent.")
    # A RayCluster is one only with the entry point of the command line; else a RayJob may select it.
    sent = [body for body in objects if body not in jobs or body["kind"] == ray_cluster.KIND.api_kind]
    others = tuple(body for body in sent if body is not job)
    if unnamed := [body for body in others if not name_of(body)]:
        raise ConfigError(f"--manifest: {_title_of(unnamed[0])} needs metadata.name. Nothing was sent.")
    if not name_of(job):
        given = job.get("metadata") or {}
        metadata = {key: value for key, value in given.items() if key != "generateName"}
        job = {**job, "metadata": {"name": name, **metadata}}
    return JobManifest(kind, job, others)


def _title_of(body: Json) -> str:
    """Return kind, name and version: other operators have kinds of the same name."""
    metadata = body.get("metadata") or {}
    name = metadata.get("name") or metadata.get("generateName") or "without a name"
    return f"{body['kind']} {name} ({body['apiVersion']})"


def training_container(template: Json, kind: JobKind) -> Json:
    """Return the container that trains: that of the kind's name, else the first with the most GPUs."""
    containers: list[Json] = field_of(template, "spec", "containers") or [{}]
    named = next((each for each in containers if each.get("name") == kind.container), None)
    return named or max(containers, key=lambda each: _amount(each, GPU))


def container_command(container: Json) -> tuple[str, ...]:
    """Return the command of a container with its arguments."""
    return tuple(map(str, (*(container.get("command") or ()), *(container.get("args") or ()))))


def pod_count(key: str, value: object) -> int:
    """Return a number of pods; 1 if none is written. Raises ConfigError for anything else."""
    if value is None:
        return 1
    if not isinstance(value, int):
        raise _template_error(f"{key}: {value!r} is not a number")
    return value


def _amount(container: Json, resource: str, *, scale: int = 1000) -> int:
    """Return the limit, else the request, of a resource; `scale` is a unit of it in thousandths."""
    resources = container.get("resources") or {}
    limit, request = ((resources.get(key) or {}).get(resource) for key in ("limits", "requests"))
    try:
        return thousandths(limit or request or 0) // scale
    except NotAQuantityError as error:
        raise _template_error(f"{resource}: {error}") from None


def _template_error(what: str) -> ConfigError:
    return ConfigError(
        f"--manifest: {what}. Fill it in first, a template by: envsubst < FILE | trainyard job deploy "
        "--manifest -. Nothing was sent."
    )


def _claim_of(pod: Json, container: Json) -> tuple[str, str]:
    """Return claim and path of the volume for checkpoints: one that the command names, else the first.

    A complete volume comes first: the path below a `subPath` is not that on the claim.
    """
    claims = claims_of(pod)
    mounts = [
        (claims[mount.get("name")], str(mount.get("mountPath")))
        for mount in sorted(container.get("volumeMounts") or (), key=lambda mount: "subPath" in mount)
        if mount.get("name") in claims and not mount.get("readOnly")
    ]
    text = " ".join(container_command(container))
    return min(mounts, key=lambda mount: mount[1] not in text, default=("", ""))


def _network_variables(container: Json) -> dict[str, str]:
    """Return the variables that decide the network and its log; others may be secrets."""
    return {
        str(each["name"]): str(each["value"])
        for each in container.get("env") or ()
        if "value" in each and str(each.get("name")).startswith(("NCCL_", "FI_"))
    }


def _secrets(container: Json) -> Iterator[SecretVariable]:
    for each in container.get("env") or ():
        reference = field_of(each, "valueFrom", "secretKeyRef")
        if reference and not reference.get("optional"):
            yield SecretVariable(str(each["name"]), str(reference["name"]), str(reference["key"]))
