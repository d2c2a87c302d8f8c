"""Judge variables of NCCL, libfabric (EFA) and torch by their effect in the place where they are set.

    name, value, VariableScope ──judge_variable──> Finding, or None if nothing is wrong

Sources: aws-ofi-nccl (efa-env-var, `src/platform-aws.cpp`, `src/nccl_ofi_net.cpp`, to 1.21); libfabric
`prov/efa/src/efa_env.c`; NCCL (its page on variables, `src/plugin/net.cc`, to 2.30); PyTorch
(`ProcessGroupNCCL.hpp`, its page on TORCH_NCCL variables, to 2.13).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from trainyard.config.secret_forms import is_build_variable
from trainyard.plan.finding import Finding
from trainyard.plan.instances import CATALOGUE, InstanceType

_DEFAULT, _FILLED_IN = re.compile(r"\$\{\w+:?-([^{}]+)\}"), re.compile(r"\$\(\w+\)")
ANY_PLUGIN = "AWS Libfabric"
"""The value of NCCL_NET that every version of the EFA plugin accepts. With it NCCL fails at once if EFA does
not work, instead of training over TCP. Up to 1.12.1 it is the plugin's name; from 1.13.0 any name works."""
_PLUGIN_NAMES = ("ofi", "aws libfabric", "libfabric")


@dataclass(frozen=True)
class VariableScope:
    """The known facts about the place where variables take effect.

    None is unknown: no rule may assume a value.
    """

    instance: InstanceType | None = None
    nodes: int | None = None
    efa: int | None = None
    """EFA interfaces of a process."""
    gpus: int | None = None
    """GPUs per node that are used."""
    network: str = "auto"
    """The value of `compute.network`."""
    host_network: bool = False
    is_pod: bool = False
    """Whether all variables of a container are known, so that an absent one is really not set."""

    @property
    def rdma(self) -> bool | None:
        """Return whether its EFA reads and writes the memory of GPUs and hosts directly (RDMA).

        Without a type, what all types say that have as many GPUs and interfaces.
        """
        if self.instance:
            return self.instance.rdma
        gpus, efa = self.gpus or 0, self.efa or 0
        answers = {each.rdma for each in CATALOGUE if each.gpus >= gpus and each.efa >= efa}
        return answers.pop() if len(answers) == 1 else None

    @property
    def has_efa(self) -> bool | None:
        """Return whether there is an EFA interface to use."""
        if self.efa is not None:
            return self.efa > 0
        return False if self.instance is not None and self.instance.efa == 0 else None

    @property
    def on_efa(self) -> bool:
        """Return whether machines communicate over EFA: several, with interfaces, and network is not tcp."""
        return bool(self.nodes and self.nodes > 1 and self.efa and self.network != "tcp")


Rule = Callable[[str, VariableScope], Finding | None]
REMOVE = "remove it"


def judge_variable(name: str, value: str, place: VariableScope) -> Finding | None:
    """Judge `name` set to `value` in `place`; None if nothing is wrong, or the value is filled in later."""
    if name in ALWAYS:
        return ALWAYS[name]
    if name in RULES:
        default = _DEFAULT.fullmatch(value.strip())
        value = default[1] if default else value.strip()
        return None if is_build_variable(value) or _FILLED_IN.fullmatch(value) else RULES[name](value, place)
    if name in RENAMED:
        return _warning(
            f"its name is {RENAMED[name]} since torch 2.2; the old one still works, with a warning",
            f"name it {RENAMED[name]}",
        )
    if re.fullmatch(r"NCCL_NVLS_\w+", name):
        loss = "; 0 loses NVLink SHARP on Hopper and later GPUs" if value == "0" else ""
        return _warning(f"NCCL and the plugin decide it by themselves{loss}")
    return None


def _error(reason: str, fix: str = REMOVE) -> Finding:
    return Finding.error(reason, fix)


def _warning(reason: str, fix: str = REMOVE) -> Finding:
    return Finding.warning(reason, fix)


