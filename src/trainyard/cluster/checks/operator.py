"""Check that the controller of the job's kind runs. Without it a job is stored and nothing happens.

A controller outside the cluster has no Deployment. It counts as running if its webhook has just answered.
"""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.needed_apis import Controller, serves
from trainyard.cluster.snapshot import MissingData, Workload
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.snapshot.groups, MissingData):
        yield facts.snapshot.groups.as_finding()
        return
    if not serves(facts.kind.api, facts.snapshot.resources):
        yield Finding.skipped(f"{facts.kind.api.name} is not served")
        return
    deployments = facts.snapshot.deployments
    if isinstance(deployments, MissingData):
        yield deployments.as_finding()
        return
    found = {c.name: tuple(d for d in deployments if _is_of(c, d)) for c in facts.kind.controllers}
    has_none = not any(found.values())
    for controller in facts.kind.controllers:
        yield _judge_controller(controller, found[controller.name], facts, has_none=has_none)


def _judge_controller(
    controller: Controller, found: tuple[Workload, ...], facts: Facts, *, has_none: bool
) -> Finding:
    """Judge a controller; `has_none`: no controller of the kind has a Deployment."""
    ready = [workload for workload in found if workload.available > 0]
    if ready:
        return Finding.success(f"{controller.name}: {ready[0].namespace}/{ready[0].name} is available")
    if found:
        first = found[0]
        return Finding.error(
            f"{controller.name}: {first.namespace}/{first.name} has {first.available} of {first.wanted} pods "
            "ready",
            f"kubectl -n {first.namespace} describe deployment {first.name}; "
            f"kubectl -n {first.namespace} logs deployment/{first.name}",
        )
    if has_none and _webhook_answered(facts):
        return Finding.success(f"{controller.name}: no Deployment has its name, but its webhook has answered")
    space = facts.snapshot.namespace
    is_missing = not isinstance(space, MissingData) and not space.exists
    if has_none and facts.kind.has_webhook and is_missing:
        return Finding.skipped(
            f"{controller.name}: no Deployment of it was found, and its webhook can be asked only in the "
            f"namespace {facts.job.namespace}, which is missing"
        )
    judge_it = Finding.error if facts.kind.has_webhook else Finding.warning
    return judge_it(
        f"{controller.name}: no Deployment of it was found ({', '.join(controller.deployments)}); its API is "
        "served, but nothing acts on it",
        f"install {facts.kind.api.installs}",
    )


def _webhook_answered(facts: Facts) -> bool:
    """Return whether the controller's own webhook took part in the dry run of a job."""
    trial, hooks = facts.snapshot.job_trial, facts.snapshot.hooks
    if isinstance(trial, MissingData) or isinstance(hooks, MissingData):
        return False
    return facts.kind.api.name in hooks and trial.accepted


def _is_of(controller: Controller, workload: Workload) -> bool:
    called = [workload.name, *(image.rpartition("/")[2] for image in workload.images)]
    if any(other in name for other in controller.others for name in called):
        return False
    return (
        any(part in name for part in controller.deployments for name in called)
        or workload.labels.get("control-plane") in controller.labels
        or workload.labels.get("app.kubernetes.io/name") in controller.deployments
    )


CHECK = Check("operator", "the controller of the job's kind", judge)
