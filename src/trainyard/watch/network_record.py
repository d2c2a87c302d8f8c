"""Record which network joined the machines of a run, and judge what is on record.

    logs/nccl-*.log ──read──> facts of some processes ──NetworkWatch.event──> events.jsonl, event `network`
    events.jsonl    ──judge_event──> the verdict, for the proof

The event has the facts themselves, so that a proof judges them again. They outlive the logs: a segment that
resumes overwrites these, and without a shared directory each machine has its own.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.errors import DamagedFileError
from trainyard.plan.instances import instance_called
from trainyard.run.directory import RunDirectory
from trainyard.run.launch_environment import NodeLauncher
from trainyard.run.record_models import validate_record
from trainyard.run.records import append_event
from trainyard.run.untrusted_files import open_regular
from trainyard.watch.network_verdict import (
    Expectation,
    Network,
    NetworkFacts,
    NetworkLog,
    NetworkVerdict,
    lines_of_network,
    merge_facts,
)

if TYPE_CHECKING:
    from trainyard.gateways.local_machine import NetworkDevices

EVENT = "network"
LOG = logging.getLogger(__name__)
# Seconds between two reads of the logs of NCCL while the program runs.
_POLL_SECONDS = 5.0
_MOST_WARNINGS = 10
_UNREADABLE = NetworkVerdict(Network.UNKNOWN, ("the event of the network in events.jsonl cannot be read",))
_LOG_FIX = "leave NCCL_DEBUG, NCCL_DEBUG_FILE and NCCL_DEBUG_SUBSYS unset, so that each process keeps its log"


@dataclass(frozen=True)
class NetworkWatch:
    """Reads and judges the logs of a job for code that may not import this package."""

    expected: Expectation

    def read(self, logs: Iterable[Path]) -> NetworkFacts:
        """Return what the logs of some processes show; one that is missing or unreadable shows nothing."""
        log = NetworkLog()
        for path in logs:
            with suppress(OSError, DamagedFileError), open_regular(path) as file:
                log.read_file(file)
        return log.facts()

    def event(self, parts: Sequence[NetworkFacts]) -> dict[str, Any]:
        """Return the fields of the event `network` for the facts of all processes of a job."""
        facts, expected = merge_facts(parts), self.expected
        return {"facts": asdict(facts), "expected": asdict(expected), **facts.judge(expected).to_json()}

    def fallback(self, event: Mapping[str, Any]) -> str | None:
        """Return what happened in words if TCP is used where a faster network was expected; else None."""
        if event["verdict"] != Network.TCP_FALLBACK:
            return None
        better = "InfiniBand" if self.expected.infiniband and not self.expected.efa else "EFA"
        return f"NCCL opened sockets between machines that have {better}: {event['cause']}"

    def trouble(self, event: Mapping[str, Any]) -> str | None:
        """Return in words what is slower than the machines allow: a fallback, or EFA without GPUDirect."""
        if "cause" not in event:
            return None
        return self.fallback(event) or f"EFA without GPUDirect, which the machines have: {event['cause']}"


class NodeNetwork:
    """Checks, while a program trains on several machines, which network joins them.

    The first node reads the logs of all nodes, which share the run directory, and records what they show. The
    others read their own logs, and end their part of the program at a fallback to TCP.
    """

    def __init__(
        self, directory: RunDirectory, node: NodeLauncher, expected: Expectation, *, on_fallback: str
    ) -> None:
        """`on_fallback` is that of section compute: `stop`, or `warn`."""
        self._directory, self._node, self._ends = directory, node, on_fallback == "stop"
        self._own = f"nccl-node-{node.log_name}-*.log"
        self._read = self._own if node.rank else "nccl-node-*.log"
        self._watch, self._last = NetworkWatch(expected), 0.0
        self._seen: dict[Path, int] = {}
        self._reported: dict[Path, int] = {}
        self.fallback: tuple[str, str] | None = None
        """Why the program must end because it uses TCP, and the fix."""

    def remove_earlier_logs(self) -> None:
        """Remove this node's logs of earlier attempts, and those of nodes that the run no longer has."""
        for log in self._directory.logs.glob("nccl-node-*.log"):
            number = log.name.split("-")[2]
            is_of_no_node = number.isdecimal() and int(number) >= self._node.nodes
            if fnmatch(log.name, self._own) or (is_of_no_node and not self._node.rank):
                log.unlink(missing_ok=True)

    def show_warnings(self) -> None:
        """Log the last warnings from NCCL's own log on this node, after the program failed."""
        for line in nccl_warnings(self._directory.logs.glob(self._own))[-_MOST_WARNINGS:]:
            LOG.error("%s", line)

    def poll(self, *, is_over: bool = False) -> dict[str, Any] | None:
        """Return a new event `network`: for a fallback at once, else when the logs have stopped growing."""
        sizes: dict[Path, int] = {}
        for path in self._directory.logs.glob(self._read):
            with suppress(OSError):
                sizes[path] = path.stat().st_size
        is_settled, self._seen = is_over or sizes == self._seen, sizes
        if sizes == self._reported:
            return None
        event = self._watch.event([self._watch.read(sizes)])
        if not event["facts"]["processes"] or not (is_settled or self._watch.fallback(event)):
            return None
        self._reported = sizes
        return event

    def check(self, step: int, *, now: float, is_over: bool = False) -> str | None:
        """Record which network joins the machines; return a reason if the program must stop."""
        if self.fallback is not None or not (is_over or now - self._last >= _POLL_SECONDS):
            return None
        self._last = now
        if (event := self.poll(is_over=is_over)) is None:
            return None
        watch, is_first = self._watch, not self._node.rank
        if is_first:
            append_event(self._directory.events_file, "network", step=step, **event)
        if (reason := watch.trouble(event)) is None:
            shown, world = event["ranks_seen"], event["world_size"]
            LOG.info("network: %s, channels of %s of %s ranks", event["verdict"], shown, world)
            return None
        ends = self._ends and watch.fallback(event) is not None
        LOG.log(logging.ERROR if ends else logging.WARNING, "%s; fix: %s", reason, event["fix"])
        if is_first:
            append_event(self._directory.events_file, "network_degraded", step=step, reason=reason)
        if not ends:
            return None
        self.fallback = (reason, event["fix"])
        return "tcp-fallback"