def _device_rdma(value: str, place: VariableScope) -> Finding | None:
    if place.has_efa is False:
        return _warning("there is no EFA here, so it does nothing")
    if value not in ("0", "false", "no", "off", "n"):
        if place.rdma:  # aws-ofi-nccl 1.7 and later find RDMA by themselves
            return None
        if place.rdma is False:
            return _error(
                "libfabric ends the process (SIGABRT) where it is set and the device has no RDMA read: "
                f"{place.instance.name if place.instance else 'this type'} has none"
            )
        return _warning("libfabric ends the process (SIGABRT) on types without RDMA, such as g5, g6 and g6e")
    if place.rdma is False:
        return None
    if place.rdma:
        return _error(
            "it turns GPUDirect RDMA off: the plugin then refuses to start on such a type, and NCCL uses TCP"
        )
    return _warning(
        "on types with RDMA (p4d, p5, p6) the plugin then refuses to start, and NCCL falls back to TCP"
    )


def _protocol(value: str, place: VariableScope) -> Finding | None:
    if place.rdma is False and place.has_efa and value.lower() == "simple":
        return None  # as the plugin sets it by itself where the type has no RDMA
    return _warning(
        "it turns LL and LL128 off and limits NCCL's choice, which costs speed; it is meant for debugging"
    )


def _provider(value: str, place: VariableScope) -> Finding | None:
    if value.lower() != "efa":
        wanted = _error if place.on_efa else _warning
        return wanted(
            f"libfabric then offers {value or 'nothing'} instead of EFA, the only provider of the plugin"
        )
    if place.has_efa is False:
        return _warning("there is no EFA here: a plugin in the image then finds no provider")
    return None


def _net(value: str, place: VariableScope) -> Finding | None:
    plain = value.lower()
    if plain in _PLUGIN_NAMES:
        if place.nodes == 1:
            return _error("NCCL fails: on one node there is no such network; it needs several nodes with EFA")
        if place.has_efa is False or place.network == "tcp":
            return _error("NCCL fails: without EFA there is no such network", "set NCCL_NET=Socket")
        if plain == "libfabric":
            return _warning(
                "versions before 1.13 of the plugin have another name", f"set NCCL_NET={ANY_PLUGIN!r}"
            )
        return None
    if plain == "socket":
        if place.on_efa:
            return _error(
                "the job requests EFA but trains over TCP",
                "remove it, or set compute.network: tcp and request no EFA",
            )
        return None
    return _error(f"NCCL has no network {value!r} on EC2, and fails") if place.nodes != 1 else None


def _interface(value: str, place: VariableScope) -> Finding | None:
    names = value.lstrip("^=").split(",")
    if value.startswith("^"):
        if any(name.startswith("eth") for name in names) and not place.host_network:
            return _error(
                "it excludes eth0, the only interface of a pod: NCCL then has no interface",
                "remove it, or exclude only lo and docker: ^lo,docker",
            )
        return None
    if place.host_network and any(name.startswith("eth") for name in names):
        return _error("interfaces of the hosts are called ens… or enp…, not eth…", "remove it")
    return _warning(
        "interfaces have other names on other nodes; EFA needs one only to start",
        "remove it, or set it to ^lo,docker",
    )


def _debug(value: str, place: VariableScope) -> Finding | None:
    if value.upper() in ("INFO", "TRACE"):
        return None
    if value.upper() not in ("VERSION", "WARN", "ABORT", "NONE", ""):
        return _warning(f"NCCL knows no level {value!r}", "set NCCL_DEBUG=INFO")
    if place.nodes == 1:
        return None
    return _warning("NCCL writes which network it uses only at level INFO", "set NCCL_DEBUG=INFO")


def _library_path(value: str, place: VariableScope) -> Finding | None:
    if not place.on_efa or "$LD_LIBRARY_PATH" in value or "${LD_LIBRARY_PATH" in value:
        return None
    if "/opt/amazon/efa/lib" in value and "nccl" in value:
        return None
    return _warning(
        "it replaces the image's value; without the folders of EFA and its plugin NCCL falls back to TCP",
        "remove it, or add /opt/amazon/efa/lib and the plugin's folder",
    )


