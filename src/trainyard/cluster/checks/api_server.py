"""Check that the API server answers and can list what it serves, and report its version."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome
from trainyard.cluster.snapshot import MissingData


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.groups, MissingData):
        yield Outcome.not_readable(facts.snapshot.groups)
        return
    yield Outcome.success(f"{facts.snapshot.server} answers, Kubernetes {facts.snapshot.version}")


CHECK = Check("api", "the API server and its version", judge, essential=True)
