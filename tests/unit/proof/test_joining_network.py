"""The proof's part `network`, by rule: each version of NCCL × each case × each damage × each request.

Green needs the channels of every process in the record of every start whose steps count.
"""

import copy
import io
import itertools
import json
import random
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.proof.test_proof import FINISHED, SAVED, SETTINGS, STARTED, STEPS, changed, judge, part
from tests.unit.watch.test_network_verdict import DAMAGES, NEWEST, P5, VERSIONS, Logs, cases, logs_of

from trainyard.proof.proof import Part
from trainyard.run.identity import read_origin
from trainyard.watch.network_record import EVENT, NetworkWatch
from trainyard.watch.network_verdict import (
    Expectation,
    Network,
    NetworkFacts,
    NetworkLog,
    ProcessFacts,
    lines_of_network,
    merge_facts,
)

P5_TYPE = replace(P5, instance_type="p5.48xlarge")
G6_TYPE = Expectation(efa=1, rdma=False, instance_type="g6.12xlarge", nodes=2)
GREEN = {
    "direct": ("auto", "efa"),
    "direct, type unknown": ("auto", "efa"),
    "no plugin lines": ("auto", "efa"),
    "not direct": ("auto", "efa"),
    "InfiniBand": ("auto",),
}
"""Case -> the networks that it satisfies; a request for TCP needs no record."""
Facts = tuple[NetworkFacts, ...]


def facts_in(logs: Logs) -> Facts:
    """The facts that each process reads in its own log."""
    found = []
    for lines in logs:
        log = NetworkLog()
        log.read(lines_of_network(io.BytesIO("".join(lines).encode())))
        found.append(log.facts())
    return tuple(found)


@cache
def facts_of(case: str, *, nodes: int = 2, processes: int = 2, version: str = NEWEST) -> NetworkFacts:
    return merge_facts(facts_in(logs_of(case, nodes * processes, version, nodes=nodes)))


def expected_of(case: str, version: str) -> Expectation:
    """The expectation from the machines of a case; the type of those without GPUDirect is on record."""
    expected = cases(VERSIONS[version])[case].expected
    return {P5: P5_TYPE}.get(expected, replace(G6_TYPE, nodes=None) if expected.rdma is False else expected)


def shown(facts: NetworkFacts, expected: Expectation = P5_TYPE) -> dict[str, Any]:
    """The event as it is read from events.jsonl."""
    event: dict[str, Any] = json.loads(json.dumps({"event": EVENT, **NetworkWatch(expected).event([facts])}))
    return event


def network(
    *events: dict[str, Any], asked: object = "efa", world: int = 4, history: Any = None, here: Any = 2
) -> Part:
    run = changed("hardware", to={"world_size": world, "local_world_size": here})
    run["history"] = history or []
    settings = {**SETTINGS, "compute": {"network": asked}}
    return part(judge(run, events=[STARTED, *events, SAVED, FINISHED], settings=settings), "network")


@each_case("name", list(cases(VERSIONS[NEWEST])))
@each_case("version", VERSIONS)
def test_each_case_of_each_version_and_each_request(version: str, name: str) -> None:
    for asked in ("auto", "efa", "tcp", None):
        found = network(shown(facts_of(name, version=version), expected_of(name, version)), asked=asked)
        green = asked == "tcp" or (asked or "auto") in GREEN.get(name, ())
        assert found.passed is green, (asked, found)
        assert (found.next_step is None) is green
        if not green:
            assert "; then train it again: " in str(found.next_step)
        elif asked != "tcp":
            assert found.evidence.startswith("4 processes on several machines, every channel over ")


@each_case("name", list(cases(VERSIONS[NEWEST])))
@each_case("version", VERSIONS)
def test_an_incomplete_record_is_never_green(version: str, name: str) -> None:
    for damage, asked in itertools.product(DAMAGES, ("auto", "efa")):
        parts = facts_in(damage(logs_of(name, 4, version), random.Random(name)))
        assert not network(shown(merge_facts(parts), expected_of(name, version)), asked=asked).passed


@each_case("name", list(cases(VERSIONS[NEWEST])))
@each_case("version", VERSIONS)
def test_merged_facts_are_those_of_all_logs_read_at_once(version: str, name: str) -> None:
    logs = logs_of(name, 8, version)
    one = NetworkLog()
    for lines in logs:
        one.read(lines)
    merged = merge_facts([merge_facts(facts_in(logs[:3])), merge_facts(facts_in(logs[3:]))])
    expected = expected_of(name, version)
    assert merged.judge(expected) == one.judge(expected)
    assert merge_facts([merged]) == merged


