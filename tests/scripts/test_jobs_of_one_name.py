"""Commands take the job that is meant, whoever else has a job of its name."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import (
    MemoryCluster,
    PodLog,
    memory_cluster,
    write_kubeconfig,
)
from tests.unit.jobs.plans import plan
from tests.unit.jobs.state.shapes import condition, job, pod

from trainyard.errors import TrainyardError
from trainyard.jobs.kinds import find_kind

SPACE = "/api/v1/namespaces/team"
VERBS = ("status", "logs", "events", "cancel", "delete", "retry", "resubmit", "checkpoints")
PAIRS = (("rayjob", "pytorchjob"), ("pytorchjob", "trainjob"))
"""The kind of the own job, and that of the other one of its name."""
SETS = {"own": "o", "own + stranger's": "os", "two own": "oo", "stranger's": " s"}
"""Who made the first and the second job."""
OPTIONS = ((), ("--kind",), ("--kind", "--not-ours"))
"""With --kind the second job is meant."""


def plant(cluster: MemoryCluster, kind: str, *, ours: bool, has_ended: bool) -> None:
    """Store a job `dup` with a pod, its log, and an event."""
    status: dict[str, Any] = {"conditions": [condition("Succeeded" if has_ended else "Running")]}
    if kind == "trainjob":
        status = {"conditions": [condition("Complete")] if has_ended else []}
    elif kind == "rayjob":
        status = {"jobDeploymentStatus": "Complete" if has_ended else "Running", "rayClusterName": "dup"}
        status["jobStatus"] = "SUCCEEDED" if has_ended else "RUNNING"
    raw, found, uid = job(kind, **status), find_kind(kind), f"uid-{kind}"
    labels = {
        "app.kubernetes.io/managed-by": "trainyard",
        "trainyard.dev/job": "dup",
        "trainyard.dev/kind": kind,
    }
    record = json.dumps({**plan().to_json(), "kind": kind, "claim": f"of-{kind}"})
    raw["metadata"] |= {"name": "dup", "uid": uid, "labels": labels if ours else {"team": "b"}}
    raw["metadata"]["annotations"] = {"trainyard.dev/plan": record} if ours else {}
    raw["spec"]["shutdownAfterJobFinishes"] = True
    cluster.put(found.path("team", "dup"), raw)
    body = pod(f"dup-{kind}", "Succeeded" if has_ended else "Running", labels=labels if ours else {})
    body["metadata"]["labels"][found.pod_label] = "dup"
    body["metadata"]["ownerReferences"] = [{"uid": uid}]
    body["spec"]["containers"] = [{"name": "pytorch"}]
    cluster.put(f"{SPACE}/pods/dup-{kind}", body)
    cluster.logs[f"dup-{kind}", "pytorch", False] = PodLog([("2026-11-20T00:00:00Z", f"a line of {kind}")])
    about = {"kind": found.api_kind, "name": "dup", "uid": uid}
    event = {"metadata": {"name": f"event-{kind}"}, "involvedObject": about, "message": f"an event of {kind}"}
    cluster.put(f"{SPACE}/events/event-{kind}", event)


def meant(verb: str, jobs: dict[str, bool], options: tuple[str, ...], other: str) -> str:
    """The kind that the rule names, or the words of the refusal; `jobs` says who made each."""
    own = [kind for kind, is_own in jobs.items() if is_own]
    if not options and len(own) != 1:
        return "Add what is meant"
    kind = other if options else own[0]
    if verb == "delete" and not jobs[kind] and "--not-ours" not in options:
        return "--not-ours"
    return "was not sent by" if verb == "checkpoints" and not jobs[kind] else kind


def cases() -> Iterator[tuple[str, str, tuple[str, ...], str, str]]:
    for verb, name, options, (own, other) in product(VERBS, SETS, OPTIONS, PAIRS):
        if not (options and name == "own") and not ("--not-ours" in options and verb != "delete"):
            yield verb, name, options, own, other


def test_each_command_takes_the_own_job_and_a_strangers_only_if_it_is_named(
    load_script: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command x each set of jobs of one name x each way to name one x kinds."""
    kubeconfig, wrong = tmp_path / "kubeconfig", []
    for verb, name, options, own, other in cases():
        makers = dict(zip((own, other), SETS[name], strict=False))
        jobs = {kind: maker == "o" for kind, maker in makers.items() if maker != " "}
        with memory_cluster() as cluster:
            for kind, ours in jobs.items():
                plant(cluster, kind, ours=ours, has_ended=verb in ("retry", "resubmit"))
            write_kubeconfig(kubeconfig, cluster.server)
            words = ["list", "--job", "dup"] if verb == "checkpoints" else [verb, "dup"]
            words += [{"logs": "--tail=5", "delete": "--no-logs"}.get(verb, "--json")]
            words += [word for option in options for word in (option, *[other][: option == "--kind"])]
            script = "job_checkpoints" if verb == "checkpoints" else "job"
            said = ""
            try:
                load_script(script).main([*words, f"--kubeconfig={kubeconfig}"])
            except TrainyardError as error:
                said = str(error)
            changes = " ".join(path for _, path in cluster.changes())
        shown = f"{capsys.readouterr().out} {said} {changes}"
        took = set(re.findall(r'(?:of |of-|/|create |"kind": ")(pytorchjob|trainjob|rayjob)', shown))
        expected = meant(verb, jobs, options, other)
        right = took == {expected} if expected in jobs else expected in said and not changes
        if not right:
            wrong.append(
                f"{verb} of {name} {options} ({own}, {other}): {sorted(took)}, not {expected}; {said}"
            )
    assert not wrong, "\n".join(wrong)