def _unless(harmless: tuple[str, ...], judgement: Finding) -> Rule:
    return lambda value, _place: None if value.lower() in harmless else judgement


_NO_TIMEOUT = _warning(
    "neither NCCL nor torch reads it; the time-out of collectives is init_process_group's (10 minutes)",
    "remove it; hangs are found by TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC and by monitoring.hang_seconds",
)
# libfabric, prov/efa/src/efa_fork_support.c
_FORK_SAFE = _warning(
    "the EFA plugin sets FI_EFA_FORK_SAFE where the kernel needs it, and libfabric then refuses huge pages"
)
_ABORTS = _error("libfabric ends the process where it is set")
_TUNED = _warning("the EFA plugin sets it for each platform; this value replaces that and is usually slower")
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "ENABLE_NCCL_HEALTH_CHECK": "TORCH_NCCL_ENABLE_HEALTH_CHECK",
}
ALWAYS: dict[str, Finding] = {
    "NCCL_ALGO": _warning("it replaces NCCL's choice for each size; it is meant for debugging"),
    **dict.fromkeys(("NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "TORCH_NCCL_TIMEOUT"), _NO_TIMEOUT),
    **dict.fromkeys(("FI_EFA_MTU_SIZE", "FI_EFA_TX_IOV_LIMIT", "FI_EFA_RX_IOV_LIMIT"), _ABORTS),
    **dict.fromkeys(("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_MIN_CHANNELS"), _TUNED),
    **dict.fromkeys(("NCCL_TOPO_FILE", "NCCL_TUNER_PLUGIN"), _TUNED),
    **dict.fromkeys(("RDMAV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"), _FORK_SAFE),
}
"""Wrong with any value."""
RULES: dict[str, Rule] = {
    "FI_EFA_USE_DEVICE_RDMA": _device_rdma,
    "NCCL_PROTO": _protocol,
    "FI_PROVIDER": _provider,
    "NCCL_NET": _net,
    "NCCL_SOCKET_IFNAME": _interface,
    "NCCL_DEBUG": _debug,
    "LD_LIBRARY_PATH": _library_path,
    "NCCL_P2P_DISABLE": _unless(("0",), _warning("GPUs of a node then communicate through main memory")),
    "CUDA_LAUNCH_BLOCKING": _unless(
        ("0", ""), _warning("every launch waits for its kernel; it is meant for debugging")
    ),
}
_TRAINER = "TRAINYARD_RUN_ID"
"""Set in the pods of our own jobs: the trainer has NCCL write its log into the run directory."""


def missing_variables(names: frozenset[str], place: VariableScope) -> dict[str, Finding]:
    """Return the variables that a job with GPUs on several nodes lacks; none unless all its own are known."""
    if not place.is_pod or not place.nodes or place.nodes == 1 or not place.gpus:
        return {}
    found = {}
    if "NCCL_DEBUG" not in names and _TRAINER not in names:
        found["NCCL_DEBUG"] = _warning(
            "it is not set: NCCL does not write which network it uses", "set NCCL_DEBUG=INFO"
        )
    if "NCCL_NET" not in names and place.on_efa:
        found["NCCL_NET"] = _warning(
            "it is not set: where EFA does not work, NCCL trains over TCP without an error",
            f"set NCCL_NET={ANY_PLUGIN!r}, so that NCCL fails at once without EFA",
        )
    return found


def network_environment(place: VariableScope) -> dict[str, str]:
    """Return the variables that the pods of a job get; none unless GPUs of several machines communicate.

    They are few, because the EFA plugin sets its own.
    """
    if not place.gpus or not place.nodes or place.nodes == 1:
        return {}
    found = {"NCCL_DEBUG": "INFO"}  # NCCL writes which network it uses only at INFO
    if not place.on_efa:
        return {**found, "NCCL_NET": "Socket"}
    return {**found, "NCCL_NET": ANY_PLUGIN}
