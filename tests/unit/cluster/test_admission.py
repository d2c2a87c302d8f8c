"""When Kueue would admit a job: every combination of quota, use, cohort and limit, by the rule."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from trainyard.cluster.admission import AdmissionTime, outlook
from trainyard.cluster.demand import Demand
from trainyard.cluster.snapshot import ClusterQueue, Flavor, FlavorQuota, MissingData, Queue, Snapshot

GPU = "nvidia.com/gpu"
NOT_SEEN = MissingData("not asked")


def quota(nominal: int, used: int, limit: int | None = None, flavor: str = "p5") -> FlavorQuota:
    most = None if limit is None else limit * 1000
    return FlavorQuota(flavor, GPU, nominal=nominal * 1000, borrowing_limit=most, used=used * 1000)


def cluster_queue(name: str, *quotas: FlavorQuota, cohort: str = "", pending: int = 0) -> ClusterQueue:
    others = tuple(
        FlavorQuota("p5", r, nominal=10**9, borrowing_limit=None, used=0) for r in ("cpu", "memory")
    )
    return ClusterQueue(
        name, cohort, active=True, reason="", stopped=False, pending=pending, quotas=quotas + others
    )


def snapshot(*queues: ClusterQueue, **changes: Any) -> Snapshot:
    local = Queue("main", "own", active=True, reason="", stopped=False)
    names = list(Snapshot.__dataclass_fields__)
    empty: dict[str, Any] = dict.fromkeys(names, NOT_SEEN)
    empty |= {"queues": (local,), "cluster_queues": queues, "flavors": (), "now": 0.0, "clock_offset": None}
    return Snapshot(**(empty | changes))


DEMAND = Demand(nodes=2, gpus_per_node=8, instance_type="p5.48xlarge", queue="main")


@pytest.mark.parametrize(("nominal", "used"), list(itertools.product((0, 8, 16, 32), (0, 8, 16, 32))))
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


@pytest.mark.parametrize(
    ("nominal", "used", "limit", "other", "other_used"),
    list(itertools.product((0, 8, 16), (0, 8), (None, 0, 8), (0, 16), (0, 8, 16))),
)
def test_a_queue_of_a_cohort_may_borrow(
    nominal: int, used: int, limit: int | None, other: int, other_used: int
) -> None:
    own = cluster_queue("own", quota(nominal, used, limit), cohort="all")
    lender = cluster_queue("lender", quota(other, other_used), cohort="all")
    stranger = cluster_queue("stranger", quota(100, 0), cohort="others")
    found = outlook(snapshot(own, lender, stranger), DEMAND, ())
    most = nominal + other if limit is None else min(nominal + other, nominal + limit)
    free = max(0, min(most - used, nominal + other - used - other_used))
    assert found.when is (
        AdmissionTime.NEVER if most < 16 else AdmissionTime.NOW if free >= 16 else AdmissionTime.LATER
    ), found


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
