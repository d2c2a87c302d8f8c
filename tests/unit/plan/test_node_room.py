"""The room of a pod by its instance type, against the memory with which Karpenter judges that type."""

import pytest
from tests.cases import each_case

from trainyard.plan.instances import CATALOGUE, room_of_type

ALLOCATABLE = {
    "g5.xlarge": 14162,
    "g5.2xlarge": 29317,
    "g5.4xlarge": 57691,
    "g5.8xlarge": 118312,
    "g5.12xlarge": 173400,
    "g5.16xlarge": 239554,
    "g5.24xlarge": 355262,
    "g5.48xlarge": 723299,
    "g6.xlarge": 14162,
    "g6.2xlarge": 29317,
    "g6.4xlarge": 57691,
    "g6.8xlarge": 118312,
    "g6.12xlarge": 178933,
    "g6.16xlarge": 234021,
    "g6.24xlarge": 355262,
    "g6.48xlarge": 718987,
    "gr6.4xlarge": 118312,
    "gr6.8xlarge": 239554,
    "g6e.xlarge": 29317,
    "g6e.2xlarge": 59627,
    "g6e.4xlarge": 118312,
    "g6e.8xlarge": 239554,
    "g6e.12xlarge": 360157,
    "g6e.16xlarge": 476504,
    "g6e.24xlarge": 721682,
    "g6e.48xlarge": 1449132,
    "g7.2xlarge": 27161,
    "g7.4xlarge": 54699,
    "g7.8xlarge": 113934,
    "g7.12xlarge": 173169,
    "g7.24xlarge": 346715,
    "g7.48xlarge": 718756,
    "g7e.2xlarge": 57471,
    "g7e.4xlarge": 115320,
    "g7e.8xlarge": 236562,
    "g7e.12xlarge": 477659,
    "g7e.24xlarge": 962625,
    "g7e.48xlarge": 1932558,
    "p4d.24xlarge": 1082712,
    "p4de.24xlarge": 1082712,
    "p5.4xlarge": 240830,
    "p5.48xlarge": 1938410,
    "p5e.48xlarge": 1938410,
    "p5en.48xlarge": 1937332,
    "p6-b200.48xlarge": 1937332,
    "p6-b300.48xlarge": 3877198,
}
"""Type -> MiB that pods can have: Karpenter's reference of instance types (commit 1d927085)."""
DAEMONS = 500
"""MiB for the DaemonSets of the node."""
TOO_LARGE = (
    "g5.xlarge", "g5.2xlarge", "g5.4xlarge", "g6.xlarge", "g6.2xlarge", "g6.4xlarge", "gr6.4xlarge",
    "g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge", "g7.2xlarge", "g7.4xlarge", "g7e.2xlarge", "g7e.4xlarge",
)  # fmt: skip
"""Types on which the reserve of HyperPod's command line, 7 % and 1,536 MiB, would be too small."""


def test_the_numbers_here_are_of_every_type() -> None:
    # Karpenter's reference lacks the type of the UltraServers.
    assert {*ALLOCATABLE, "p6e-gb200.36xlarge"} == {instance.name for instance in CATALOGUE}


@each_case("name", ALLOCATABLE)
@each_case("prefix", ["", "ml."])
def test_a_pod_leaves_the_memory_that_daemons_need_on_a_node_of_karpenter(prefix: str, name: str) -> None:
    room = room_of_type(prefix + name)
    assert room is not None
    assert room.memory_mib <= ALLOCATABLE[name] - DAEMONS


@each_case("name", TOO_LARGE)
def test_a_pod_gets_all_the_memory_that_karpenter_gives(name: str) -> None:
    room = room_of_type(name)
    assert room is not None
    assert room.memory_mib == ALLOCATABLE[name] - DAEMONS


@pytest.mark.parametrize(("name", "memory"), [("g5.8xlarge", 113321), ("p5.48xlarge", 1906575)])
def test_a_type_that_fits_keeps_its_memory(name: str, memory: int) -> None:
    room = room_of_type(name)
    assert room is not None
    assert room.memory_mib == memory