@each_case("value", [None, "x", -1, [], {}, ["0-3"], {"socket": 4}])
def test_a_field_that_was_changed_proves_no_more(value: Any) -> None:
    """No field makes a record of sockets green; one of EFA needs the fields that show its channels."""
    for case in ("sockets", "direct"):
        for field in asdict(facts_of(case)):
            event = shown(facts_of(case))
            event["facts"][field] = value
            may_hold = case == "direct" and field != "processes"
            assert not network(event).passed or may_hold, (case, field)
        for field in asdict(ProcessFacts("n1")):
            event = shown(facts_of(case))
            event["facts"]["processes"][0][field] = value
            may_hold = case == "direct" and field not in ("channels", "ranks")
            assert not network(event).passed or may_hold, (case, field)
    for expected in ("requested", "efa", "rdma", "instance_type", "infiniband", "nodes", "processes"):
        event = shown(facts_of("sockets"))
        event["expected"][expected] = value
        assert not network(event).passed


def test_what_the_event_claims_counts_for_nothing() -> None:
    event = shown(facts_of("sockets")) | {"verdict": Network.EFA_GPUDIRECT.value, "cause": ""}
    assert not network(event).passed
    assert "cannot be read" in network({"event": EVENT, "verdict": "efa-gpudirect"}).evidence


@pytest.mark.parametrize("asked", ["efa", "auto", None])
def test_nothing_on_record_is_red_and_says_what_to_do(asked: str | None) -> None:
    found = network(asked=asked)
    assert found.evidence == "4 processes, but nothing shows which network joined them"
    assert "NCCL_DEBUG" in str(found.next_step)
    assert "compute.network=tcp" in str(found.next_step)


@pytest.mark.parametrize("here", [None, 1, "4", True])
def test_unknown_processes_per_machine_are_several_machines(here: Any) -> None:
    assert not network(here=here).passed
    is_one_each = type(here) is int  # 4 machines, and the logs show 2
    assert network(shown(facts_of("direct")), here=here).passed is not is_one_each


def test_a_type_that_is_not_on_record_needs_gpudirect() -> None:
    plain = facts_of("not direct")
    assert network(shown(plain, G6_TYPE)).passed
    assert network(shown(plain, replace(P5_TYPE, rdma=None, instance_type="p5.4xlarge"))).passed
    assert "TRAINYARD_INSTANCE_TYPE" in str(network(shown(plain, Expectation(efa=1))).next_step)
    red = network(shown(plain, P5_TYPE))
    assert not red.passed
    assert "memory of the host" in red.evidence


def test_a_log_of_fewer_processes_than_the_run_has_is_red() -> None:
    found = network(shown(facts_of("direct", processes=2)), world=8, here=4)
    assert not found.passed
    assert "4 of 8 processes show channels" in found.evidence


COURSES: dict[str, tuple[list[Any], bool]] = {
    "one start": (["direct"], True),
    "its newest record counts": (["nothing", "direct"], True),
    "sockets before": (["sockets", "direct"], False),
    "a second start": (["direct", 100, "direct"], True),
    "a second start without a record": (["direct", 100], False),
    "a first start without a record": ([100, "direct"], False),
    "sockets until a step that counts": (["sockets", 100, "direct"], False),
    "sockets in steps that were trained again": (["direct", 200, "sockets", 100, "direct"], True),
    "a start that trained nothing": (["direct", 100, 100, "direct"], True),
    "a start after the last step": (["direct", STEPS], True),
    "from the beginning again": (["sockets", 0, "direct"], True),
}


@each_case("name", COURSES)
def test_each_start_whose_steps_count_must_show_its_channels(name: str) -> None:
    course, green = COURSES[name]
    events = [
        {"event": "resumed", "step": each, "manifest_sha256": "ab" * 32}
        if isinstance(each, int)
        else shown(NetworkFacts() if each == "nothing" else facts_of(each))
        for each in course
    ]
    assert network(*events).passed is green


@pytest.mark.parametrize("last", ["direct", "sockets"])
@pytest.mark.parametrize("first", ["direct", "sockets", None])
def test_a_run_that_was_ended_before_its_first_step_shows_its_network(first: str | None, last: str) -> None:
    """`efa` ends a run over sockets, perhaps before its first step is logged. The last start counts."""
    run = changed("hardware", to={"world_size": 4, "local_world_size": 2})
    run["outcome"] = {**run["outcome"], "status": "failed", "steps": 0}
    settings = {**SETTINGS, "compute": {"network": "efa"}}
    starts = [(STARTED, shown(facts_of(case))) for case in (first, last) if case]
    events: list[Any] = [event for start in starts for event in start]
    found = part(judge(run, events=events, settings=settings), "network")
    assert found.passed is (last == "direct")
    assert "nothing shows" not in found.evidence


def test_a_part_on_one_machine_needs_no_record() -> None:
    """First one machine, then two, and the other way round."""
    alone = {"until": 100, **read_origin(changed("hardware", to={"world_size": 2, "local_world_size": 2}))}
    several = copy.deepcopy(alone) | {"world_size": 4}
    resumed = {"event": "resumed", "step": 100, "manifest_sha256": "ab" * 32}
    direct = shown(facts_of("direct"))
    assert network(resumed, direct, history=[alone]).passed
    assert network(direct, resumed, history=[several], world=2).passed
    red = network(resumed, direct, history=[several])
    assert red.evidence.startswith("until step 100: ")
