"""Judge from NCCL's logs which network joined the machines of a job. Pure: lines in, a verdict out.

    lines of processes ──NetworkLog.read──> NetworkFacts ──merge_facts──> of all ──judge──> NetworkVerdict

Only the channels that NCCL opened decide. `Using network …`, plugins, providers and devices are named in logs
of jobs that use another network or none, so they explain a verdict and never make one. A rank counts only if
its own log shows its channels, because the ranks whose logs are missing may use another network.

Forms: NCCL 2.4 to 2.31, aws-ofi-nccl before 1.4 to 1.21 (NCCL `src/transport/net.cc`, `src/init.cc`;
aws-ofi-nccl `src/nccl_ofi_net.cpp`). Lines may be coloured, prefixed by a collector, interleaved or cut.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from typing import Any, BinaryIO

from pydantic.dataclasses import dataclass as record_dataclass

from trainyard.config.yaml_reader import parse_yaml
from trainyard.run.record_models import OF_A_FILE, Count, Text, Truth

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What a process writes before each message: its host, process, thread and device, for a warning the source.
_WRITER = re.compile(r"([\w.-]+):(\d+):\d+ \[(-?\d+)\](?: \S+:\d+)?$")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) [\d/]+ ?: \d+(?:\[\w*\])? -> \d+(?:\[\w*\])? (?:\[(?:send|receive)\] )?via (?P<by>.*)"
)
_NETWORK = re.compile(r"NET/(?P<name>[A-Za-z][^/]*)/(?P<device>\d+)(?:\(\d+\))?(?P<end>.*)")
_RANK = re.compile(r"\brank (?P<rank>\d+) n[rR]anks (?P<ranks>\d+)\b(?:.* commId (?P<id>0x\w+))?")
_NODES = re.compile(r"\bnNodes (?P<nodes>\d+)\b")
_CONNECTED = re.compile(r"Connected (?:all (?:rings|trees)|NVLS tree)")
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<name>[\w;-]+)(?:.*\(found (?P<nics>\d+) nics\))?"
)
# The plugin of EFA, or its tuner, was loaded; that says that EFA was expected, and not that it is used.
_PLUGIN = re.compile(
    r"NET/OFI |(?:NET|TUNER)/Plugin ?: (?!Could not|Failed|No |Plugin name).*(?:[_-]ofi\b|ofi_|libfabric)",
    re.I,
)
_WISH = re.compile(r"NCCL_(?P<name>NET|NET_PLUGIN|IB_DISABLE) set by environment to (?P<value>[^.\n]*)")
_EFA = ("aws libfabric", "libfabric", "ofi")
_WITHIN = ("P2P", "SHM", "direct")

_BY_VARIABLE = (
    "NCCL_NET=Socket or NCCL_NET_PLUGIN=none in the environment forbids EFA, which compute.network requests",
    "remove that variable, or set compute.network=tcp",
)
_CAUSE_WORDS = ("RC: -", "NET/", "FI_EFA", "Unreachable", "receiver", "network", "NET plugin", "libibverbs")


@functools.cache
def _causes() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    """Return the rows of network_causes.yaml with their patterns, in its order."""
    file = resources.files(__package__) / "network_causes.yaml"
    rows: list[dict[str, str]] = parse_yaml(file.read_bytes(), str(file))["causes"]
    return tuple((re.compile(row["match"]), row) for row in rows)


def _by_cause(lines: Iterable[str]) -> dict[int, str]:
    """Return the first line that shows each cause, by the place of the cause in the table."""
    found: dict[int, str] = {}
    for line in lines:
        for number, (pattern, _) in enumerate(_causes()):
            if number not in found and pattern.search(line):
                found[number] = line
    return found


_NO_CHANNEL = "no channel between machines is in the logs"
_DIRECT_FIX = "use EFA installer 1.29.1 or newer in the image, and leave the variables FI_EFA_* unset"
_NO_CAUSE = "its log does not say why"
_NO_CAUSE_FIX = "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET and read the NET/ lines"


_KEYS = (b"NCCL", b"FI_EFA", b"RC: -")


def lines_of_network(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a log that may concern the network, without decoding the others."""
    for line in file:
        if any(key in line for key in _KEYS):
            yield line.decode(errors="replace")


