"""Generated clusters with planted faults in a real API server: verdict, evidence and fix are right."""

from pathlib import Path

import pytest
from tests.integration.control_plane import Shown, shown
from tests.unit.cluster.faults import FAULTS, Fault, cases
from tests.unit.cluster.generated import CLUSTERS, changed
from tests.unit.cluster.judging import findings_of, verdict_of
from tests.unit.cluster.test_faults import assert_found

from trainyard.cluster.verdict import Readiness

__all__ = ["shown"]
pytestmark = pytest.mark.slow
NOT_HERE = {
    "image cannot be pulled",  # no image is pulled by simulated nodes
    "no namespace",  # a namespace takes long to delete: see test_cluster_operators.py
    "kueue answers in place of the operator",  # its webhooks would have no server, and no job could be tried
    "gpu faulty by its driver",  # taints of devices are behind a feature gate
    "claim that goes",  # it would be gone at once
}


def chosen() -> list[tuple[str, Fault]]:
    """Each fault once, in one of the clusters where it makes sense; these take turns."""
    planted = cases(list(CLUSTERS), real=True)
    result = []
    for position, fault in enumerate(f for f in FAULTS if f.name not in NOT_HERE):
        places = [name for name, planted_fault in planted if planted_fault is fault]
        result.append((places[position % len(places)], fault))
    return sorted(result, key=lambda case: list(CLUSTERS).index(case[0]))


def plan_of(name: str, *options: str) -> tuple[str, ...]:
    cluster = CLUSTERS[name]()
    return ("--num-nodes", "4", "--instance-type", cluster.instance_type, *cluster.options, *options)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_healthy_cluster_gets_no_finding(name: str, shown: Shown) -> None:
    shown.show(CLUSTERS[name]().state)
    kubeconfig = Path(shown.plane.kubeconfig)
    found = findings_of(kubeconfig, *plan_of(name), "--namespace", "team")
    assert found == []
    assert verdict_of(kubeconfig, *plan_of(name), "--namespace", "team").state is Readiness.READY


@pytest.mark.parametrize(
    ("name", "fault"), chosen(), ids=[f"{name}: {fault.name}" for name, fault in chosen()]
)
def test_a_planted_fault_is_found(name: str, fault: Fault, shown: Shown) -> None:
    shown.show(changed(CLUSTERS[name](), fault.plant))
    plan = plan_of(name, *fault.options, "--namespace", "team")
    assert_found(fault, findings_of(Path(shown.plane.kubeconfig), *plan))
