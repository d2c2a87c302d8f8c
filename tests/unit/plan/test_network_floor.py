"""Floors of the bandwidth between machines: half of what AWS published, and silence about everything else."""

import pytest
from tests.cases import each_case

from trainyard.plan.instances import ALL_REDUCE
from trainyard.plan.network_floor import PUBLISHED_BYTES, bandwidth_floor, judge_bandwidth

GIB = 1 << 30


def test_a_floor_rests_on_a_published_figure() -> None:
    for instance_type, nodes, floor in (
        ("p5.48xlarge", 2, 218.475),
        ("ml.p5.48xlarge", 2, 218.475),
        ("p5.48xlarge", 16, 200.0),
        ("p4de.24xlarge", 4, 25.0),
    ):
        assert bandwidth_floor(instance_type, nodes) == pytest.approx(floor)
    for instance_type, nodes in (("p5.48xlarge", 1), ("p4d.24xlarge", 2), ("", 2)):
        assert bandwidth_floor(instance_type, nodes) is None


@each_case("nodes", [2, 3, 64])
@each_case("kind", ALL_REDUCE)
def test_the_published_machines_are_fast_and_tcp_is_slow(kind: str, nodes: int) -> None:
    speed, _ = ALL_REDUCE[kind]
    assert not judge_bandwidth(speed, instance_type=kind, nodes=2, size=GIB).is_slow
    assert judge_bandwidth(speed / 10, instance_type=kind, nodes=nodes, size=GIB).is_slow


def test_a_small_message_is_not_compared_with_the_figure_of_a_large_one() -> None:
    found = judge_bandwidth(1.0, instance_type="p5.48xlarge", nodes=2, size=PUBLISHED_BYTES - 1)
    assert not found.is_slow and "messages of 1,073,741,824 bytes" in found.text


def test_machines_without_a_figure_are_never_slow() -> None:
    found = judge_bandwidth(0.001, instance_type="g5.48xlarge", nodes=2, size=GIB)
    assert not found.is_slow and found.floor is None
    assert "no figure is published for g5.48xlarge" in found.text