def expectation_here(
    requested: str, devices: "NetworkDevices", environment: Mapping[str, str], **known: Any
) -> Expectation:
    """Return what the logs of a job on machines like this one should show.

    A pod has the type of its node and the EFA interfaces that it was given in its environment. Elsewhere the
    machine states its type. RDMA types count as having their EFA also where no device is seen, because users
    pay for it.
    """
    instance = instance_called(environment.get("TRAINYARD_INSTANCE_TYPE") or devices.machine_type)
    given = environment.get("TRAINYARD_EFA_INTERFACES", "")
    efa = int(given) if given.isdecimal() else devices.efa or None
    if efa is None and instance is not None:
        efa = instance.efa if instance.rdma else 0
    return Expectation(
        requested=requested,
        efa=efa,
        rdma=None if instance is None else instance.rdma,
        instance_type="" if instance is None else instance.name,
        infiniband=devices.has_infiniband,
        **known,
    )


def nccl_warnings(logs: Iterable[Path]) -> list[str]:
    """Return the warnings of NCCL in logs, each once by its words, in order."""
    found: dict[str, str] = {}
    for path in logs:
        with suppress(OSError, DamagedFileError), open_regular(path) as file:
            for line in lines_of_network(file):
                if " NCCL WARN " in line:
                    found.setdefault(line.partition(" NCCL WARN ")[2].strip(), line.strip())
    return list(found.values())


def judge_event(event: Mapping[str, Any], **known: Any) -> tuple[NetworkVerdict, tuple[str, str] | None]:
    """Return the verdict on the facts in an event `network`, and its shortfall.

    `known` has fields of the expectation that another record states; they count before those of the event.
    """
    try:
        facts = validate_record(NetworkFacts, event.get("facts"))
        expected = replace(validate_record(Expectation, event.get("expected")), **known)
        found = facts.judge(expected)
    except ValueError:
        return _UNREADABLE, (_UNREADABLE.evidence[0], _LOG_FIX)
    return found, network_shortfall(found, expected)


def network_shortfall(found: NetworkVerdict, expected: Expectation) -> tuple[str, str] | None:
    """Return why several machines were not joined by the requested network, and the fix; else None.

    EFA suffices with every channel shown, and with GPUDirect where the type of the machines has it;
    InfiniBand if EFA was not requested; TCP only if the configuration requests it.
    """
    if found.verdict is Network.EFA_GPUDIRECT or (
        found.verdict is Network.TCP and expected.requested == "tcp"
    ):
        return None
    if found.verdict is Network.INFINIBAND and expected.requested != "efa":
        return None
    if found.verdict is Network.EFA_NO_GPUDIRECT and expected.rdma is not True:
        if expected.instance_type:
            return None
        cause = "EFA without GPUDirect, on machines of a type that is not on record"
        return (
            cause,
            "set TRAINYARD_INSTANCE_TYPE to the type, which decides whether GPUDirect is missing",
        )
    if found.cause:
        return f"{found.verdict.value}: {found.cause}", found.fix
    if found.verdict is Network.TCP:
        return "tcp: the machines were joined by TCP, which was not requested", "set compute.network=tcp"
    return f"{found.verdict.value}: {found.evidence[0]}", _LOG_FIX
