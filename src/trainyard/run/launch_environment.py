"""Read from the environment which part of a run this process is: a worker, a node's launcher, or all of it.

    LOCAL_RANK is set           --> a worker: torchrun, hyperpodrun or Ray has started one process per GPU
    an operator's variables     --> a node: one process per machine, which starts the workers of that machine
    neither                     --> alone, or the only node if several processes were requested

Operators describe nodes and torch describes processes, partly with the same names (`RANK`, `WORLD_SIZE`).
Contradictions are refused here, before torch is imported; what torchrun refuses by itself is left to it.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, cast

from trainyard.errors import ConfigError

# A number per node, or one per device. `auto` is one per GPU, and one without a GPU.
Processes = int | Literal["auto", "gpu", "cpu"]
# The program that starts workers instead of torchrun in a pod of HyperPod's training operator.
AGENT = "hyperpodrun"
_BY_MACHINE = ("auto", "gpu", "cpu")
_NODES = ("PET_NNODES", "NNODES")
_RANKS = ("PET_NODE_RANK", "NODE_RANK", "RANK")
_PROCESSES = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")
_ADDRESSES = ("PET_MASTER_ADDR", "MASTER_ADDR")
_PORTS = ("PET_MASTER_PORT", "MASTER_PORT")
_INDEX = "JOB_COMPLETION_INDEX"
# A launcher removes these from its workers' environment.
VARIABLES = (
    *(*_NODES, *_RANKS, *_PROCESSES, *_ADDRESSES, *_PORTS),
    *("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
)


@dataclass(frozen=True)
class NodeLauncher:
    """One machine of a run. This process starts its workers."""

    nodes: int
    rank: int | None
    """The number of this node; None when the rendezvous or the agent assigns it."""
    processes: Processes
    rendezvous: tuple[str, ...] = ()
    """torchrun's options by which several nodes find each other."""
    agent: tuple[str, ...] = ()
    """The program that replaces torchrun where an operator requires its own, and its options."""

    @property
    def log_name(self) -> int | str:
        """The name of this node in the names of NCCL's logs: its number, else that of its host."""
        return socket.gethostname() if self.rank is None else self.rank

    def describe(self, processes: int) -> str:
        """Return the node in one line for the log."""
        workers = f"{processes} process{'es' if processes > 1 else ''}"
        if self.nodes == 1:
            return workers
        which = "" if self.rank is None else f", this is node {self.rank}"
        return f"{self.nodes} nodes of {workers}{which} ({' '.join(self.rendezvous or self.agent)})"


def place_in_run(
    environment: Mapping[str, str], processes: int | None = None, *, has_agent: bool = False
) -> NodeLauncher | None:
    """Return this node, whose workers this process starts; None for a worker and for one that is alone.

    `processes` is the number per node that the command line requests, `has_agent` whether the program AGENT
    is installed. Raises ConfigError for variables that contradict each other or the command line, and when
    a variable that several nodes need is missing. torchrun reads the other variables PET_… itself.
    """
    if environment.get("LOCAL_RANK"):
        return None  # its launcher has checked the other variables
    # WORLD_SIZE counts the nodes only where nothing else does: newer operators count processes in it.
    nodes = _nodes(environment) or _number(environment, "WORLD_SIZE", least=1)
    rank, address = _number(environment, *_RANKS), _value(environment, *_ADDRESSES)
    number = _number(environment, _INDEX) if rank is None else rank
    per_node = _processes(environment, processes)
    if nodes is None:
        if rank is not None or (number is not None and address):
            raise _refusal(
                f"This is node {number}, but the number of nodes is not set: each would train alone. "
                "Set PET_NNODES to it"
            )
        return None if per_node is None else NodeLauncher(1, 0, per_node)
    per_node = per_node or 1
    if number is not None and number >= nodes:
        raise _refusal(f"This is node {number}, but the nodes are numbered 0 to {nodes - 1}: set PET_NNODES")
    endpoint = environment.get("PET_RDZV_ENDPOINT")
    # HyperPod's operator sets two numbers and nothing else: its agent receives the rest over HTTP.
    if has_agent and number is None and not (address or endpoint) and environment.get("NPROC_PER_NODE"):
        names = {"AGENT_HOST": "--server-host", "AGENT_PORT": "--server-port"}
        server = (f"{names[name]}={environment[name]}" for name in names if environment.get(name))
        return NodeLauncher(nodes, None, per_node, agent=(AGENT, *server))
    if nodes == 1:
        return NodeLauncher(1, 0, per_node)
    if endpoint:
        backend = environment.get("PET_RDZV_BACKEND") or "c10d"
        options = (f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}")
        return NodeLauncher(nodes, None, per_node, options)
    if not address:
        raise _refusal(
            f"There are {nodes} nodes, but no rendezvous address. Set PET_MASTER_ADDR to the host of the "
            f"first node on all nodes. HyperPod's training operator needs {AGENT} in the image instead "
            "(pip install hyperpod-elastic-agent)"
        )
    if number is None:
        raise _refusal(f"There are {nodes} nodes, but the number of this node is not set. Set PET_NODE_RANK")
    port = _number(environment, *_PORTS, least=1) or 29500
    meet = (f"--node-rank={number}", f"--master-addr={address}", f"--master-port={port}")
    return NodeLauncher(nodes, number, per_node, meet)


