"""The next command that a script prints reaches the cluster that the script was given, in one paste."""

import argparse
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.scripts.conftest import load_script
from tests.unit.jobs.plans import plan

from trainyard.cluster.checks import CHECKS
from trainyard.cluster.fix import plan_fix
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.cluster.verdict import Verdict, facts_of, verdict_record
from trainyard.command.cluster_options import cluster_target, job_values
from trainyard.config.cluster import ClusterConfig
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.state.job_state import JobFailure, JobState, PodCounts, State, Waiting
from trainyard.plan.finding import Finding
from trainyard.report.jobs.job_actions import state_markdown
from trainyard.report.jobs.job_text import status_lines
from trainyard.watch.failure_classes import FailureClass

# test_suggested_commands.py has every set of options.
OPTIONS = {
    "--kubeconfig": "team b.yaml",
    "--context": "arn:aws:eks:us-west-2:1:cluster/it's",
    "--region": "us-west-2",
    "--namespace": "team-a",
}
GIVEN = [word for pair in OPTIONS.items() for word in pair]


def told(command: str, *, namespace: str) -> None:
    """Assert that a command has the options as they were given, and a namespace."""
    found = shlex.split(command)
    given = {name: found[found.index(name) + 1] for name in OPTIONS if name in found}
    assert given == OPTIONS | {"--namespace": namespace}


@pytest.mark.parametrize("retries", ["0", "2"])
def test_what_follows_a_job_that_was_sent(retries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy, there, nobody = load_script("job_deploy"), plan(), argparse.Namespace()
    monkeypatch.setattr(deploy, "find", lambda *_: None)
    monkeypatch.setattr(deploy, "submit", lambda *_, **__: None)
    announced: list[tuple[str, str]] = []
    monkeypatch.setattr(
        deploy.output, "announce", lambda phase, text, *_, **__: announced.append((phase, text))
    )
    args = deploy.parse_args(["--config", "c.yaml", "--auto-retry", retries, *GIVEN])
    there = replace(there, auto_retry=args.auto_retry)
    manifests = KINDS[there.kind].render(there)
    assert deploy.deploy(there, manifests, nobody, cluster_target(args), wait_seconds=None)[1] == 0
    (command,) = [text for phase, text in announced if phase == "follow"]
    assert shlex.split(command)[2] == ("status" if retries == "0" else "retry")
    told(command, namespace=there.namespace)


def states() -> Iterator[JobState]:
    """A job for each next command."""
    for which in State:
        for holds, waits in itertools.product((False, True), repeat=2):
            failures: list[JobFailure | None] = [None]
            if which is State.FAILED:
                failures = [JobFailure(each, ("because",)) for each in FailureClass]
            for failure, retry, next_job in itertools.product(failures, (0, 2), ("", "llama-2")):
                yield JobState(
                    "llama",
                    "team",
                    "pytorchjob",
                    which,
                    "because",
                    failure=failure,
                    pods=PodCounts(4, 4),
                    holds_resources=holds,
                    auto_retry=retry,
                    waiting=Waiting(FailureClass.QUOTA, "because") if waits else None,
                    followed_by=next_job,
                )


def test_what_to_do_about_a_job_in_every_state() -> None:
    args = load_script("job").parse_args(["status", "llama", *GIVEN])
    target, verbs = cluster_target(args), set()
    for state in states():
        record = state.record()
        last = status_lines(record, width=100, target=target)[-1]
        if not last.startswith("  next "):
            continue
        command = last.split(maxsplit=1)[1]
        verbs.add(shlex.split(command)[2])
        told(command, namespace="team")
        assert f"Next: `{command}`" in state_markdown(record, target)
    assert verbs == {"status", "logs", "events", "delete", "resubmit", "retry"}


def verdict_on(job: JobSpec, fix: str) -> Verdict:
    """A verdict in which every check has an error and a warning with this fix."""
    none: Any = MissingData("not looked at")
    fields = dict.fromkeys(Snapshot.__dataclass_fields__, none)
    fields |= {"nodes": (), "pods": (), "resources": {}}
    made = (Finding.error, Finding.warning)
    findings = tuple(make("bad", fix, check.name) for check in CHECKS for make in made)
    return Verdict(facts_of(Snapshot(**fields), job, tuple(KINDS.values())), findings)


@pytest.mark.parametrize("script", ["cluster", "job_deploy"])
def test_remedies_of_every_check_reach_the_cluster(script: str) -> None:
    words = ["--config", "c.yaml"] if script == "job_deploy" else ["check"]
    args = load_script(script).parse_args([*words, *GIVEN])
    job = JobSpec(**job_values(args)).with_settings(ClusterConfig())
    for fix in ("kubectl -n kube-system get pods", "trainyard cluster fix --apply"):
        verdict = verdict_on(job, fix)
        texts = [entry["fix"] for entry in verdict_record(verdict)["findings"]]
        texts += [step.command for step in plan_fix(verdict, ClusterConfig())]
        assert len(texts) >= 4 * len(CHECKS) - 4
        for text in texts:
            found = shlex.split(text)
            kept = ("--kubeconfig", "--context") if fix.startswith("kubectl") else tuple(OPTIONS)
            expected = {name: value for name, value in OPTIONS.items() if name in kept}
            assert {name: found[found.index(name) + 1] for name in OPTIONS if name in found} == expected
