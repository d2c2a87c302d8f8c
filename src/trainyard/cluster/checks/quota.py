"""Check the complete gang against the namespace's quotas and limits, and against its priority class."""

from collections.abc import Iterator, Mapping

from trainyard.cluster.admission import gpus_of_job
from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.resource_quantities import format_quantity
from trainyard.cluster.snapshot import Limit, MissingData, Quota
from trainyard.plan.finding import Finding
from trainyard.plan.instances import GPU


def judge(facts: Facts) -> Iterator[Finding]:
    quotas, limits = facts.snapshot.quotas, facts.snapshot.limits
    found: list[Finding] = []
    if isinstance(quotas, MissingData):
        found.append(quotas.as_finding())
    else:
        # Whether a quota with scopes counts the pods is left to the dry run of check pod-security.
        wanted = _gang_amounts(facts)
        found += [one for quota in quotas if not quota.has_scopes for one in _quota(quota, wanted)]
    if isinstance(limits, MissingData):
        found.append(limits.as_finding())
    else:
        found += _limits(limits, facts)
    found += _priority(facts)
    yield from found
    if not found:
        yield Finding.success("nothing would refuse the gang")


def _gang_amounts(facts: Facts) -> Mapping[str, int]:
    """The amount of each quota that the gang uses, in thousandths."""
    gpus = (gpus_of_job(facts.job, facts.fits) or 0) * 1000
    pods = facts.job.nodes * 1000
    job = f"count/{facts.kind.api.resource}.{facts.kind.api.group}"
    return {f"requests.{GPU}": gpus, "pods": pods, "count/pods": pods, job: 1000}


def _quota(quota: Quota, wanted: Mapping[str, int]) -> Iterator[Finding]:
    for name, amount in wanted.items():
        if amount and name in quota.hard and quota.used.get(name, 0) + amount > quota.hard[name]:
            hard, used, more = (
                format_quantity(each, name) for each in (quota.hard[name], quota.used.get(name, 0), amount)
            )
            yield Finding.error(
                f"ResourceQuota {quota.name}: {name} {used} of {hard} used, {more} more wanted",
                "ask for fewer nodes, wait until others end, or have the quota raised",
            )


def _limits(limits: tuple[Limit, ...], facts: Facts) -> Iterator[Finding]:
    each = (gpus_of_job(facts.job, facts.fits) or 0) // facts.job.nodes * 1000
    for limit in limits:
        if each and GPU in limit.max and limit.max[GPU] < each:
            yield Finding.error(
                f"LimitRange {limit.name}: a {limit.type} may have {format_quantity(limit.max[GPU], GPU)} "
                f"{GPU}, {each // 1000} are wanted",
                "ask for fewer GPUs per node, or have the limit raised",
            )


def _priority(facts: Facts) -> Iterator[Finding]:
    name, known = facts.job.priority_class, facts.snapshot.priority_classes
    if not name:
        return
    if isinstance(known, MissingData):
        yield known.as_finding()
    elif name not in known:
        others = ", ".join(sorted(n for n in known if not n.startswith("system-"))) or "none"
        yield Finding.error(
            f"there is no PriorityClass {name}; there are: {others}", "name one of them, or create it"
        )


CHECK = Check("quota", "quotas, limits and priority", judge)
