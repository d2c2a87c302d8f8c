"""Query a cluster's API once, in parallel, for the checks, and keep only the needed fields.

    Api + JobSpec ──version, groups──> ──everything else in parallel──> Snapshot

The caller passes the API in. Nothing is created: jobs and pods are sent as dry runs. A refused or failed
request becomes `MissingData`; an error is raised only if the cluster cannot be reached or rejects our login.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trainyard.cluster import api_objects
from trainyard.cluster.checks.image import find_image
from trainyard.cluster.needed_apis import ServedKind, choose_kind, serves
from trainyard.cluster.server_side_apply import path_part
from trainyard.cluster.snapshot import MissingData, Namespace, Permission, Snapshot, Trial, Volume
from trainyard.cluster.trial_objects import WrittenTrial, trial_job, trial_pod
from trainyard.cluster.verdict import Verdict, cluster_record, judge_cluster, plan_record
from trainyard.cluster.volumes import volume_of
from trainyard.errors import (
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api
    from trainyard.jobs.job_spec import JobSpec

THREADS = 8
LIVE = "status.phase!=Succeeded,status.phase!=Failed"
NOT_SERVED = "the cluster does not serve {}"
KUEUE = "kueue.x-k8s.io"
_USAGE = ("daemons", "queues", "cluster_queues", "flavors", "volume")
"""The fields that `nodes`, `capacity` and the choice of a zone need, besides nodes and pods."""
_NOT_REQUESTED = MissingData("not requested")
_JOB_VERBS = ("create", "patch", "get", "list", "watch", "delete")
_PART_VERBS = ("create", "patch", "get")
"""Server-side apply needs both create and patch."""
Answer = TypeVar("Answer")
Json = dict[str, Any]


@dataclass(frozen=True)
class ServedApis:
    """The API groups and resources that the cluster serves."""

    groups: Mapping[str, tuple[str, ...]] | MissingData
    resources: Mapping[str, tuple[str, ...]]

    def path(self, group: str, *versions: str) -> str | MissingData:
        """The root of a group in the first of `versions` that is served."""
        if isinstance(self.groups, MissingData):
            return self.groups
        offered = self.groups.get(group, ())
        found = next((version for version in versions if version in offered), None)
        if found is None:
            return MissingData(NOT_SERVED.format(group), absent=True)
        return f"/apis/{group}/{found}"


class ClusterQuery:
    """Queries one cluster; `snapshot` sends the requests."""

    def __init__(
        self,
        api: "Api",
        job: "JobSpec",
        kinds: Sequence[ServedKind] = (),
        written: "WrittenTrial | None" = None,
    ) -> None:
        """`kinds` are all kinds of jobs that are known, in the order in which auto tries them.

        `written` is the job, if somebody else wrote its manifest.
        """
        self.api, self.job, self.kinds, self.written = api, job, tuple(kinds), written

    def judge(self, find_digest: Callable[..., str | None]) -> Verdict:
        """Read all that the checks need, and return their verdict. Raises ServiceError."""
        return judge_cluster(self.snapshot(find_digest), self.job, self.kinds)

    def record(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return the cluster and the job as plain data."""
        return {"cluster": cluster_record(snapshot, self.api.access.context), "plan": plan_record(self.job)}

    def usage(self) -> Snapshot:
        """Read nodes, pods, devices, queues and the claim only. Raises ServiceError."""
        return self.snapshot(None)

    def snapshot(self, find_digest: Callable[..., str | None] | None) -> Snapshot:
        """Read all that the checks need in parallel; without `find_digest` only what `usage` says.

        `find_digest` asks ECR for the image. Raises ServiceError if the cluster cannot be queried at all.
        """
        version, is_whole = self._version(), find_digest is not None
        with ThreadPoolExecutor(THREADS, thread_name_prefix="look") as pool:
            nodes = pool.submit(self._read, lambda: self.api.list_all("/api/v1/nodes", api_objects.node_of))
            pods = pool.submit(
                self._read, lambda: self.api.list_all("/api/v1/pods", api_objects.pod_of, fieldSelector=LIVE)
            )
            image = pool.submit(find_image, self.job.image, find_digest) if find_digest else None
            served = self._read_served_apis(pool)
            work = self._work(served)
            reads = {name: pool.submit(self._read, work[name]) for name in (work if is_whole else _USAGE)}
            wanted = needed_permissions(self.job, self._kind(served)) if is_whole else ()
            permissions = [pool.submit(self._permission, permission) for permission in wanted]
            found = {name: reads[name].result() if name in reads else _NOT_REQUESTED for name in work}
            seen_nodes = nodes.result()
            return Snapshot(
                server=self.api.access.server,
                version=version,
                region=_region(self.api.access.server, seen_nodes),
                groups=served.groups,
                resources=served.resources,
                permissions=tuple(future.result() for future in permissions),
                nodes=seen_nodes,
                pods=pods.result(),
                image=_NOT_REQUESTED if image is None else image.result(),
                **found,
            )

    def _work(self, served: ServedApis) -> Mapping[str, Callable[[], Any]]:
        """Field of the snapshot -> function that fetches it."""
        job, space = self.job, f"/api/v1/namespaces/{path_part(self.job.namespace)}"
        kueue = served.path(KUEUE, "v1beta2", "v1beta1")
        local = f"namespaces/{path_part(job.namespace)}/localqueues"
        apps = "/apis/apps/v1"
        return {
            "daemons": lambda: self._workloads(f"{apps}/daemonsets", "DaemonSet"),
            "deployments": lambda: self._workloads(f"{apps}/deployments", "Deployment"),
            "namespace": self._namespace,
            "quotas": lambda: self.api.list_all(f"{space}/resourcequotas", api_objects.quota_of),
            "volume": self._volume,
            "drivers": lambda: self._names("/apis/storage.k8s.io/v1/csidrivers"),
            "secrets": self._secrets,
            "queues": lambda: self._list(kueue, local, api_objects.queue_of),
            "cluster_queues": lambda: self._list(kueue, "clusterqueues", api_objects.cluster_queue_of),
            "flavors": lambda: self._list(kueue, "resourceflavors", api_objects.flavor_of),
            "hooks": self._hooks,
            "job_trial": lambda: self._job_trial(served),
            "pod_trial": lambda: self._pod_trial(f"{space}/pods"),
        }

    def _read(self, work: Callable[[], Answer]) -> Answer | MissingData:
        try:
            return work()
        except CredentialsRefusedError:
            raise
        except PermissionRefusedError as error:
            return MissingData(str(error), denied=True)
        except ServiceError as error:
            return MissingData(str(error))

    def _version(self) -> str:
        answer = self.api.get("/version")
        if not isinstance(answer, dict) or not answer.get("gitVersion"):
            raise ServiceError(
                f"{self.api.access.server} is not a Kubernetes API server: /version names no version"
            )
        return str(answer["gitVersion"])

    def _read_served_apis(self, pool: ThreadPoolExecutor) -> ServedApis:
        groups = self._read(self._groups)
        if isinstance(groups, MissingData):
            return ServedApis(groups, {})
        ours = dict.fromkeys(api.group for kind in self.kinds for api in kind.apis)
        names = [f"{group}/{version}" for group in ours for version in groups.get(group, ())]
        found = {name: pool.submit(self._read, partial(self._resources, name)) for name in names}
        seen = {name: future.result() for name, future in found.items()}
        known = {name: kept for name, kept in seen.items() if not isinstance(kept, MissingData)}
        # If the resources of one group of jobs are unknown, what the cluster serves is unknown.
        unknown = next((kept for kept in seen.values() if isinstance(kept, MissingData)), None)
        return ServedApis(unknown or groups, known)

    def _groups(self) -> Mapping[str, tuple[str, ...]]:
        answer = self.api.get("/apis") or {}
        found = {}
        for group in answer.get("groups") or ():
            versions = [str(v.get("version")) for v in group.get("versions") or ()]
            preferred = str((group.get("preferredVersion") or {}).get("version"))
            found[str(group.get("name"))] = tuple(sorted(versions, key=lambda v: v != preferred))
        return found

    def _resources(self, group_version: str) -> tuple[str, ...]:
        answer = self.api.get(f"/apis/{group_version}") or {}
        return tuple(str(item.get("name")) for item in answer.get("resources") or ())

    def _kind(self, served: ServedApis) -> ServedKind:
        return choose_kind(self.job.kind, self.kinds, served.resources)

    def _permission(self, permission: Permission) -> Permission:
        """Return `permission` with the API server's answer, if it gave one."""
        resource, _, subresource = permission.resource.partition("/")
        attributes = {"verb": permission.verb, "group": permission.group, "resource": resource}
        attributes |= {"namespace": permission.namespace} if permission.namespace else {}
        attributes |= {"subresource": subresource} if subresource else {}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        review = {**kind, "spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._read(lambda: self.api.review(path, review))
        status = None if isinstance(answer, MissingData) else answer.get("status")
        allowed = status.get("allowed") if isinstance(status, dict) else None
        return replace(permission, allowed=allowed) if isinstance(allowed, bool) else permission

    def _list(self, root: str | MissingData, what: str, reduce: Callable[[Json], Any]) -> Any:
        return root if isinstance(root, MissingData) else self.api.list_all(f"{root}/{what}", reduce)

    def _workloads(self, path: str, kind: str) -> Any:
        return self.api.list_all(path, lambda raw: api_objects.read_workload(raw, kind))

    def _names(self, path: str) -> frozenset[str]:
        answer = self.api.get(path, metadata_of="list") or {}
        return frozenset(_name_of(item) for item in answer.get("items") or ())

    def _hooks(self) -> frozenset[str]:
        root = "/apis/admissionregistration.k8s.io/v1"
        kinds = ("validatingwebhookconfigurations", "mutatingwebhookconfigurations")
        found = (self.api.list_all(f"{root}/{kind}", api_objects.hook_targets_of) for kind in kinds)
        return frozenset(_flat(_flat(found)))

    def _namespace(self) -> Namespace:
        name = self.job.namespace
        answer = self.api.get(f"/api/v1/namespaces/{path_part(name)}")
        if answer is None:
            return Namespace(name, exists=False)
        labels = (answer.get("metadata") or {}).get("labels") or {}
        phase = (answer.get("status") or {}).get("phase")
        return Namespace(name, exists=True, terminating=phase == "Terminating", labels=labels)

    def _volume(self) -> "Volume | MissingData | None":
        if not self.job.claim:
            return MissingData("no claim is named", absent=True)
        namespace, claim = path_part(self.job.namespace), path_part(self.job.claim)
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"

        def ask(path: str) -> Any:
            found = self._read(lambda: self.api.get(path))
            return None if isinstance(found, MissingData) else found

        return volume_of(self.api.get(path), ask)

    def _secrets(self) -> Mapping[str, bool | MissingData]:
        return {name: self._read(partial(self._is_secret, name)) for name in self.job.secret_names}

    def _is_secret(self, name: str) -> bool:
        """Return whether the secret exists; its content is not requested."""
        path = f"/api/v1/namespaces/{path_part(self.job.namespace)}/secrets/{path_part(name)}"
        return self.api.get(path, metadata_of="object") is not None

    def _job_trial(self, served: ServedApis) -> Trial | MissingData:
        kind = self._kind(served)
        if not serves(kind.api, served.resources):
            unknown = served.groups if isinstance(served.groups, MissingData) else None
            return unknown or MissingData(NOT_SERVED.format(kind.api.name), absent=True)
        runtime = ""
        # A job whose runtime is sent with it cannot be tried itself, but the smallest one of its kind can.
        written = self.written if self.written is not None and self.written.has_runtime else None
        if kind.needs_runtime and written is None:
            trainer = served.path("trainer.kubeflow.org", "v1alpha1")
            found = self._read(lambda: self._list(trainer, "clustertrainingruntimes", _name_of))
            if not found or isinstance(found, MissingData):
                return MissingData(
                    f"a {kind.api_kind} cannot be tried before its runtime exists", absent=True
                )
            runtime = found[0]
        path = f"/apis/{kind.api.group}/{kind.api.version}/namespaces/{path_part(self.job.namespace)}"
        body = (
            trial_job(kind, self.job, runtime=runtime)
            if written is None
            else written.trial_job(self.job.namespace)
        )
        return self._trial(f"a {kind.api_kind}", f"{path}/{kind.api.resource}", body)

    def _pod_trial(self, path: str) -> Trial | MissingData:
        body = trial_pod(self.job) if self.written is None else self.written.trial_pod(self.job.namespace)
        if body is None:
            return MissingData("its pods are those of a runtime that is not seen", absent=True)
        return self._trial("a pod", path, body)

    def _trial(self, what: str, path: str, body: Json) -> Trial:
        try:
            status, answer = self.api.create(path, body, dry_run=True)
        except ServiceTroubleError as error:
            return Trial(what, 0, str(error))
        return Trial(what, status, " ".join(str(answer.get("message", "")).split())[:600])


def _name_of(raw: Json) -> str:
    return str((raw.get("metadata") or {}).get("name", ""))


def _flat(found: Any) -> tuple[Any, ...]:
    return tuple(item for group in found for item in group)


def _region(server: str, nodes: Any) -> str:
    """The AWS region, from the address of an EKS cluster or from a label of its nodes."""
    match = re.search(r"\.([a-z]{2}(?:-[a-z]+)+-\d+)\.eks\.amazonaws\.com", server)
    if match:
        return match[1]
    if isinstance(nodes, MissingData):
        return ""
    labels = (node.labels.get("topology.kubernetes.io/region", "") for node in nodes)
    return next((region for region in labels if region), "")


def needed_permissions(job: "JobSpec", kind: ServedKind) -> tuple[Permission, ...]:
    """The permissions to start a job of this kind in the namespace, watch it, read its logs and end it."""
    space = job.namespace
    own = [Permission(verb, kind.api.group, kind.api.resource, space) for verb in _JOB_VERBS]
    parts = [
        Permission(verb, root.partition("/")[0], resource, space)
        for root, resource in (("", "configmaps"), *kind.parts)
        for verb in _PART_VERBS
    ]
    watched = (("list", "pods"), ("get", "pods/log"), ("list", "events"))
    found = [*own, *parts, *(Permission(verb, "", name, space) for verb, name in watched)]
    found.append(Permission("list", "", "nodes", ""))
    found += [Permission("get", "kueue.x-k8s.io", "localqueues", space)] if job.queue else []
    found += [Permission("get", "", "persistentvolumeclaims", space)] if job.claim else []
    return tuple(found)
