"""When Kueue would admit a job: every combination of quota and use, by the rule."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.cluster.admission import AdmissionTime, outlook
from trainyard.cluster.capacity import Capacity, Fit
from trainyard.cluster.check_definition import Facts
from trainyard.cluster.checks import gang, queue
from trainyard.cluster.snapshot import ClusterQueue, Flavor, FlavorQuota, MissingData, Queue, Snapshot
from trainyard.jobs.job_spec import JobSpec

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
