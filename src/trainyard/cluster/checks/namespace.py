"""Check the namespace of the plan, and the secrets that its pods refer to."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    name = facts.job.namespace
    space, secrets = facts.snapshot.namespace, facts.snapshot.secrets
    if isinstance(space, MissingData):
        yield space.as_finding()
    elif not space.exists:
        yield Finding.error(f"there is no namespace {name}", f"kubectl create namespace {name}")
        return
    elif space.terminating:
        yield Finding.error(
            f"the namespace {name} is being deleted", "wait until it is gone, or name another one"
        )
    else:
        yield Finding.success(f"{name} exists")
    for secret, exists in ({} if isinstance(secrets, MissingData) else secrets).items():
        if isinstance(exists, MissingData):
            yield exists.as_finding()
        elif not exists:
            yield Finding.error(
                f"the namespace {name} has no secret {secret}",
                f"kubectl -n {name} create secret generic {secret} --from-file=KEY=FILE",
            )


CHECK = Check("namespace", "the namespace and the secrets of the plan", judge)