def _writer_of(head: str) -> tuple[str, ...] | None:
    """Return host, process and device of the message that follows `head`; None if that is no message."""
    words = head.rsplit(" ", 3)  # the longest form: other text, the process, the device, a line of the source
    found = _WRITER.search(" ".join(words[-3:]))
    return None if found is None else found.groups()


class Network(StrEnum):
    """The verdicts of the design."""

    EFA_GPUDIRECT = "efa-gpudirect"
    """Every channel between machines is EFA's and reads and writes the memory of the GPUs."""
    EFA_NO_GPUDIRECT = "efa-no-gpudirect"
    """Every channel is EFA's, and at least one copies through the memory of the host."""
    EFA_UNDETERMINED = "efa-undetermined"
    """EFA is in use, but the log of a rank, or the end of a line, is missing."""
    TCP_FALLBACK = "tcp-fallback"
    """Sockets, although EFA or InfiniBand was present or expected."""
    TCP = "tcp"
    """Sockets; nothing else was expected, or TCP was requested."""
    INFINIBAND = "infiniband"
    SINGLE_NODE = "single-node"
    """All processes are on one machine."""
    UNKNOWN = "unknown"
    """The logs show no channel between machines."""


@dataclass(frozen=True)
class NetworkVerdict:
    """A verdict with its evidence."""

    verdict: Network
    evidence: tuple[str, ...]
    """Counts and the lines themselves, the deciding one first."""
    cause: str = ""
    """Why EFA was not used; empty where it was, or where TCP was requested."""
    fix: str = ""
    ranks: tuple[int, int | None] = (0, None)
    """Ranks whose logs show their channels, and the size of the world; None if no log states it."""
    nics: int | None = None
    """The fewest network interfaces that a process found; None if no log states it."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        seen, world = self.ranks
        answer: dict[str, Any] = {"verdict": self.verdict.value, "evidence": list(self.evidence)}
        answer |= {"cause": self.cause, "fix": self.fix} if self.cause else {}
        return answer | {"ranks_seen": seen, "world_size": world, "nics": self.nics}


@record_dataclass(frozen=True, config=OF_A_FILE)
class Expectation:
    """The facts about a job and its machines that decide what its logs should show."""

    requested: Text = "auto"
    """The network that the configuration requests: auto, efa or tcp."""
    efa: Count | None = None
    """EFA interfaces that each machine gives the job; None if not known."""
    rdma: Truth | None = None
    """Whether EFA reaches the memory of the GPUs directly on this type; None if not known."""
    instance_type: Text = ""
    """The type of the machines, if it is in the catalogue."""
    infiniband: Truth = False
    """Whether the machines have InfiniBand that is up."""
    nodes: Count | None = None
    """Machines of the job; None if not known."""
    processes: Count | None = None
    """Processes of the job whose channels must be in the logs; None if not known."""


@record_dataclass(config=OF_A_FILE)
class ProcessFacts:
    """The facts in the log of one process, which has one GPU, recorded as JSON."""

    host: Text
    channels: dict[str, Count] = field(default_factory=dict)
    """Channels to other machines by network: `efa+` and `efa-` are EFA with and without GPUDirect;
    `efa?` if the end of the line, which shows that, cannot be read."""
    within: Count = 0
    """Channels to processes of the same machine."""
    is_connected: Truth = False
    """Whether the log reaches the line that all channels of a communicator are open."""
    ranks: dict[str, Count] = field(default_factory=dict)
    """Its rank in each communicator that it joined, by `ID/SIZE`; old logs have no id."""
    nodes: Count = 0
    """Machines of its largest communicator; 0 if the log does not say."""

    @property
    def shows_channels(self) -> bool:
        """Return whether its channels are certain to be all channels of a communicator.

        A rank inside a ring may have channels to its own machine only; it counts once all of them are open.
        """
        return bool(self.channels) or bool(self.within and self.is_connected)

    @property
    def is_apart(self) -> bool:
        """Return whether it shows channels, and its log states that all of them are within its machine."""
        return self.shows_channels and not self.channels and self.nodes == 1


@record_dataclass(frozen=True, config=OF_A_FILE)
class NetworkFacts:
    """Facts in the logs of some processes of a job, recorded as JSON: the fields are plain."""

    processes: tuple[ProcessFacts, ...] = ()
    """Processes that wrote a line at the level INFO."""
    nics: Count | None = None
    """The fewest network interfaces that a process found; None if no log states it."""
    samples: Mapping[str, str] = field(default_factory=dict)
    """A line of a channel of each network."""
    providers: tuple[str, ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
    """What the environment requested from NCCL: NET, NET_PLUGIN, IB_DISABLE."""
    causes: tuple[str, ...] = ()
    """The first line of each known cause."""
    plugin: Truth = False
    """Whether the plugin of EFA, or its tuner, was loaded."""

    def judge(self, expected: Expectation | None = None) -> NetworkVerdict:
        """Return the verdict on these facts."""
        expected = expected or Expectation()
        channels = Counter[str]()
        for each in self.processes:
            channels.update(each.channels)
        sockets = channels["socket"]
        efa = channels["efa+"] + channels["efa-"] + channels["efa?"]
        infiniband = sum(count for name, count in channels.items() if name.startswith(("ib", "ucx")))
        others = channels.total() - sockets - efa - infiniband
        lines = [f"{count:,} channels: {self.samples.get(name)}" for name, count in channels.most_common()]
        if sockets:
            return self._judge_sockets(efa + infiniband, expected, lines)
        if not channels:
            return self._judge_nothing(expected)
        if others or (efa and infiniband) or (infiniband and expected.efa):
            return self._verdict(Network.UNKNOWN, *lines)
        missing = self._missing(expected)
        if infiniband:
            return self._verdict(Network.UNKNOWN if missing else Network.INFINIBAND, *missing, *lines)
        if foreign := [name for name in self.providers if "efa" not in name.lower().split(";")]:
            reason = f"the plugin's provider is {foreign[0]}, not efa"
            return self._verdict(Network.UNKNOWN, reason, *lines)
        few = []
        if self.nics is not None and self.nics < (expected.efa or 0):
            few = [f"{self.nics} of {expected.efa} EFA interfaces were found by a process"]
        if missing or (channels["efa?"] and not channels["efa-"]):
            unread = [f"{channels['efa?']:,} channels have no readable end"] if channels["efa?"] else []
            return self._verdict(Network.EFA_UNDETERMINED, *missing, *unread, *lines, *few)
        if channels["efa-"]:
            why = self._cause(expected, direct=True) if expected.rdma else None
            lines.sort(key=lambda line: "/GDRDMA" in line)
            return self._verdict(Network.EFA_NO_GPUDIRECT, *lines, *few, why=why)
        return self._verdict(Network.EFA_GPUDIRECT, *lines, *few)

    def _verdict(
        self, verdict: Network, *evidence: str, why: tuple[str, str] | None = None
    ) -> NetworkVerdict:
        world = max(map(_size_of, self._communicators()), default=None)
        # A size may be that of several communicators: each has its own ranks.
        seen = {
            rank
            for each in self.processes
            for name, rank in each.ranks.items()
            if each.shows_channels and _size_of(name) == world
        }
        cause, fix = why or ("", "")
        return NetworkVerdict(verdict, evidence, cause, fix, ranks=(len(seen), world), nics=self.nics)

    def _judge_sockets(self, better: int, expected: Expectation, lines: list[str]) -> NetworkVerdict:
        wishes, lines = self.wishes, sorted(lines, key=lambda line: "NET/Socket" not in line)
        by_variable = (
            wishes.get("NET") == "socket"
            or wishes.get("NET_PLUGIN") == "none"
            or (not expected.efa and wishes.get("IB_DISABLE", "0") != "0")
        )
        has_better = bool(expected.efa) or expected.infiniband or self.plugin
        if expected.requested == "efa":
            why = _BY_VARIABLE if by_variable else self._cause(expected)
            return self._verdict(Network.TCP_FALLBACK, *lines, why=why)
        is_requested = by_variable or expected.requested == "tcp"
        if better or (has_better and not is_requested):
            return self._verdict(Network.TCP_FALLBACK, *lines, why=self._cause(expected))
        return self._verdict(Network.TCP, *lines)

    def _judge_nothing(self, expected: Expectation) -> NetworkVerdict:
        if not self.processes:
            reason = "no line of NCCL at the level INFO: set NCCL_DEBUG=INFO"
            return self._verdict(Network.UNKNOWN, reason)
        joined = max(map(_size_of, self._communicators()), default=0)
        nodes = max(each.nodes for each in self.processes)
        machines = max(expected.nodes or 1, len({each.host for each in self.processes}))
        if machines > 1:
            is_apart = nodes == 1 or joined == 1
            reason = f"{machines} machines, and none saw another" if is_apart else _NO_CHANNEL
            return self._verdict(self._without_channels(), reason)
        is_alone = nodes == 1 or joined == 1 or (expected.nodes == 1 and joined)
        is_within = nodes == 0 and joined and any(each.within for each in self.processes)
        connected = sum(each.is_connected for each in self.processes)
        if is_alone or (is_within and connected >= joined):
            reason = f"{joined} processes on one machine: no network was used"
            return self._verdict(Network.SINGLE_NODE, reason)
        return self._verdict(self._without_channels(), _NO_CHANNEL)

    def _without_channels(self) -> Network:
        """Return what the plugin's lines allow without a channel: never more than that EFA may be in use."""
        efa = any("efa" in name.lower().split(";") for name in self.providers)
        return Network.EFA_UNDETERMINED if efa else Network.UNKNOWN

    def _communicators(self) -> dict[str, list[ProcessFacts]]:
        """Return the processes that joined each communicator."""
        found: dict[str, list[ProcessFacts]] = {}
        for each in self.processes:
            for name in each.ranks:
                found.setdefault(name, []).append(each)
        return found

    def _missing(self, expected: Expectation) -> tuple[str, ...]:
        """Return why the logs do not cover the job; nothing if they do."""
        communicators = self._communicators()
        if not communicators:
            return ("no log states how many ranks there are",)
        for name, joined in sorted(communicators.items(), key=lambda one: (-_size_of(one[0]), one[0])):
            size, shown = _size_of(name), {each.ranks[name] for each in joined if each.shows_channels}
            is_complete = len({each.ranks[name] for each in joined}) == size
            if size == 1 or (is_complete and len({each.host for each in joined}) == 1):
                continue  # it is known that all of its ranks are on one host
            if absent := sorted(set(range(size)) - shown):
                some = ", ".join(map(str, absent[:8])) + (" …" if len(absent) > 8 else "")
                return (f"{len(absent)} of {size} ranks show no channels: {some}",)
        wanted = max(expected.nodes or 0, *(each.nodes for each in self.processes))
        if (shown_hosts := len({each.host for each in self.processes if each.channels})) < wanted:
            return (f"{shown_hosts} of {wanted} machines show channels to others",)
        training = sum(each.shows_channels and not each.is_apart for each in self.processes)
        if training < (expected.processes or 0):
            return (f"{training} of {expected.processes} processes show channels",)
        return ()

    def _cause(self, expected: Expectation, *, direct: bool = False) -> tuple[str, str]:
        """Return why EFA, or with `direct` its GPUDirect, is not used, and the fix."""
        network = "infiniband" if expected.infiniband and not expected.efa else "efa"
        found = (_causes()[number][1] for number in sorted(_by_cause(self.causes)))
        row = next((row for row in found if row["of"] == network), None)
        if row is not None:
            return row["cause"], row["fix"]
        if direct:
            return "the channels copy through the memory of the host", _DIRECT_FIX
        return _NO_CAUSE, _NO_CAUSE_FIX


