"""Send a job of the plan's kind as a dry run, to check that its webhooks answer and accept it."""

import re
from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.snapshot import MissingData, Trial
from trainyard.plan.finding import Finding

_CALLED = re.compile(r'failed calling webhook "([^"]+)"')
_NOT_ALLOWED = re.compile(r"cannot create resource")
_NO_DRY_RUN = re.compile(r"does not support dry ?run|dryRun", re.I)


def judge(facts: Facts) -> Iterator[Finding]:
    trial = facts.snapshot.job_trial
    if isinstance(trial, MissingData):
        yield Finding.skipped(trial.reason)
        return
    if trial.accepted:
        yield Finding.success(f"{trial.what} was accepted as a dry run")
        return
    yield _judge_refusal(trial, facts)


def _judge_refusal(trial: Trial, facts: Facts) -> Finding:
    called = _CALLED.search(trial.message)
    if called:
        return Finding.error(
            f"the webhook {called[1]} does not answer, so no {facts.kind.api_kind} can be created: "
            f"{trial.message.partition(': ')[2][:200]}",
            "check that the pods behind its Service run: kubectl get validatingwebhookconfigurations,"
            "mutatingwebhookconfigurations; kubectl get endpointslices --all-namespaces",
        )
    if _NOT_ALLOWED.search(trial.message):
        return Finding.skipped("we may not create it: see check permissions")
    if trial.status == 404 and "namespaces" in trial.message:
        return Finding.skipped("there is no such namespace: see check namespace")
    if trial.status in (0, 429) or trial.status >= 500:
        return Finding.warning(
            f"{trial.what} could not be tried: {trial.message or trial.status}", "try again"
        )
    if _NO_DRY_RUN.search(trial.message) or not facts.kind.has_dry_run:
        return Finding.skipped(f"{trial.what} cannot be tried without creating it: {trial.message[:200]}")
    return Finding.error(
        f"{trial.what} is refused ({trial.status}): {trial.message[:300]}",
        "change the job as the message says",
    )


CHECK = Check("webhook", "a job of this kind as a dry run", judge)
