"""Check that we have exactly the permissions that the plan needs, according to the API server."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.snapshot import Permission
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    needed = facts.snapshot.permissions
    refused = [permission for permission in needed if permission.allowed is False]
    unknown = [permission for permission in needed if permission.allowed is None]
    in_namespace = [permission for permission in refused if permission.namespace]
    elsewhere = [permission for permission in refused if not permission.namespace]
    if in_namespace:
        yield Finding.error(
            f"not allowed: {'; '.join(p.text for p in in_namespace)}", _role(in_namespace, facts)
        )
    if elsewhere:
        yield Finding.warning(
            f"not allowed: {list_names(p.text for p in elsewhere)}: capacity cannot be judged",
            "ask for a ClusterRole with these verbs, bound to your group",
        )
    if unknown:
        yield Finding.skipped(f"the API server did not answer for: {list_names(p.text for p in unknown)}")
    if not refused and not unknown:
        yield Finding.success(f"all {len(needed)} that the plan needs")


def _role(refused: list[Permission], facts: Facts) -> str:
    """Return the commands that grant the permissions."""
    verbs = ",".join(dict.fromkeys(p.verb for p in refused))
    resources = ",".join(dict.fromkeys(p.kind for p in refused))
    space = facts.job.namespace
    return (
        f"kubectl -n {space} create role trainyard --verb={verbs} --resource={resources}, then bind it to "
        f"your group: kubectl -n {space} create rolebinding trainyard --role=trainyard --group=GROUP"
    )


CHECK = Check("permissions", "the permissions of this login", judge)
