"""Read from the environment which part of a run this process is: a worker, a node's launcher, or all of it.

    LOCAL_RANK is set           --> worker: torchrun, hyperpodrun or Ray has started one process per GPU
    an operator's variables     --> node: one process per machine, which starts the workers of that machine
    neither                     --> alone, or the only node if several processes were requested

Operators describe nodes and torch describes processes, partly with the same names (`RANK`, `WORLD_SIZE`).
Contradictions are refused here, before torch is imported. This module starts nothing.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from trainyard.errors import ConfigError

Processes = int | Literal["auto", "gpu", "cpu"]
"""Processes per node: a number, or one per device. `auto` is one per GPU, and one without a GPU."""
DEFAULT_PORT = 29500
AGENT = "hyperpodrun"
"""The program that starts workers instead of torchrun in a pod of HyperPod's training operator."""
_BY_MACHINE: tuple[Literal["auto", "gpu", "cpu"], ...] = ("auto", "gpu", "cpu")
_RENDEZVOUS_BACKENDS = ("c10d", "etcd", "etcd-v2")
_MOST = 100_000
"""The largest accepted number of nodes or processes."""
_NODES = ("PET_NNODES", "NNODES")
_RANKS = ("PET_NODE_RANK", "NODE_RANK", "RANK")
_PROCESSES = ("PET_NPROC_PER_NODE", "NPROC_PER_NODE")
_ADDRESSES = ("PET_MASTER_ADDR", "MASTER_ADDR")
_PORTS = ("PET_MASTER_PORT", "MASTER_PORT")
_INDEX = "JOB_COMPLETION_INDEX"
_NODE_NUMBERS = ("PET_NODE_RANK", "NODE_RANK", _INDEX, "RANK")
VARIABLES = (
    *(*_NODES, *_RANKS, *_PROCESSES, *_ADDRESSES, *_PORTS),
    *("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
)
"""The variables that describe a node or a worker. A launcher removes them from its workers' environment."""


@dataclass(frozen=True)
class Worker:
    """One process of several, started by a launcher."""

    rank: int
    size: int
    local_rank: int


@dataclass(frozen=True)
class NodeLauncher:
    """One machine of a run. This process starts its workers."""

    nodes: int
    rank: int | None
    """The number of this node; None when the rendezvous or the agent assigns it."""
    processes: Processes
    address: str | None = None
    """The first node's host, where all nodes meet; None with a rendezvous endpoint, or for one node."""
    port: int = DEFAULT_PORT
    rendezvous: tuple[str, ...] = ()
    """torchrun's options for a rendezvous that numbers the nodes itself."""
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
        where = f"{self.address}:{self.port}" if self.address else "their operator's rendezvous"
        return f"{self.nodes} nodes of {workers}{which}; they meet at {where}"


def place_in_run(
    environment: Mapping[str, str], processes: int | None = None, *, has_agent: bool = False
) -> Worker | NodeLauncher | None:
    """Return what this process is; None when it is the only process of the run.

    `processes` is the number per node that the command line requests, `has_agent` whether the program AGENT
    is installed. Raises ConfigError for variables that contradict each other or the command line, and when
    a variable that several nodes need is missing.
    """
    if _variables_set(environment, ("LOCAL_RANK",)):
        return _worker(environment, processes)
    nodes, world = _nodes(environment), _number(environment, "WORLD_SIZE", least=1)
    rank = _common_number(environment, _RANKS)
    per_node = _processes(environment, processes)
    if nodes is None and world is None and rank is None:
        _require_no_index(environment)
        return None if per_node is None else NodeLauncher(1, 0, per_node)
    if nodes is None and world is None:
        raise _refusal(
            f"{_assignment(environment, _RANKS)} is the number of this node, but the number of nodes is not "
            "set. Set PET_NNODES or WORLD_SIZE to it"
        )
    count = nodes if nodes is not None else world
    assert count is not None
    _require_world(environment, nodes=count, world=world, per_node=per_node)
    per_node = 1 if per_node is None else per_node
    if has_agent and _is_hyperpod(environment):
        options = _options(environment, {"AGENT_HOST": "server-host", "AGENT_PORT": "server-port"})
        return NodeLauncher(count, None, per_node, agent=(AGENT, *options))
    return _node(environment, nodes=count, rank=rank, per_node=per_node)


def is_first_node(environment: Mapping[str, str]) -> bool:
    """Return whether this pod is the first node, or the only one."""
    return not node_number(environment)


def node_number(environment: Mapping[str, str]) -> int | None:
    """Return the number of this node; None if nothing states it.

    If an operator sets none, it is the end of the pod's name in TRAINYARD_POD: `-0` for the first node.
    """
    for name in _variables_set(environment, _NODE_NUMBERS):
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
    if node.rendezvous:
        return [f"--nnodes={node.nodes}", count, *node.rendezvous]
    return [
        *(f"--nnodes={node.nodes}", count, f"--node-rank={node.rank}"),
        *(f"--master-addr={node.address}", f"--master-port={node.port}"),
    ]


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


def _worker(environment: Mapping[str, str], processes: int | None) -> Worker:
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE", least=1)
    local = _number(environment, "LOCAL_RANK")
    here = _number(environment, "LOCAL_WORLD_SIZE", least=1)
    if rank is None or size is None or local is None:
        raise _refusal(
            "LOCAL_RANK is set, as for a worker of torchrun, but RANK or WORLD_SIZE is not. Start "
            "workers with --nproc-per-node, or unset LOCAL_RANK"
        )
    if rank >= size:
        raise _refusal(f"RANK={rank} is not below WORLD_SIZE={size}: ranks are 0 to {size - 1}")
    if here is not None and (local >= here or here > size):
        raise _refusal(
            f"LOCAL_RANK={local}, LOCAL_WORLD_SIZE={here} and WORLD_SIZE={size} contradict each other: "
            "each must be below or equal to the next, and LOCAL_RANK below LOCAL_WORLD_SIZE"
        )
    if size > 1 and not _variables_set(environment, ("MASTER_ADDR",)):
        raise _refusal(f"WORLD_SIZE={size}, but MASTER_ADDR is not set. Set it to the host of rank 0")
    if processes is not None and here is not None and processes != here:
        raise _refusal(
            f"--nproc-per-node {processes} contradicts LOCAL_WORLD_SIZE={here}: another launcher has already "
            f"started {here} processes here. Omit the option, or do not use that launcher"
        )
    return Worker(rank, size, local)


def _node(
    environment: Mapping[str, str], *, nodes: int, rank: int | None, per_node: Processes
) -> NodeLauncher:
    if nodes == 1:
        if rank:
            raise _refusal(f"{_assignment(environment, _RANKS)}, but the only node has the number 0")
        if _number(environment, _INDEX):
            raise _refusal(
                f"{_INDEX}={environment[_INDEX]} is a further pod of an Indexed Job, but there is one node: "
                "each pod would train alone. Set PET_NNODES to the number of pods"
            )
        return NodeLauncher(1, 0, per_node)
    endpoint, address = environment.get("PET_RDZV_ENDPOINT"), _common_value(environment, _ADDRESSES)
    backend = environment.get("PET_RDZV_BACKEND") or "c10d"
    if endpoint and backend != "static":
        return NodeLauncher(
            nodes, None, per_node, rendezvous=_rendezvous(environment, endpoint, backend, address)
        )
    port = _port(environment)
    if endpoint and not address:
        address, port = _host_and_port(endpoint, port)
    if not address:
        raise _refusal(
            f"There are {nodes} nodes, but no rendezvous address. Set PET_MASTER_ADDR to the host of the "
            f"first node on all nodes. HyperPod's training operator needs {AGENT} in the image instead "
            "(pip install hyperpod-elastic-agent)"
        )
    if rank is None:
        rank = _number(environment, _INDEX)
    if rank is None:
        raise _refusal(
            f"{nodes} nodes meet at {address}, but the number of this node is not set. Set PET_NODE_RANK to "
            f"it, from 0 to {nodes - 1}; a pod of an Indexed Job has it in {_INDEX}"
        )
    if rank >= nodes:
        raise _refusal(
            f"{_assignment(environment, (*_RANKS, _INDEX))}: the {nodes} nodes are numbered 0 to {nodes - 1}"
        )
    return NodeLauncher(nodes, rank, per_node, address, port)


def _rendezvous(
    environment: Mapping[str, str], endpoint: str, backend: str, address: str | None
) -> tuple[str, ...]:
    if backend not in _RENDEZVOUS_BACKENDS:
        raise _refusal(f"PET_RDZV_BACKEND={backend}: use one of {', '.join(_RENDEZVOUS_BACKENDS)}, static")
    host, _ = _host_and_port(endpoint, DEFAULT_PORT)
    if address and address != host:
        raise _refusal(
            f"PET_RDZV_ENDPOINT={endpoint} and {_assignment(environment, _ADDRESSES)} are two rendezvous "
            "addresses. Unset one of them"
        )
    optional = _options(environment, {"PET_RDZV_ID": "rdzv-id", "PET_RDZV_CONF": "rdzv-conf"})
    return (f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", *optional)


def _options(environment: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Return the options for those variables that are set; `names` has the option of each."""
    return [f"--{option}={environment[name]}" for name, option in names.items() if environment.get(name)]


def _is_hyperpod(environment: Mapping[str, str]) -> bool:
    """Return whether only the numbers are set, as in a pod of HyperPod's training operator.

    Its agent receives the number of the node and the address over HTTP.
    """
    others = (*_RANKS, *_ADDRESSES, "WORLD_SIZE", "PET_NNODES", "PET_RDZV_ENDPOINT", _INDEX)
    numbers = _variables_set(environment, ("NNODES", "NPROC_PER_NODE"))
    return len(numbers) == 2 and not _variables_set(environment, others)


def _nodes(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes from torchrun's form, `N` or `MIN:MAX`. A range is refused."""
    value = _common_value(environment, _NODES)
    if value is None:
        return None
    name = _assignment(environment, _NODES)
    least, _, most = value.partition(":")
    if most and most != least:
        raise _refusal(
            f"{name}: a run keeps its number of nodes, because its global batch (batch_size × "
            "gradient_accumulation_steps × processes) decides the result. Request one number (elasticPolicy: "
            "minReplicas = maxReplicas)"
        )
    return _parse_number(name, least, least=1)


def _processes(environment: Mapping[str, str], requested: int | None) -> Processes | None:
    """Return the processes per node, None if not set. The command line may replace `auto`, not a number."""
    value = _common_value(environment, _PROCESSES)
    if value is None:
        return requested
    name = _assignment(environment, _PROCESSES)
    for word in _BY_MACHINE:
        if value == word:
            return word if requested is None else requested
    found = _parse_number(name, value, least=1)
    if requested is not None and requested != found:
        raise _refusal(
            f"--nproc-per-node {requested} contradicts {name}, which the job was created with. Omit the "
            "option, or change the job (nprocPerNode, numProcPerNode)"
        )
    return found


def _require_world(
    environment: Mapping[str, str], *, nodes: int, world: int | None, per_node: Processes | None
) -> None:
    """Refuse a WORLD_SIZE that counts neither the nodes nor all processes."""
    if world is None or world == nodes:
        return
    if isinstance(per_node, int):
        if world == nodes * per_node:
            return
        raise _refusal(
            f"WORLD_SIZE={world} counts neither the {nodes} nodes nor the {nodes * per_node} processes "
            f"({nodes} × {per_node} per node)"
        )
    raise _refusal(
        f"WORLD_SIZE={world} contradicts {_assignment(environment, _NODES)}, unless a node has several "
        "processes. Set PET_NPROC_PER_NODE or --nproc-per-node to their number"
    )


def _require_no_index(environment: Mapping[str, str]) -> None:
    """Refuse a pod of an Indexed Job that knows the rendezvous address but not the number of pods."""
    if _variables_set(environment, (_INDEX,)) and (place := _common_value(environment, _ADDRESSES)):
        raise _refusal(
            f"This pod of an Indexed Job ({_INDEX}={environment[_INDEX]}) meets others at {place}, but their "
            "number is not set: each would train alone. Set PET_NNODES to the number of pods"
        )


def _port(environment: Mapping[str, str]) -> int:
    value = _common_value(environment, _PORTS)
    return DEFAULT_PORT if value is None else _parse_port(_assignment(environment, _PORTS), value)


def _host_and_port(endpoint: str, default: int) -> tuple[str, int]:
    """Return host and port of `PET_RDZV_ENDPOINT`. The port and brackets around IPv6 are optional."""
    found = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::(.*))?", endpoint)
    if found is None:
        raise _refusal(f"PET_RDZV_ENDPOINT={endpoint}: expected HOST:PORT")
    host, port = found[1].strip("[]"), found[2]
    return host, default if port is None else _parse_port(f"PET_RDZV_ENDPOINT={endpoint}", port)


def _parse_port(name: str, value: str) -> int:
    port = _parse_number(name, value, least=1)
    if port > 65535:
        raise _refusal(f"{name}: {port} is not a port (1 to 65535)")
    return port


def _common_number(environment: Mapping[str, str], names: Sequence[str]) -> int | None:
    value = _common_value(environment, names)
    return None if value is None else _parse_number(_assignment(environment, names), value, least=0)


def _common_value(environment: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the common value of those of `names` that are set. Raises ConfigError when they differ."""
    given = _variables_set(environment, names)
    if len(set(given.values())) > 1:
        both = " and ".join(f"{name}={value}" for name, value in given.items())
        raise _refusal(f"{both} contradict each other. Unset the wrong one")
    return next(iter(given.values()), None)


def _variables_set(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return the variables of `names` that are set; an empty one counts as unset."""
    return {name: environment[name].strip() for name in names if environment.get(name, "").strip()}


def _assignment(environment: Mapping[str, str], names: Sequence[str]) -> str:
    return next(f"{name}={value}" for name, value in _variables_set(environment, names).items())


def _number(environment: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    given = _variables_set(environment, (name,))
    return _parse_number(f"{name}={given[name]}", given[name], least=least) if given else None


def _parse_number(name: str, value: str, *, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or not least <= int(value) <= _MOST:
        raise _refusal(f"{name}: expected a whole number from {least} to {_MOST:,}")
    return int(value)


def _refusal(problem: str) -> ConfigError:
    return ConfigError(f"{problem}. Nothing was started.")
