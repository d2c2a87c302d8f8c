"""Choose the variables that the pods of a job get for its network: few, because the EFA plugin sets its own.

`variable_rules` explains which are left out. Sources: aws-ofi-nccl (efa-env-var) and
`src/nccl_ofi_net.cpp`, NCCL `src/plugin/net.cc`.
"""

from trainyard.plan.environment.surroundings import VariableScope

ANY_PLUGIN = "AWS Libfabric"
"""The value of NCCL_NET that every version of the EFA plugin accepts. With it NCCL fails at once if EFA does
not work, instead of training over TCP. Up to 1.12.1 it is the plugin's name; from 1.13.0 any name works."""


def network_environment(place: VariableScope) -> dict[str, str]:
    """Return the variables for `place`; none unless GPUs of several machines communicate."""
    if not place.gpus or not place.nodes or place.nodes == 1:
        return {}
    found = {"NCCL_DEBUG": "INFO"}  # NCCL writes which network it uses only at INFO
    if not place.on_efa:
        return {**found, "NCCL_NET": "Socket"}
    return {**found, "NCCL_NET": ANY_PLUGIN}
