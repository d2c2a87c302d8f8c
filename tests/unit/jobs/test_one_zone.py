"""A job that EFA joins stays in one zone: in the objects of all kinds, retried, and as reported."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.cluster.test_job_preflight import node, snapshot_of
from tests.unit.cluster.test_job_preflight import pod as pod_on
from tests.unit.jobs.plans import instance_for, plan, templates
from tests.unit.jobs.state.shapes import job as job_of
from tests.unit.jobs.state.shapes import pod, seen

from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.jobs.follow import job_changes
from trainyard.jobs.job_object import EFA_LABEL, JOB_LABEL, PLAN
from trainyard.jobs.job_reader import FoundJob
from trainyard.jobs.kinds import KINDS, find_kind
from trainyard.jobs.resubmission import avoid_nodes, make_resubmission
from trainyard.jobs.state.job_state import State
from trainyard.jobs.state.state_machine import judge_job
from trainyard.report.facts.live_status import LiveStatus
from trainyard.report.jobs.job_actions import state_markdown
from trainyard.report.jobs.job_text import list_lines, progress_line, status_lines
from trainyard.watch.health import Health
from trainyard.watch.retry_decision import AvoidedNode, RetryClaim, RetryRecord

Json = dict[str, Any]
ZONE, EFA = "topology.kubernetes.io/zone", "vpc.amazonaws.com/efa"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
KUEUE = "kueue.x-k8s.io/podset"
CASES = itertools.product(KINDS, (1, 2, 4), ("auto", "tcp"), ("", "queue", "topology"), ("", "z1", None))


def requests_efa(template: Json) -> bool:
    return any(EFA in (c.get("resources") or {}).get("limits", {}) for c in template["spec"]["containers"])


def guard_of(template: Json) -> list[Json]:
    found: list[Json] = template["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED, [])
    return found


def zone_of(template: Json) -> str:
    """The zone that a pod requires; empty for none."""
    nodes = template["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
    zones = [
        each["values"]
        for term in nodes.get("nodeSelectorTerms", [])
        for each in term.get("matchExpressions", ())
        if (each["key"], each["operator"]) == (ZONE, "In")
    ]
    assert all(nodes.get("nodeSelectorTerms", [{"": ""}])), "an empty term matches no node"
    return str(zones[0][0]) if zones else ""


def wrongs_of(template: Json, *, guarded: bool, zone: str, name: str) -> Iterator[str]:
    labels = template["metadata"]["labels"]
    if (EFA_LABEL in labels) is not guarded:
        yield "the label"
    if zone_of(template) != (zone if guarded else ""):
        yield f"the zone: {zone_of(template)}"
    terms = [{"topologyKey": ZONE, "labelSelector": {"matchLabels": {JOB_LABEL: name, EFA_LABEL: "true"}}}]
    if guard_of(template) != (terms if guarded else []):
        yield f"the guard: {guard_of(template)}"
    if guarded and not guard_of(template)[0]["labelSelector"]["matchLabels"].items() <= labels.items():
        yield "the pod does not match its own term, so that none would ever start"


@pytest.mark.slow
def test_each_kind_with_efa_requires_one_zone_and_no_other_pod_does() -> None:
    wrongs = []
    for kind, nodes, network, queue, zone in CASES:
        case = f"{kind}, {nodes} nodes, {network}, {queue or 'no queue'}, zone {zone!r}"
        topology = ("cluster.pod.topology=rack",) if queue == "topology" else ()
        settings = ("compute.strategy=ddp", f"compute.network={network}", *topology)
        there = {"instance_type": instance_for(kind, "p5.48xlarge"), "zone": zone}
        planned = plan(*settings, kind=kind, nodes=nodes, queue=queue and "research", **there)
        joined = nodes > 1 and network == "auto"
        guarded = joined and queue != "topology" and zone is not None
        found = [
            each for body in KINDS[kind].render(planned).all for each in templates(body) if "metadata" in each
        ]
        trains = [template for template in found if requests_efa(template)]
        if bool(trains) is not joined:
            wrongs.append(f"{case}: {len(trains)} templates request EFA")
        for template in found:
            own = template in trains
            name = template["metadata"]["labels"][JOB_LABEL]
            wrongs += [
                f"{case}: {wrong}"
                for wrong in wrongs_of(template, guarded=guarded and own, zone=zone or "", name=name)
            ]
            notes = template["metadata"].get("annotations", {})
            place = (notes.get(f"{KUEUE}-required-topology"), notes.get(f"{KUEUE}-preferred-topology"))
            pair = len(trains) == 2
            expected = ("rack", None) if joined else (None, "rack")
            if own and place != (expected if queue == "topology" else (None, None)):
                wrongs.append(f"{case}: Kueue's topology is {place}")
            if own and (f"{KUEUE}-group-name" in notes) is not (pair and queue == "topology"):
                wrongs.append(f"{case}: Kueue's group is {notes}")
    assert not wrongs, "\n".join(wrongs[:20])


def test_a_retry_of_each_kind_takes_the_new_zone_and_keeps_what_it_avoids() -> None:
    wrongs = []
    for kind, before, after in itertools.product(KINDS, ("", "a"), ("", "b")):
        case = f"{kind}, {before!r} to {after!r}"
        there = {"instance_type": instance_for(kind, "p5.48xlarge"), "nodes": 2, "zone": before}
        manifests = KINDS[kind].render(plan("compute.strategy=ddp", kind=kind, **there))
        broken = AvoidedNode("n1", strictly=True)
        made, *parts = (avoid_nodes(body, [broken]) for body in (manifests.job, *manifests.parts))
        new = make_resubmission(KINDS[kind], made, parts, name="llama-2", retries=1, zone=after)
        for body in (new.job, *new.parts):
            for template in templates(body):
                if "metadata" not in template:
                    continue
                guarded = requests_efa(template)
                wrongs += [
                    f"{case}: {wrong}"
                    for wrong in wrongs_of(template, guarded=guarded, zone=after, name="llama-2")
                ]
                kept = template["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
                if not all("matchFields" in term for term in kept.get("nodeSelectorTerms", [{}])):
                    wrongs.append(f"{case}: the broken node is not avoided any more")
        if json.loads(new.job["metadata"]["annotations"][PLAN])["zone"] != after:
            wrongs.append(f"{case}: the plan has the old zone")
    assert not wrongs, "\n".join(wrongs[:20])


def test_pods_with_efa_in_two_zones_are_an_alert_everywhere_for_each_kind() -> None:
    wrongs = []
    zones = {"n0": "a", "n1": "a", "n2": "b", "n3": ""}
    nodes_of = (("n0", "n1"), ("n0", "n2"), ("n0", "n3"))
    for kind, nodes, efa, phase in itertools.product(
        KINDS, nodes_of, (True, False), ("Running", "Pending", "Failed")
    ):
        raws = [pod(f"job-{n}", phase, rank=n, node=node) for n, node in enumerate(nodes)]
        for raw in raws:
            raw["spec"]["containers"] = [{"resources": {"limits": {EFA: "32"} if efa else {}}}]
        observed = replace(seen(kind, job_of(kind), raws), zones=zones)
        state = judge_job(observed)
        expected = efa and phase != "Failed" and nodes == ("n0", "n2")
        health = Health()
        health.add_job_alerts(state.alerts, 1.0)
        record, live = state.record(), LiveStatus(1.0, None, health.alerts, job=state).record()
        shown = {
            "status": " ".join("\n".join(status_lines(record, width=80)).split()),
            "summary": state_markdown(record),
            "follow": progress_line(record),
            "list": " ".join("\n".join(list_lines([{**record, "age_seconds": 1}], width=400)).split()),
            "watch": json.dumps(live["alerts"]),
            "network": json.dumps(live["network"]),
            "json": json.dumps(record["alerts"]),
        }
        told = {name for name, text in shown.items() if "in 2 zones" in text and "1 in b (job-1)" in text}
        if state.state is not State.RUNNING:  # a list shows why the job does not run instead
            del shown["list"]
        if told != (set(shown) if expected else set()):
            wrongs.append(f"{kind}, {nodes}, EFA {efa}, {phase}: {sorted(told)}")
    assert not wrongs, "\n".join(wrongs[:20])


def test_a_job_that_is_sent_again_gets_a_zone_in_which_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind, plan, and number of free nodes of each zone."""
    api: Any = None  # what it would answer is given below
    wrongs = []
    for kind, zone, free_a, free_b in itertools.product(KINDS, (None, "", "a"), (0, 1, 2), (0, 1, 2)):
        there = {"instance_type": instance_for(kind, "p5.48xlarge"), "nodes": 2, "zone": zone}
        body = KINDS[kind].render(plan("compute.strategy=ddp", kind=kind, **there)).job
        found = FoundJob(find_kind(KINDS[kind].followed), "team", "llama", body)
        nodes = [node("a0", labels={ZONE: "a"})]
        nodes += [node(f"a{n}", labels={ZONE: "a"}) for n in range(1, free_a + 1)]
        nodes += [node(f"b{n}", labels={ZONE: "b"}) for n in range(free_b)]
        usage = snapshot_of(*nodes, pods=(pod_on("a0", **{"nvidia.com/gpu": 8000}),))
        monkeypatch.setattr(ClusterQuery, "usage", lambda _, usage=usage: usage)
        claim = RetryClaim("llama-2", 0.0, RetryRecord(1))
        after = job_changes.zone_for_next(api, found, "llama-2", claim)
        fits = {name for name, free in (("a", free_a), ("b", free_b)) if free == 2}
        later = "a" if free_a else ""  # the only zone that fits once its nodes are free
        if after not in ({None} if zone is None else fits or {later}):
            wrongs.append(f"{kind}, {zone!r}, free {free_a} and {free_b}: next in {after!r}")
    assert not wrongs, "\n".join(wrongs[:20])