class NetworkLog:
    """Collects the facts of the logs of a job. Lines may come in any order and from several files."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, ...], ProcessFacts] = {}
        self._samples: dict[str, str] = {}
        self._causes: dict[int, str] = {}
        self._wishes: dict[str, str] = {}
        self._providers: dict[str, None] = {}
        self._nics: int | None = None
        self._plugin = False

    def read(self, lines: Iterable[str]) -> None:
        """Read lines of a log. The last one may be cut: without its newline it shows no end of a channel."""
        for line in lines:
            self._read_line(_COLOUR.sub("", line) if "\x1b" in line else line)

    def read_file(self, file: BinaryIO) -> None:
        """Read a log. The facts are those of `read` with its lines."""
        self.read(lines_of_network(file))

    def _read_line(self, line: str) -> None:
        first, *records = line.split(" NCCL ")
        for number, record in enumerate(records):
            writer = _writer_of(first)
            first = record
            # A message that another one follows on the same line may have lost its end.
            is_cut = number + 1 < len(records) or not line.endswith("\n")
            if writer is not None and record.startswith(("INFO ", "WARN ")):
                text = record[5:].rstrip("\r\n")
                if (process := self._processes.get(writer)) is None:
                    process = self._processes[writer] = ProcessFacts(writer[0])
                if (channel := _CHANNEL.match(text)) is not None:
                    self._add_channel(process, channel["by"], text, is_cut=is_cut)
                else:
                    self._read_record(process, text)
        # Most lines are one channel, whose NET/ says nothing about a cause.
        is_channel = len(records) == 1 and " via " in line
        if not is_channel and any(word in line for word in _CAUSE_WORDS):
            self._causes = _by_cause([line.strip()]) | self._causes

    def _read_record(self, process: ProcessFacts, text: str) -> None:
        for found in _RANK.finditer(text):
            process.ranks[f"{found['id'] or ''}/{int(found['ranks'])}"] = int(found["rank"])
        if (found_nodes := _NODES.search(text)) is not None:
            process.nodes = max(process.nodes, int(found_nodes["nodes"]))
        process.is_connected |= _CONNECTED.search(text) is not None
        if (provider := _PROVIDER.match(text)) is not None:
            self._providers[provider["name"]] = None
            if provider["nics"] is not None:
                nics = int(provider["nics"])
                self._nics = nics if self._nics is None else min(self._nics, nics)
        self._plugin |= _PLUGIN.match(text) is not None
        if (wish := _WISH.match(text)) is not None:
            self._wishes[wish["name"]] = wish["value"].strip().lower()

    def _add_channel(self, process: ProcessFacts, by: str, text: str, *, is_cut: bool) -> None:
        if (found := _NETWORK.match(by)) is None:
            process.within += by.startswith(_WITHIN)
            return
        name = found["name"].lower()
        if name in _EFA:
            end = found["end"]
            is_unread = is_cut or end.startswith("/")
            name = "efa+" if end.startswith("/GDRDMA") else "efa?" if is_unread else "efa-"
        process.channels[name] = process.channels.get(name, 0) + 1
        self._samples.setdefault(name, text.strip())

    def facts(self) -> NetworkFacts:
        """Return what was read so far."""
        return NetworkFacts(
            tuple(self._processes.values()),
            self._nics,
            self._samples,
            tuple(self._providers),
            self._wishes,
            tuple(self._causes[number] for number in sorted(self._causes)),
            plugin=self._plugin,
        )

    def judge(self, expected: Expectation | None = None) -> NetworkVerdict:
        """Return the verdict on what was read."""
        return self.facts().judge(expected)


def merge_facts(parts: Iterable[NetworkFacts]) -> NetworkFacts:
    """Return the facts of all processes from those of disjoint groups of them."""
    every = list(parts)
    causes = _by_cause(line for part in every for line in part.causes)
    return NetworkFacts(
        processes=tuple(each for part in every for each in part.processes),
        nics=min((part.nics for part in every if part.nics is not None), default=None),
        samples={name: line for part in reversed(every) for name, line in part.samples.items()},
        providers=tuple(dict.fromkeys(name for part in every for name in part.providers)),
        wishes={name: value for part in every for name, value in part.wishes.items()},
        causes=tuple(causes[number] for number in sorted(causes)),
        plugin=any(part.plugin for part in every),
    )


def _size_of(communicator: str) -> int:
    return int(communicator.rpartition("/")[2])
