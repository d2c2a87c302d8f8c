"""The permissions that a plan needs, and how to ask the API server for them (SelfSubjectAccessReview)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainyard.cluster.needed_apis import ServedKind
from trainyard.cluster.snapshot import Permission

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec


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


_JOB_VERBS = ("create", "patch", "get", "list", "watch", "delete")
_PART_VERBS = ("create", "patch", "get")
"""Server-side apply needs both create and patch."""


def review_of(permission: Permission) -> dict[str, Any]:
    """The request in the form that the API accepts."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {"verb": permission.verb, "group": permission.group, "resource": resource}
    if permission.namespace:
        attributes["namespace"] = permission.namespace
    if subresource:
        attributes["subresource"] = subresource
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def apply_review(permission: Permission, answer: Mapping[str, Any]) -> Permission:
    """Return `permission` with the API server's answer."""
    status = answer.get("status")
    allowed = status.get("allowed") if isinstance(status, dict) else None
    return replace(permission, allowed=allowed) if isinstance(allowed, bool) else permission
