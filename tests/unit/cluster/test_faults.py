"""Generated clusters: a planted fault is named, its fix is careful; admission by Kueue, by the rule."""

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.cases import each_case
from tests.unit.cluster.faults import Fault, cases
from tests.unit.cluster.generated import CLUSTERS, changed
from tests.unit.cluster.judging import SCRIPT, judged, verdict_of, without_target
from tests.unit.cluster.recorded import Recorded, serving

from trainyard.cluster.admission import AdmissionTime, outlook
from trainyard.cluster.capacity import Capacity, Fit
from trainyard.cluster.check_definition import Facts
from trainyard.cluster.checks import gang, queue
from trainyard.cluster.fix import plan_fix
from trainyard.cluster.snapshot import ClusterQueue, Flavor, FlavorQuota, MissingData, Queue, Snapshot
from trainyard.cluster.verdict import Readiness, Verdict
from trainyard.config.cluster import ClusterConfig
from trainyard.jobs.job_spec import JobSpec
from trainyard.plan.finding import Severity

FORBIDDEN = ("delete", "drain", "cordon ", "reboot", "replace ")


def in_turn() -> list[tuple[str, Fault]]:
    """Each fault in two of the clusters in which it makes sense, which differ from fault to fault."""
    by_fault: dict[str, list[tuple[str, Fault]]] = {}
    for name, fault in cases(list(CLUSTERS)):
        by_fault.setdefault(fault.name, []).append((name, fault))
    chosen = []
    for number, found in enumerate(by_fault.values()):
        first = number % len(found)
        chosen += [found[first]] if len(found) == 1 else [found[first], found[first - len(found) // 2]]
    return chosen


PLANTED = in_turn()


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_healthy_cluster_gets_no_finding(name: str, tmp_path: Path) -> None:
    cluster = CLUSTERS[name]()
    with serving(cluster.state, tmp_path) as recorded:
        plan = ("--num-nodes", "4", "--instance-type", cluster.instance_type, *cluster.options)
        verdict = verdict_of(recorded.kubeconfig(), *plan)
    allowed = (Severity.PASSED, Severity.SKIPPED)
    found = [f for f in verdict.findings if f.severity not in allowed]
    assert found == []
    assert verdict.state is Readiness.READY
    assert recorded.created == []


@pytest.mark.slow
@each_case(("name", "fault"), PLANTED, ids=[f"{name}: {fault.name}" for name, fault in PLANTED])
def test_a_planted_fault_is_found(name: str, fault: Fault, tmp_path: Path) -> None:
    cluster = CLUSTERS[name]()
    with serving(changed(cluster, fault.plant), tmp_path) as recorded:
        plan = (
            "--num-nodes",
            "4",
            "--instance-type",
            cluster.instance_type,
            *cluster.options,
            *fault.options,
        )
        verdict = verdict_of(recorded.kubeconfig(), *plan)
    assert_found(fault, judged(verdict))
    require_careful_fix(fault, verdict)


def require_careful_fix(fault: Fault, verdict: Verdict) -> None:
    """Nothing is applied that is not configured, and nothing is ever removed."""
    steps = plan_fix(verdict, ClusterConfig())
    applied = [body["kind"] for step in steps if step.automatic for body in step.objects]
    assert applied == (["Namespace"] if fault.name == "no namespace" else [])
    commands = " ".join(without_target(step.command) for step in steps)
    assert [word for word in FORBIDDEN if f"kubectl {word}" in commands] == []
    assert any(step.check == fault.check for step in steps)


def assert_found(fault: Fault, found: list[dict[str, str]]) -> None:
    """The fault's check finds it, and no other check reports a problem, except those that may."""
    said = [entry for entry in found if entry["check"] == fault.check and entry["severity"] == fault.severity]
    assert said, found
    evidence, fix = (" ".join(e["evidence"] for e in said), " ".join(without_target(e["fix"]) for e in said))
    assert [word for word in fault.evidence if word not in evidence] == [], evidence
    assert [word for word in fault.fix if word not in fix] == [], fix
    others = {e["check"] for e in found} - {fault.check, *fault.also}
    assert others == set(), found
    grave = any(entry["severity"] == "error" for entry in found)
    assert grave == (fault.severity == "error")


@each_case(
    ("options", "said"),
    [
        (("check", "--apply"), "--apply is for fix"),
        (("fix", "--apply", "--dry-run"), "without --dry-run"),
        (("check", "--cluster", "a", "--kubeconfig", "b"), "leave --kubeconfig"),
        (("check", "--set", "a=b"), "--config"),
        (("check", "--prometheus", "http://x"), "--prometheus is for nodes"),
        (("check", "--num-nodes", "0"), "above 0"),
        (("check", "--gpu-per-node", "-1"), "--gpu-per-node"),
        (("look",), "invalid choice"),
    ],
)
def test_wrong_usage_is_said(options: tuple[str, ...], said: str) -> None:
    done = warm_start.run([sys.executable, str(SCRIPT), *options], timeout=120)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_the_summary_of_a_job_and_a_narrow_terminal(recorded: Recorded, tmp_path: Path) -> None:
    kubeconfig = str(recorded.kubeconfig())
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    environment = os.environ | {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
        "COLUMNS": "80",
    }
    line = [sys.executable, str(SCRIPT), "check", "--kubeconfig", kubeconfig, "--num-nodes", "9"]
    done = warm_start.run(line, timeout=120, env=environment)
    assert done.returncode == 1
    assert "Not ready: 1 error" in done.stdout
    assert [row for row in done.stdout.splitlines() if len(row) > 80] == []
    text = summary.read_text()
    assert text.startswith("### ❌ Not ready")
    assert "| ❌ | capacity |" in text
    assert "capacity: 4 places for 9" in output.read_text()


GPU = "nvidia.com/gpu"
NOT_SEEN = MissingData("not asked")


def quota(nominal: int, used: int, flavor: str = "p5") -> FlavorQuota:
    return FlavorQuota(flavor, GPU, nominal=nominal * 1000, used=used * 1000)


def cluster_queue(name: str, *quotas: FlavorQuota, cohort: str = "", pending: int = 0) -> ClusterQueue:
    others = tuple(FlavorQuota("p5", r, nominal=10**9, used=0) for r in ("cpu", "memory"))
    return ClusterQueue(
        name, cohort, active=True, reason="", stopped=False, pending=pending, quotas=quotas + others
    )


def snapshot(*queues: ClusterQueue, **changes: Any) -> Snapshot:
    local = Queue("main", "own", active=True, reason="", stopped=False)
    names = list(Snapshot.__dataclass_fields__)
    empty: dict[str, Any] = dict.fromkeys(names, NOT_SEEN)
    empty |= {"queues": (local,), "cluster_queues": queues, "flavors": ()}
    return Snapshot(**(empty | changes))


DEMAND = JobSpec(nodes=2, gpus_per_node=8, instance_type="p5.48xlarge", queue="main")


@each_case(("nominal", "used"), list(itertools.product((0, 8, 16, 32), (0, 8, 16, 32))))
def test_a_queue_of_its_own_has_its_nominal_quota(nominal: int, used: int) -> None:
    found = outlook(snapshot(cluster_queue("own", quota(nominal, used))), DEMAND, ())
    wanted = (
        AdmissionTime.NEVER
        if nominal < 16
        else AdmissionTime.NOW
        if nominal - used >= 16
        else AdmissionTime.LATER
    )
    assert found.when is wanted, found


def test_a_queue_of_a_cohort_is_not_refused_for_its_own_quota() -> None:
    for nominal, used in itertools.product((0, 8, 16, 32), (0, 8, 32)):
        cluster = snapshot(cluster_queue("own", quota(nominal, used), cohort="all"))
        found = outlook(cluster, DEMAND, ())
        assert (found.when, "cohort all" in found.evidence) == (AdmissionTime.NOT_CHECKED, True)
        capacity = Capacity((), Fit.LATER, (), ())
        facts = Facts(cluster, DEMAND, kinds=(), kind=None, fits=(), capacity=capacity, outlook=found)  # type: ignore[arg-type]
        outcomes = [*queue.CHECK.judge(facts), *gang.CHECK.judge(facts)]
        assert [outcome.severity for outcome in outcomes] == ["skipped", "warning"]
        assert outcomes[0].evidence.startswith("not checked: ClusterQueue own")


def test_those_who_wait_come_first() -> None:
    found = outlook(snapshot(cluster_queue("own", quota(32, 0), pending=2)), DEMAND, ())
    assert (found.when, "2 jobs waiting" in found.evidence) == (AdmissionTime.LATER, True)


def test_a_job_takes_one_flavor_and_not_parts_of_two() -> None:
    own = cluster_queue("own", quota(8, 0, flavor="a"), quota(8, 0, flavor="b"))
    assert outlook(snapshot(own), DEMAND, ()).when is AdmissionTime.NEVER


def test_a_flavor_of_another_type_does_not_count() -> None:
    labels = {"node.kubernetes.io/instance-type": "ml.p4d.24xlarge"}
    own = cluster_queue("own", quota(32, 0))
    found = outlook(snapshot(own, flavors=(Flavor("p5", labels),)), DEMAND, ())
    assert (found.when, "p5.48xlarge" in found.evidence) == (AdmissionTime.NEVER, True)
    right = {"node.kubernetes.io/instance-type": "ml.p5.48xlarge"}
    assert outlook(snapshot(own, flavors=(Flavor("p5", right),)), DEMAND, ()).when is AdmissionTime.NOW


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stopped": True}, "stopPolicy"),
        ({"active": False, "reason": "FlavorNotFound"}, "FlavorNotFound"),
        ({"quotas": ()}, "no quota for cpu and memory and nvidia.com/gpu"),
        ({"quotas": (quota(32, 0),)}, "no quota for cpu and memory, which every pod requests"),
        ({"name": "other"}, "does not exist"),
    ],
)
def test_a_queue_that_admits_nothing_is_named(change: dict[str, Any], said: str) -> None:
    found = outlook(snapshot(replace(cluster_queue("own", quota(32, 0)), **change)), DEMAND, ())
    assert (found.when, said in found.evidence) == (AdmissionTime.NEVER, True), found


@pytest.mark.parametrize(
    ("unseen", "when"),
    [
        (MissingData("not served", absent=True), AdmissionTime.NEVER),
        (MissingData("not allowed", denied=True), AdmissionTime.UNKNOWN),
    ],
)
def test_queues_that_cannot_be_seen(unseen: MissingData, when: AdmissionTime) -> None:
    assert outlook(snapshot(queues=unseen), DEMAND, ()).when is when
    known = outlook(snapshot(cluster_queues=MissingData("not allowed", denied=True)), DEMAND, ())
    assert known.when is AdmissionTime.UNKNOWN
    assert outlook(snapshot(), replace(DEMAND, queue=""), ()).when is AdmissionTime.NO_QUEUE
