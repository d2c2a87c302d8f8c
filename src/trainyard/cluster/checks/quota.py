"""Check the complete gang against the quotas of the namespace.

The dry run of check pod-security shows what refuses a single pod: a LimitRange, a missing PriorityClass.
"""

from collections.abc import Iterator, Mapping

from trainyard.cluster.admission import gpus_of_job
from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.resource_quantities import format_quantity
from trainyard.cluster.snapshot import MissingData, Quota
from trainyard.plan.finding import Finding
from trainyard.plan.instances import GPU


def judge(facts: Facts) -> Iterator[Finding]:
    quotas = facts.snapshot.quotas
    if isinstance(quotas, MissingData):
        yield quotas.as_finding()
        return
    wanted = _gang_amounts(facts)
    # Whether a quota with scopes counts the pods is left to the dry run of check pod-security.
    found = [one for quota in quotas if not quota.has_scopes for one in _quota(quota, wanted)]
    yield from found or [Finding.success("nothing would refuse the gang")]


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


CHECK = Check("quota", "the quotas of the namespace", judge)
