"""Check that admission allows a pod of the plan's shape: the namespace's security level, and a dry run."""

import re
from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.checks import namespace, quota
from trainyard.cluster.snapshot import MissingData, Trial
from trainyard.plan.finding import Finding, Severity

_ENFORCED = "pod-security.kubernetes.io/enforce"
_MAY_NOT_TRY = re.compile(r"cannot create resource")
"""We may not create pods. We need not, because the operator creates them."""
_NO_ACCOUNT = re.compile(r"looking up service account .* not found")
_ELSEWHERE = (
    (re.compile(r'namespaces? "?[^" ]*"? (was )?not found|is being terminated'), namespace.CHECK),
    (re.compile(r"exceeded quota"), quota.CHECK),
)
"""Refusals, and the check that reports them with a better fix, if it has found them too."""


def judge(facts: Facts) -> Iterator[Finding]:
    space = facts.snapshot.namespace
    level = "" if isinstance(space, MissingData) else space.labels.get(_ENFORCED, "")
    enforces = f"namespace {facts.job.namespace} enforces the level {level}"
    found, trial = list[Finding](), facts.snapshot.pod_trial
    if level == "restricted" and facts.kind.adds_container and facts.job.nodes > 1:
        why = f"which refuses the container that its operator adds to the workers of a {facts.kind.api_kind}"
        found.append(
            Finding.error(
                f"{enforces}, {why}", "use --kind trainjob, one node, or a namespace of the level baseline"
            )
        )
    elif level == "restricted" and (isinstance(trial, MissingData) or not trial.accepted):
        found.append(
            Finding.warning(
                f"{enforces}: pods as root, with host "
                "paths or with IPC_LOCK (which EFA may need) are refused",
                "run as another user with seccompProfile RuntimeDefault, or use another namespace",
            )
        )
    if (
        not isinstance(trial, MissingData)
        and trial.status in (400, 403, 422)
        and not _is_reported_elsewhere(trial, facts)
    ):
        found.append(
            Finding.error(f"a pod of this shape is refused: {trial.message[:300]}", _fix_of(trial, facts))
        )
    yield from found
    if not found:
        if not isinstance(trial, MissingData) and trial.accepted:
            yield Finding.success("a pod was accepted as a dry run")
            return
        reason = trial.reason if isinstance(trial, MissingData) else trial.message[:200] or trial.status
        yield Finding.skipped(f"a pod could not be tried: {reason}")


def _fix_of(trial: Trial, facts: Facts) -> str:
    name, space = facts.job.service_account, facts.job.namespace
    if name and _NO_ACCOUNT.search(trial.message):
        return f"kubectl -n {space} create serviceaccount {name}, or change cluster.pod.service_account"
    return "change the pod as the message says"


def _is_reported_elsewhere(trial: Trial, facts: Facts) -> bool:
    if _MAY_NOT_TRY.search(trial.message):
        return True
    checks = [check for pattern, check in _ELSEWHERE if pattern.search(trial.message)]
    return any(found.severity is Severity.ERROR for check in checks for found in check.judge(facts))


CHECK = Check("pod-security", "whether admission accepts the pods", judge)
