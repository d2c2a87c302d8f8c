"""Generated clusters: a healthy one has no finding; a planted fault is named, and its fix is careful."""

from pathlib import Path

import pytest
from tests.cases import each_case
from tests.unit.cluster.faults import Fault, cases
from tests.unit.cluster.generated import CLUSTERS, changed
from tests.unit.cluster.judging import judged, verdict_of, without_target
from tests.unit.cluster.recorded import serving

from trainyard.cluster.fix import plan_fix
from trainyard.cluster.verdict import Readiness, Verdict
from trainyard.config.cluster import ClusterConfig
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
    with serving(cluster.state) as recorded:
        plan = ("--num-nodes", "4", "--instance-type", cluster.instance_type, *cluster.options)
        verdict = verdict_of(recorded.kubeconfig(tmp_path), *plan)
    allowed = (Severity.PASSED, Severity.SKIPPED)
    found = [f for f in verdict.findings if f.severity not in allowed]
    assert found == []
    assert verdict.state is Readiness.READY
    assert recorded.created == []


@pytest.mark.slow
@each_case(("name", "fault"), PLANTED, ids=[f"{name}: {fault.name}" for name, fault in PLANTED])
def test_a_planted_fault_is_found(name: str, fault: Fault, tmp_path: Path) -> None:
    cluster = CLUSTERS[name]()
    with serving(changed(cluster, fault.plant)) as recorded:
        plan = (
            "--num-nodes",
            "4",
            "--instance-type",
            cluster.instance_type,
            *cluster.options,
            *fault.options,
        )
        verdict = verdict_of(recorded.kubeconfig(tmp_path), *plan)
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
