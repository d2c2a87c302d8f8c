"""Which network joined the machines of a job, by the logs that NCCL wrote. Pure: lines in, a verdict out.

    lines of all processes ──NetworkLog.read──> facts per process ──judge──> NetworkVerdict

Only the channels that NCCL opened decide. `Using network …`, plugins, providers and devices are named in logs
of jobs that use another network or none, so they explain a verdict and never make one. A rank counts only if
its own log shows its channels, because the ranks whose logs are missing may use another network.

Forms: NCCL 2.4 to 2.31, aws-ofi-nccl before 1.4 to 1.21 (NCCL `src/transport/net.cc`, `src/init.cc`;
aws-ofi-nccl `src/nccl_ofi_net.cpp`). Lines may be coloured, prefixed by a collector, interleaved or cut.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO

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
_WISH = re.compile(r"NCCL_(?P<name>NET|NET_PLUGIN) set by environment to (?P<value>[^.\n]*)")
_EFA = ("aws libfabric", "libfabric", "ofi")
_WITHIN = ("P2P", "SHM", "direct")

_CAUSES = (
    (
        r"RC: -12\b",
        "EFA could not lock memory (error -12)",
        "raise the limit of locked memory: ulimit -l unlimited, or capability IPC_LOCK for the pod",
    ),
    (
        r"RC: -22\b",
        "the EFA installer is too old for this NCCL (error -22)",
        "build the image with EFA installer 1.29.1 or newer: NCCL 2.19 and later need it",
    ),
    (
        r"GDR disabled on GDR-supported instance type|FI_EFA_USE_DEVICE_RDMA.*(?:=|to )0\b",
        "FI_EFA_USE_DEVICE_RDMA=0 makes the plugin fail on this instance type",
        "remove FI_EFA_USE_DEVICE_RDMA: RDMA is detected",
    ),
    (
        r"FI_EFA_USE_DEVICE_RDMA=1 was set by user, but",
        "FI_EFA_USE_DEVICE_RDMA=1 is set, and the device cannot read remote memory",
        "remove FI_EFA_USE_DEVICE_RDMA",
    ),
    (
        r"Unreachable remote|Unresponsive receiver.*handshake failed",
        "EFA could not reach the other machine",
        "let the nodes' security group allow all traffic from and to itself, and keep the nodes in one zone",
    ),
    (
        r"NET/OFI No eligible providers were found|NET/OFI Only EFA provider is supported|"
        r"NET/OFI Unable to find a protocol that worked",
        "the plugin found no EFA device",
        "request vpc.amazonaws.com/efa for each pod, on nodes that have EFA interfaces attached",
    ),
    (
        r"NET/OFI aws-ofi-nccl initialization failed|Failed to initialize NET plugin|"
        r"Failed to initialize any NET plugin",
        "the plugin of EFA did not start",
        "read the NET/OFI lines before it; a plugin and an NCCL of one EFA installer release fit each other",
    ),
    (
        r"NET/Plugin ?: (?:dlerror=.* )?No plugin found|NET/Plugin: Using internal network plugin|"
        r"NET/Plugin: Could not find:|Error: network .+ not found",
        "NCCL did not find the plugin of EFA (aws-ofi-nccl)",
        "install aws-ofi-nccl in the image and put its lib folder into LD_LIBRARY_PATH",
    ),
)
"""Pattern, cause and fix, the certain ones first. Healthy logs have some of these lines: none decides."""
_CAUSE_WORDS = ("RC: -", "NET/", "FI_EFA", "Unreachable", "receiver", "network", "NET plugin")
_CHANNEL_OF = " NCCL INFO Channel "
_COMPILED = tuple((re.compile(pattern), cause, fix) for pattern, cause, fix in _CAUSES)
_NO_CHANNEL = "no channel between machines is in the logs"
_DIRECT_FIX = "use EFA installer 1.29.1 or newer in the image, and leave the variables FI_EFA_* unset"
_NO_CAUSE = "its log does not say why"
_NO_CAUSE_FIX = "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET and read the NET/ lines"


_KEYS = (b"NCCL", b"FI_EFA", b"RC: -")
_BLOCK = 8 << 20


def lines_of_network(file: BinaryIO) -> Iterator[str]:
    """Yield the lines of a log that may say something of the network, without decoding the others.

    Only the last line of the file may come without its newline.
    """
    rest = b""
    while block := file.read(_BLOCK):
        block = rest + block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        yield from _chosen_lines(block[:end])
    yield from _chosen_lines(rest)


def _chosen_lines(text: bytes) -> Iterator[str]:
    starts: dict[int, int] = {}
    for key in _KEYS:
        place = text.find(key)
        while place >= 0:
            start = text.rfind(b"\n", 0, place) + 1
            end = text.find(b"\n", place) + 1 or len(text)
            starts[start] = end
            place = text.find(key, end)
    for start in sorted(starts):
        yield text[start : starts[start]].decode(errors="replace")


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
    """Sockets, where EFA or InfiniBand was there or was expected."""
    TCP = "tcp"
    """Sockets, where nothing else was to be expected or TCP was requested."""
    INFINIBAND = "infiniband"
    SINGLE_NODE = "single-node"
    """All processes are on one machine."""
    UNKNOWN = "unknown"
    """The logs show no channel between machines."""


@dataclass(frozen=True)
class NetworkVerdict:
    """A verdict with what shows it."""

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


@dataclass(frozen=True)
class Expectation:
    """The facts about the machines of the job that decide what its logs should show."""

    efa: int | None = None
    """EFA interfaces per machine; None if the instance type is not known."""
    rdma: bool | None = None
    """Whether EFA reaches the memory of the GPUs directly on this type; None if not known."""
    nodes: int | None = None
    """Machines of the job; None if not known."""
    tcp_requested: bool = False
    """Whether the configuration requests TCP."""


@dataclass
class _Process:
    """The facts in the log of one process, which has one GPU."""

    channels: Counter[str] = field(default_factory=Counter)
    """Channels to other machines by network, lower case; `efa+`, `efa-` and `efa?` for EFA with, without and
    with an unreadable end that would say whether it uses GPUDirect."""
    within: int = 0
    """Channels to processes of the same machine."""
    is_connected: bool = False
    """Whether the log reaches the line that all channels of a communicator are open."""
    ranks: dict[tuple[str, int], int] = field(default_factory=dict)
    """Its rank in each communicator that it joined, by the communicator's id (empty in old logs) and size."""
    nodes: int = 0
    """Machines of its largest communicator; 0 if the log does not say."""