def is_first_node(environment: Mapping[str, str]) -> bool:
    """Return whether this pod is the first node, or the only one."""
    return not node_number(environment)


def node_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of this node; None if nothing states it.

    If an operator sets none, it is the end of the pod's name in TRAINYARD_POD: `-0` for the first node.
    """
    for name in ("PET_NODE_RANK", "NODE_RANK", _INDEX, "RANK"):
        if environment.get(name):
            return _number(environment, name)
    number = re.search(r"-(\d+)$", environment.get("TRAINYARD_POD", ""))
    return None if number is None else int(number[1])


def launcher_options(node: NodeLauncher, processes: int, *, grace_seconds: int) -> list[str]:
    """Return the options with which torchrun, or the agent, starts `processes` workers of `node`.

    `grace_seconds` is how long workers may take from SIGTERM to their end.
    """
    count = f"--nproc-per-node={processes}"
    if node.agent:
        stop = ["--shutdown-signal=SIGTERM", f"--shutdown-timeout={grace_seconds}"]
        return [f"--nnodes={node.nodes}", count, *stop, *node.agent[1:]]
    if node.nodes == 1:
        return ["--standalone", count]
    return [f"--nnodes={node.nodes}", count, *node.rendezvous]


def nccl_log(logs: PurePath, node: int | str) -> str:
    """Return the path in `logs` of NCCL's log of a node's processes; %h is the host, %p the process."""
    return f"{logs}/nccl-node-{node}-".replace("%", "%%") + "%h-%p.log"


def nccl_log_variables(log: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which NCCL writes its log at level INFO into the file `log`.

    In `log`, %h stands for the host and %p for the process. Empty if the user has configured the log file, or
    a level that does not show the channels between machines.
    """
    level = environment.get("NCCL_DEBUG", "INFO")
    if "NCCL_DEBUG_FILE" in environment or level.upper() not in ("INFO", "TRACE"):
        return {}
    return {"NCCL_DEBUG": level, "NCCL_DEBUG_FILE": log}


def _nodes(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes from torchrun's form, `N` or `MIN:MAX`. A range is refused."""
    least, _, most = (_value(environment, *_NODES) or "").partition(":")
    if most not in ("", least):
        raise _refusal(
            f"PET_NNODES={least}:{most}: a run keeps its number of nodes, because its global batch decides "
            "the result. Request one number (elasticPolicy: minReplicas = maxReplicas)"
        )
    return _number({_NODES[0]: least}, _NODES[0], least=1)


def _processes(environment: Mapping[str, str], requested: int | None) -> Processes | None:
    """Return the processes per node, None if not set. The command line may replace `auto`, not a number."""
    value = _value(environment, *_PROCESSES)
    if value in _BY_MACHINE:
        return requested or cast(Processes, value)
    found = _number(environment, *_PROCESSES, least=1)
    if found and requested and requested != found:
        raise _refusal(
            f"--nproc-per-node {requested} contradicts NPROC_PER_NODE={found} of the job. Omit the option, "
            "or change the job (nprocPerNode, numProcPerNode)"
        )
    return requested or found


def _value(environment: Mapping[str, str], *names: str) -> str | None:
    """Return the common value of those of `names` that are set. Raises ConfigError when they differ."""
    given = {name: environment[name].strip() for name in names if environment.get(name, "").strip()}
    if len(set(given.values())) > 1:
        both = " and ".join(f"{name}={value}" for name, value in given.items())
        raise _refusal(f"{both} contradict each other. Unset the wrong one")
    return next(iter(given.values()), None)


def _number(environment: Mapping[str, str], *names: str, least: int = 0) -> int | None:
    value = _value(environment, *names)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) < least:
        raise _refusal(f"{' or '.join(names)} is {value}: expected a whole number, at least {least}")
    return int(value)


def _refusal(problem: str) -> ConfigError:
    return ConfigError(f"{problem}. Nothing was started.")
