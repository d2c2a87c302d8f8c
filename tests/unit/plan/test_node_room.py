"""The room of a pod by its instance type, against the memory with which Karpenter judges that type."""

import pytest

from trainyard.plan.instances import CATALOGUE, room_of_type

DAEMONS = 500
"""MiB for the DaemonSets of the node."""


def test_a_pod_leaves_the_memory_that_daemons_need_on_a_node_of_karpenter() -> None:
    for instance in CATALOGUE:
        for prefix in ("", "ml."):
            room = room_of_type(prefix + instance.name)
            assert room is not None
            assert 0 < room.memory_mib <= instance.allocatable_mib - DAEMONS, instance.name


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("g5.xlarge", 14162 - DAEMONS),  # the reserve of HyperPod's command line would be too small
        ("g7e.4xlarge", 115320 - DAEMONS),
        ("g5.8xlarge", 113321),
        ("p5.48xlarge", 1906575),
    ],
)
def test_a_pod_gets_what_the_reserve_leaves_and_no_more_than_karpenter_gives(name: str, memory: int) -> None:
    room = room_of_type(name)
    assert room is not None
    assert room.memory_mib == memory
