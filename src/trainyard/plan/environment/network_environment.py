"""The variables that the pods of a job are given for its network. As few as possible: the EFA plugin sets its
own.

What is left out on purpose, and why, is in `variable_rules`. Sources: aws-ofi-nccl (efa-env-var) and
`src/nccl_ofi_net.cpp`, NCCL `src/plugin/net.cc`.
"""

from trainyard.plan.environment.surroundings import VariableScope

ANY_PLUGIN = "AWS Libfabric"
"""NCCL_NET that every version of the EFA plugin answers to: its name up to 1.12.1, and from 1.13.0 it takes
the name that it is asked by. Without a working EFA, NCCL then fails at once instead of training over TCP."""
_RDMA_BY_ITSELF = (1, 7)
_PROVIDER_BY_ITSELF = (1, 6)


def network_environment(place: VariableScope) -> dict[str, str]:
    """The variables for `place`; none where no GPUs talk to other machines."""
    if not place.gpus or not place.nodes or place.nodes == 1:
        return {}
    found = {"NCCL_DEBUG": "INFO"}  # without it nothing shows which network was used
    if not place.on_efa:
        return {**found, "NCCL_NET": "Socket"}
    return {**found, "NCCL_NET": ANY_PLUGIN, **_for_old_plugins(place)}


def _for_old_plugins(place: VariableScope) -> dict[str, str]:
    """What plugins before 1.7 do not find out by themselves."""
    if place.plugin is None or place.plugin >= _RDMA_BY_ITSELF:
        return {}
    found = {"FI_EFA_USE_DEVICE_RDMA": "1"} if place.rdma else {}
    if place.plugin < _PROVIDER_BY_ITSELF:
        found |= {"FI_PROVIDER": "efa", "NCCL_PROTO": "simple"}
    return found
