"""Check the namespace of the plan, and the secret that its pods refer to."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome, error, not_seen, passed
from trainyard.cluster.snapshot import Unseen


def judge(facts: Facts) -> Iterator[Outcome]:
    name = facts.demand.namespace
    space, secret = facts.snapshot.namespace, facts.snapshot.secret
    if isinstance(space, Unseen):
        yield not_seen(space)
    elif not space.exists:
        yield error(f"there is no namespace {name}", f"kubectl create namespace {name}")
        return
    elif space.terminating:
        yield error(f"the namespace {name} is being deleted", "wait until it is gone, or name another one")
    else:
        yield passed(f"{name} is there")
    if facts.demand.secret and isinstance(secret, Unseen):
        yield not_seen(secret)
    elif facts.demand.secret and not secret:
        yield error(
            f"the namespace {name} has no secret {facts.demand.secret}",
            f"kubectl -n {name} create secret generic {facts.demand.secret} --from-file=KEY=FILE",
        )


CHECK = Check("namespace", "the namespace and the secret of the plan", judge)
