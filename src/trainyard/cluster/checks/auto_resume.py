"""Check whether HyperPod's auto-resume would continue a job of the plan after a node was replaced."""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome
from trainyard.cluster.checks.operator import deployments_of
from trainyard.cluster.fitness import on_hyperpod
from trainyard.cluster.hyperpod import reasons_against_auto_resume
from trainyard.cluster.snapshot import MissingData


def judge(facts: Facts) -> Iterator[Outcome]:
    if not any(on_hyperpod(fitness.node) for fitness in facts.fits):
        yield Outcome.not_applicable("the nodes are not HyperPod's")
        return
    deployments = facts.snapshot.deployments
    if isinstance(deployments, MissingData):
        yield Outcome.not_readable(deployments)
        return
    operators = [d for c in facts.kind.controllers for d in deployments_of(c, deployments)]
    reasons = reasons_against_auto_resume(
        kind=facts.kind, namespace=facts.demand.namespace, operators=operators
    )
    if reasons:
        yield Outcome.info(
            f"HyperPod would not resume the job by itself: {'; '.join(reasons)}",
            "resume it with trainyard train --resume auto, or meet these conditions",
        )
    else:
        yield Outcome.success("a PyTorchJob with its annotation would be resumed")


CHECK = Check("auto-resume", "whether HyperPod resumes the job", judge)