class NetworkLog:
    """Collects the facts of the logs of a job. Lines may come in any order and from several files."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, ...], _Process] = {}
        self._usual: dict[tuple[str, ...], int] = {}
        self._usual_of: dict[tuple[str, ...], tuple[tuple[str, ...], str, str]] = {}
        self._samples: dict[str, str] = {}
        self._causes: dict[int, str] = {}
        self._wishes: dict[str, str] = {}
        self._providers: Counter[str] = Counter()
        self._nics: int | None = None

    def read(self, lines: Iterable[str]) -> None:
        """Read lines of a log. The last one may be cut: without its newline it shows no end of a channel."""
        for line in lines:
            self._read_line(_COLOUR.sub("", line) if "\x1b" in line else line)

    def _read_line(self, line: str) -> None:
        # Most lines are channels that differ in their number only: each kind is read once, then counted.
        head, is_channel, text = line.partition(_CHANNEL_OF)
        kind = (*head.split(" ")[-2:], text.partition(" via ")[2]) if is_channel else ()
        if kind in self._usual:
            self._usual[kind] += 1
            return
        first, *records = line.split(" NCCL ")
        is_usual = bool(kind) and len(records) == 1 and line.endswith("\n")
        for number, record in enumerate(records):
            writer = _writer_of(first)
            first = record
            # A message that another one follows on the same line may have lost its end.
            is_cut = number + 1 < len(records) or not line.endswith("\n")
            if writer is not None and record.startswith(("INFO ", "WARN ")):
                text = record[5:].rstrip("\r\n")
                if (process := self._processes.get(writer)) is None:
                    process = self._processes[writer] = _Process()
                if (channel := _CHANNEL.match(text)) is not None:
                    self._add_channel(process, channel["by"], text, is_cut=is_cut)
                    if is_usual:
                        self._usual[kind] = 0
                        self._usual_of[kind] = (writer, channel["by"], text)
                else:
                    self._read_record(process, text)
        if any(word in line for word in _CAUSE_WORDS):
            for number, (pattern, _, _) in enumerate(_COMPILED):
                if number not in self._causes and pattern.search(line):
                    self._causes[number] = line.strip()

    def _count_usual_channels(self) -> None:
        for kind, count in self._usual.items():
            writer, by, text = self._usual_of[kind]
            if count:
                self._add_channel(self._processes[writer], by, text, count=count)
            self._usual[kind] = 0

    def _read_record(self, process: _Process, text: str) -> None:
        for found in _RANK.finditer(text):
            process.ranks[found["id"] or "", int(found["ranks"])] = int(found["rank"])
        if (found_nodes := _NODES.search(text)) is not None:
            process.nodes = max(process.nodes, int(found_nodes["nodes"]))
        process.is_connected |= _CONNECTED.search(text) is not None
        if (provider := _PROVIDER.match(text)) is not None:
            self._providers[provider["name"]] += 1
            if provider["nics"] is not None:
                nics = int(provider["nics"])
                self._nics = nics if self._nics is None else min(self._nics, nics)
        if (wish := _WISH.match(text)) is not None:
            self._wishes[wish["name"]] = wish["value"].strip().lower()

    def _add_channel(
        self, process: _Process, by: str, text: str, *, is_cut: bool = False, count: int = 1
    ) -> None:
        if (found := _NETWORK.match(by)) is None:
            process.within += count if by.startswith(_WITHIN) else 0
            return
        name = found["name"].lower()
        if name in _EFA:
            end = found["end"]
            is_unread = is_cut or end.startswith("/")
            name = "efa+" if end.startswith("/GDRDMA") else "efa?" if is_unread else "efa-"
        process.channels[name] += count
        self._samples.setdefault(name, text.strip())

    def judge(self, expected: Expectation | None = None) -> NetworkVerdict:
        """Return the verdict on what was read."""
        expected = expected or Expectation()
        self._count_usual_channels()
        channels: Counter[str] = Counter()
        for process in self._processes.values():
            channels.update(process.channels)
        sockets = channels["socket"]
        efa = channels["efa+"] + channels["efa-"] + channels["efa?"]
        infiniband = sum(count for name, count in channels.items() if name.startswith(("ib", "ucx")))
        others = channels.total() - sockets - efa - infiniband
        world = self._world()
        shown = (len(self._ranks_shown(world)), world)
        lines = [f"{count:,} channels: {self._samples[name]}" for name, count in channels.most_common()]
        if sockets:
            return self._judge_sockets(efa + infiniband, expected, lines, shown)
        if not channels:
            return self._judge_nothing(expected, shown)
        if others or (efa and infiniband) or (infiniband and expected.efa):
            return NetworkVerdict(Network.UNKNOWN, tuple(lines), ranks=shown, nics=self._nics)
        missing = self._missing(world, expected)
        if infiniband:
            verdict = Network.UNKNOWN if missing else Network.INFINIBAND
            return NetworkVerdict(verdict, (*missing, *lines), ranks=shown, nics=self._nics)
        if foreign := [name for name in self._providers if "efa" not in name.lower().split(";")]:
            reason = f"the plugin's provider is {foreign[0]}, not efa"
            return NetworkVerdict(Network.UNKNOWN, (reason, *lines), ranks=shown, nics=self._nics)
        few = self._few_interfaces(expected)
        if missing or (channels["efa?"] and not channels["efa-"]):
            unread = [f"{channels['efa?']:,} channels have no readable end"] if channels["efa?"] else []
            evidence = (*missing, *unread, *lines, *few)
            return NetworkVerdict(Network.EFA_UNDETERMINED, evidence, ranks=shown, nics=self._nics)
        if channels["efa-"]:
            cause, fix = self._cause(direct=True) if expected.rdma else ("", "")
            evidence = (*sorted(lines, key=lambda line: "/GDRDMA" in line), *few)
            return NetworkVerdict(Network.EFA_NO_GPUDIRECT, evidence, cause, fix, shown, self._nics)
        return NetworkVerdict(Network.EFA_GPUDIRECT, (*lines, *few), ranks=shown, nics=self._nics)

    def _judge_sockets(
        self,
        better: int,
        expected: Expectation,
        lines: list[str],
        shown: tuple[int, int | None],
    ) -> NetworkVerdict:
        requested = (
            expected.tcp_requested
            or self._wishes.get("NET") == "socket"
            or self._wishes.get("NET_PLUGIN") == "none"
        )
        is_fallback = bool(better) or (not requested and (bool(expected.efa) or self._has_plugin()))
        evidence = tuple(sorted(lines, key=lambda line: "NET/Socket" not in line))
        if not is_fallback:
            return NetworkVerdict(Network.TCP, evidence, ranks=shown, nics=self._nics)
        cause, fix = self._cause()
        return NetworkVerdict(Network.TCP_FALLBACK, evidence, cause, fix, shown, self._nics)

    def _judge_nothing(self, expected: Expectation, shown: tuple[int, int | None]) -> NetworkVerdict:
        nodes = max((process.nodes for process in self._processes.values()), default=0)
        if not self._processes:
            reason = "no line of NCCL at the level INFO: set NCCL_DEBUG=INFO"
            return NetworkVerdict(Network.UNKNOWN, (reason,), ranks=shown)
        joined = self._world() or 0
        machines = max(expected.nodes or 1, len(self._hosts()))
        if machines > 1:
            is_apart = nodes == 1 or joined == 1
            reason = f"{machines} machines, and none saw another" if is_apart else _NO_CHANNEL
            return NetworkVerdict(self._without_channels(), (reason,), ranks=shown, nics=self._nics)
        if nodes == 1 or joined == 1 or (expected.nodes == 1 and joined):
            reason = f"{joined} processes on one machine: no network was used"
            return NetworkVerdict(Network.SINGLE_NODE, (reason,), ranks=shown, nics=self._nics)
        within = sum(process.within for process in self._processes.values())
        if nodes == 0 and joined and within and len(self._hosts()) == 1 and self._connected_all(joined):
            reason = f"{joined} processes on one machine: no network was used"
            return NetworkVerdict(Network.SINGLE_NODE, (reason,), ranks=shown, nics=self._nics)
        return NetworkVerdict(self._without_channels(), (_NO_CHANNEL,), ranks=shown, nics=self._nics)

    def _without_channels(self) -> Network:
        """Return what the plugin's lines allow without a channel: never more than that EFA may be in use."""
        efa = any("efa" in name.lower().split(";") for name in self._providers)
        return Network.EFA_UNDETERMINED if efa else Network.UNKNOWN

    def _hosts(self) -> set[str]:
        return {host for host, _, _ in self._processes}

    def _connected_all(self, ranks: int) -> bool:
        return sum(process.is_connected for process in self._processes.values()) >= ranks

    def _world(self) -> int | None:
        """Return the size of the largest communicator; None if no log states one."""
        return max((size for process in self._processes.values() for _, size in process.ranks), default=None)

    def _ranks_shown(self, size: int | None, name: str | None = None) -> set[int]:
        """Return the ranks of communicators of a size whose own logs show their channels.

        A rank inside a ring may have channels to its own machine only; it counts once all of them are open.
        """
        return {
            rank
            for process in self._processes.values()
            if process.channels or (process.within and process.is_connected)
            for (its_name, its_size), rank in process.ranks.items()
            if its_size == size and name in (None, its_name)
        }

    def _missing(self, world: int | None, expected: Expectation) -> tuple[str, ...]:
        """Return why the logs do not cover the job; nothing if they do."""
        if world is None:
            return ("no log states how many ranks there are",)
        joined = {key for process in self._processes.values() for key in process.ranks}
        for name, size in sorted(joined, key=lambda key: (-key[1], key[0])):
            if absent := sorted(set(range(size)) - self._ranks_shown(size, name)):
                some = ", ".join(map(str, absent[:8])) + (" …" if len(absent) > 8 else "")
                return (f"{len(absent)} of {size} ranks show no channels: {some}",)
        hosts = {key[0] for key, process in self._processes.items() if process.channels}
        nodes = max((process.nodes for process in self._processes.values()), default=0)
        wanted = max(nodes, expected.nodes or 0)
        if len(hosts) < wanted:
            return (f"{len(hosts)} of {wanted} machines show channels to others",)
        return ()

    def _few_interfaces(self, expected: Expectation) -> tuple[str, ...]:
        if self._nics is None or not expected.efa or self._nics >= expected.efa:
            return ()
        return (f"{self._nics} of {expected.efa} EFA interfaces were found by a process",)

    def _has_plugin(self) -> bool:
        """Return whether a log shows that EFA's plugin tried."""
        return bool(self._providers) or any("NET/OFI" in line for line in self._causes.values())

    def _cause(self, *, direct: bool = False) -> tuple[str, str]:
        """Return why EFA, or with `direct` its way to the memory of the GPUs, is not used, and the fix."""
        if not self._causes:
            if direct:
                return "the channels copy through the memory of the host", _DIRECT_FIX
            return _NO_CAUSE, _NO_CAUSE_FIX
        _, cause, fix = _COMPILED[min(self._causes)]
        return cause, fix
