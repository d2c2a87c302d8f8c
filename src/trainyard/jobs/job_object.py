"""The parts that the objects of all kinds share: metadata, and the ConfigMap with the program's files."""

import json
from collections.abc import Iterator
from typing import Any

from trainyard.jobs.job_labels import AUTO_RETRY, NETWORK, PLAN, RETRIES, make_labels
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.pod_template import files_name

Json = dict[str, Any]


def job_object(plan: JobSpec, api_version: str, kind: str, spec: Json) -> Json:
    """Return the job's own object: its labels, its queue, and a record of its plan and origin."""
    body = part_object(plan, api_version, kind, name=plan.name, spec=spec)
    labels = body["metadata"]["labels"]
    if creator := "".join(plan.owner.split("/")[1:2]):
        labels["trainyard.dev/creator"] = creator
    if plan.queue:
        labels["kueue.x-k8s.io/queue-name"] = plan.queue
    if plan.workload_priority:
        labels["kueue.x-k8s.io/priority-class"] = plan.workload_priority
    body["metadata"]["annotations"] = {
        **plan.annotations,
        PLAN: json.dumps(plan.record(), sort_keys=True, separators=(",", ":")),
        RETRIES: "0",
        AUTO_RETRY: str(plan.auto_retry),
        NETWORK: plan.network,
        **{f"trainyard.dev/{name}": value for name, value in plan.provenance.items() if value},
    }
    return body


def part_object(plan: JobSpec, api_version: str, kind: str, *, name: str, **content: Json) -> Json:
    """Return an object that the job needs, with the field that its kind has (`spec` or `data`)."""
    labels = {**plan.labels, **make_labels(plan.name, plan.kind)}
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels}
    if plan.annotations:
        metadata["annotations"] = dict(plan.annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


def find_problems_without_ray(plan: JobSpec) -> Iterator[str]:
    """The problem of a plan that names a shared RayCluster, for the kinds that use none."""
    if plan.ray_cluster:
        yield (
            f"--ray-cluster {plan.ray_cluster}: a job of --kind {plan.kind} runs on no RayCluster; use "
            "--kind raycluster, or omit it"
        )


def make_files_config_map(plan: JobSpec) -> tuple[Json, ...]:
    """Return the ConfigMap with the program's files; nothing if it has no files."""
    if not plan.program.files:
        return ()
    return (part_object(plan, "v1", "ConfigMap", name=files_name(plan), data=dict(plan.program.files)),)
