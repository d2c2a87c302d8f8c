"""The verdict on logs made by rule: each version of NCCL and its plugin × each case × each damage."""

import io
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from tests.cases import each_case

from trainyard.watch.network_verdict import Expectation, Network, NetworkLog, NetworkVerdict

P5, G6 = Expectation(efa=32, rdma=True, nodes=2), Expectation(efa=1, rdma=False, nodes=2)


@dataclass(frozen=True)
class Version:
    """How a version of NCCL and of aws-ofi-nccl writes."""

    network: str
    channel: str
    """With {sender}, {receiver}, {way} and {by}."""
    provider: str
    missing: str
    rank: str
    direct: str = "/GDRDMA"
    tail: str = ""


VERSIONS = {
    "nccl 2.7, plugin 1.1": Version(
        "AWS Libfabric",
        "Channel 00 : {sender}[101c0] -> {receiver}[101c0] [{way}] via {by}",
        "NET/OFI Selected Provider is efa",
        "NET/Plugin : No plugin found, using internal implementation",
        "comm 0x7f rank {rank} nranks {world} cudaDev 0 busId 101c0 - Init COMPLETE",
    ),
    "nccl 2.4": Version(
        "AWS Libfabric",
        "Ring 00 : {sender} -> {receiver} [{way}] via {by}",
        "NET/OFI Selected Provider is efa",
        "NET/Plugin : No plugin found (libnccl-net.so).",
        "comm 0x7f rank {rank} nranks {world} cudaDev 0 nvmlDev 0 - Init COMPLETE",
    ),
    "nccl 2.18, plugin 1.7": Version(
        "AWS Libfabric",
        "Channel 00/0 : {sender}[0] -> {receiver}[0] [{way}] via {by}",
        "NET/OFI Selected Provider is efa (found 4 nics)",
        "NET/Plugin : dlerror=libnccl-net.so: cannot open No plugin found (libnccl-net.so), using internal "
        "implementation",
        "ncclCommInitRank comm 0x5 rank {rank} nranks {world} cudaDev 0 commId 0xabc - Init COMPLETE",
        direct="/GDRDMA(PCI)",
    ),
    "nccl 2.30, plugin 1.21": Version(
        "Libfabric",
        "Channel 00/0 : {sender}[0] -> {receiver}[0] [{way}] via {by}",
        "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
        "NET/Plugin: Could not find: libnccl-net.so",
        "ncclCommInitRankConfig comm 0x5 rank {rank} nRanks {world} nNodes 2 localRanks {local} "
        "localRank 0 commId 0xabc MNNVL 0",
        direct="(3)/GDRDMA/Shared",
        tail=" comm 0x5 nRanks 04",
    ),
}


@dataclass(frozen=True)
class Case:
    """The channels of the processes in both directions, and other lines of the log."""

    receive: str
    send: str
    lines: tuple[str, ...] = ()
    expected: Expectation = P5
    answer: Network = Network.UNKNOWN


PLUGIN_LINES = (
    "NET/OFI Initializing aws-ofi-nccl 1.9.1-aws",
    "NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
    "TUNER/Plugin: Using tuner plugin nccl_ofi_tuner",
)
"""Each shows that the plugin of EFA, or its tuner, was loaded, so that EFA was expected."""
OTHER_LINES = (
    "TUNER/Plugin: Could not find: libnccl-tuner.so",
    "NET/Plugin: Plugin name set by env to libnccl-net-ofi.so",
    "NET/Plugin: Could not find: libnccl-net-ofi.so",
    "NET/Plugin: Loaded net plugin Spectrum (v8)",
)


def cases(version: Version) -> dict[str, Case]:
    efa = f"NET/{version.network}/0"
    direct = efa + version.direct + version.tail
    plain = efa + version.tail
    chosen = (version.provider, f"Using network {version.network}")
    socket = "NET/Socket/0" + version.tail
    ib = "NET/IB/0/GDRDMA" + version.tail
    return {
        "direct": Case(direct, direct, chosen, P5, Network.EFA_GPUDIRECT),
        "direct, type unknown": Case(direct, direct, chosen, Expectation(), Network.EFA_GPUDIRECT),
        "no plugin lines": Case(direct, direct, (), P5, Network.EFA_GPUDIRECT),
        "one way": Case(direct, plain, chosen, P5, Network.EFA_NO_GPUDIRECT),
        "not direct": Case(plain, plain, chosen, G6, Network.EFA_NO_GPUDIRECT),
        "sockets": Case(socket, socket, (version.missing, "Using network Socket"), P5, Network.TCP_FALLBACK),
        "sockets, plugin tried": Case(socket, socket, chosen, Expectation(), Network.TCP_FALLBACK),
        "one way by socket": Case(direct, socket, chosen, P5, Network.TCP_FALLBACK),
        "sockets without EFA": Case(socket, socket, (version.missing,), Expectation(efa=0), Network.TCP),
        "sockets, type unknown": Case(socket, socket, (version.missing,), Expectation(), Network.TCP),
        **{
            f"sockets, {line}": Case(socket, socket, (line,), Expectation(), Network.TCP_FALLBACK)
            for line in PLUGIN_LINES
        },
        **{
            f"sockets, {line}": Case(socket, socket, (line,), Expectation(), Network.TCP)
            for line in OTHER_LINES
        },
        "sockets requested, plugin": Case(
            socket, socket, ("NCCL_NET set by environment to Socket.", PLUGIN_LINES[0]), P5, Network.TCP
        ),
        "sockets requested": Case(
            socket, socket, ("NCCL_NET set by environment to Socket.",), P5, Network.TCP
        ),
        "InfiniBand": Case(ib, ib, ("Using network IB",), Expectation(), Network.INFINIBAND),
        "another provider": Case(
            direct, direct, (version.provider.replace("efa", "cxi", 1),), Expectation(), Network.UNKNOWN
        ),
    }


def process(version: Version, case: Case, rank: int, world: int, *, nodes: int = 2) -> list[str]:
    """The log of one process: a ring over all machines in which each process reaches the next machine."""
    local = world // nodes
    head = f"ip-10-0-0-{rank // local}:{100 + rank % local}:{900 + rank} [{rank % local}] NCCL INFO "
    following, previous = (rank + local) % world, (rank - local) % world
    lines = [
        "Bootstrap: Using eth0:10.0.0.1<0>",
        "TUNER/Plugin: Could not find: libnccl-tuner.so",
        *case.lines,
        version.rank.format(rank=rank, world=world, local=local),
        version.channel.format(sender=previous, receiver=rank, way="receive", by=case.receive),
        version.channel.format(sender=rank, receiver=following, way="send", by=case.send),
        "Connected all rings",
    ]
    return [f"{head}{line}\n" for line in lines]


Logs = list[list[str]]
NEWEST = "nccl 2.30, plugin 1.21"


def logs_of(name: str, world: int, version: str = NEWEST, *, nodes: int = 2) -> Logs:
    """The logs of all processes of a case."""
    form = VERSIONS[version]
    return [process(form, cases(form)[name], rank, world, nodes=nodes) for rank in range(world)]


def coloured(logs: Logs, _: random.Random) -> Logs:
    return [[f"\x1b[32m{line[:-1]}\x1b[0m\n" for line in log] for log in logs]


def prefixed(logs: Logs, _: random.Random) -> Logs:
    return [
        [f"2026-11-26T10:00:00Z pod-{n} stdout F [{n}]: {line}" for line in log] for n, log in enumerate(logs)
    ]


def interleaved(logs: Logs, choice: random.Random) -> Logs:
    """The lines of all processes in one log, each process's in its order."""
    left, mixed = [list(log) for log in logs], []
    while any(left):
        mixed.append(choice.choice([log for log in left if log]).pop(0))
    return [mixed]


def between_progress_bars(logs: Logs, _: random.Random) -> Logs:
    return [[part for line in log for part in ("  3%|▎         | 9/300\r", line)] for log in logs]


def repeated(logs: Logs, _: random.Random) -> Logs:
    return [*logs, *logs]


HARMLESS: dict[str, Callable[[Logs, random.Random], Logs]] = {
    "none": lambda logs, _: logs,
    "coloured": coloured,
    "prefixed": prefixed,
    "interleaved": interleaved,
    "progress bars": between_progress_bars,
    "repeated": repeated,
}


def a_log_is_missing(logs: Logs, choice: random.Random) -> Logs:
    gone = choice.randrange(len(logs))
    return [log for number, log in enumerate(logs) if number != gone]


def a_log_ends_before_its_channels(logs: Logs, choice: random.Random) -> Logs:
    number = choice.randrange(len(logs))
    return [log[:-3] if n == number else log for n, log in enumerate(logs)]


def no_sizes(logs: Logs, _: random.Random) -> Logs:
    return [[line for line in log if " rank " not in line] for log in logs]


DAMAGES = (a_log_is_missing, a_log_ends_before_its_channels, no_sizes)
INCOMPLETE = {
    Network.EFA_GPUDIRECT: Network.EFA_UNDETERMINED,
    Network.EFA_NO_GPUDIRECT: Network.EFA_UNDETERMINED,
    Network.INFINIBAND: Network.UNKNOWN,
}


def judge(logs: Sequence[Sequence[str]], expected: Expectation) -> NetworkVerdict:
    log = NetworkLog()
    for lines in logs:
        log.read_file(io.BytesIO("".join(lines).encode()))
    return log.judge(expected)


NAMES = list(cases(VERSIONS["nccl 2.4"]))


@each_case("name", NAMES)
@each_case("version", VERSIONS)
def test_each_case_of_each_version_under_each_disguise(version: str, name: str) -> None:
    case = cases(VERSIONS[version])[name]
    for world, (disguise, change) in itertools.product((2, 8), HARMLESS.items()):
        found = judge(change(logs_of(name, world, version), random.Random(name)), case.expected)
        assert found.verdict is case.answer, (disguise, world, found)
        assert found.evidence
        assert bool(found.cause) == (
            case.answer is Network.TCP_FALLBACK
            or (case.answer is Network.EFA_NO_GPUDIRECT and bool(case.expected.rdma))
        )


@pytest.mark.slow
@each_case("name", NAMES)
@each_case("version", VERSIONS)
def test_incomplete_logs_prove_nothing(version: str, name: str) -> None:
    case = cases(VERSIONS[version])[name]
    for world, damage, change in itertools.product((2, 8), DAMAGES, HARMLESS.values()):
        choice = random.Random(f"{name} {world}")
        logs = change(damage(logs_of(name, world, version), choice), choice)
        expected = INCOMPLETE.get(case.answer, case.answer)
        assert judge(logs, case.expected).verdict is expected, (damage.__name__, world)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cut_at_any_place_never_proves_more(version: str) -> None:
    """The last line with a channel of one log is cut at each of its characters."""
    for name in ("direct", "not direct", "one way"):
        case, logs = cases(VERSIONS[version])[name], logs_of(name, 2, version)
        whole = "".join(logs[1][:-1])
        start = len(whole) - len(logs[1][-2])
        for end in range(start, len(whole)):
            found = judge([logs[0], [whole[:end]]], case.expected).verdict
            assert found in (case.answer, Network.EFA_UNDETERMINED), whole[start:end]
            assert name != "not direct" or found is not Network.EFA_GPUDIRECT


@each_case("version", VERSIONS)
@each_case("kept", ["NET/OFI", "Using network", "Bootstrap", "TUNER", ""])
def test_without_channels_nothing_is_proven(version: str, kept: str) -> None:
    direct = logs_of("direct", 4, version)
    logs = [[line for line in log if kept in line and " via " not in line] for log in direct]
    found = judge(logs, P5).verdict
    assert found in (Network.EFA_UNDETERMINED, Network.UNKNOWN)
    echoed = [["+ grep 'via NET/Libfabric/0/GDRDMA' nccl.log\n", "NET/OFI Selected provider is efa\n"]]
    assert judge(echoed, P5).verdict is Network.UNKNOWN


@pytest.mark.parametrize("expected", [Expectation(), Expectation(nodes=1), P5])
@pytest.mark.parametrize("per_node", [1, 8])
def test_one_machine(expected: Expectation, per_node: int) -> None:
    logs = [
        [
            f"host:{10 + rank}:{10 + rank} [{rank}] NCCL INFO {line}\n"
            for line in (
                "Using network Socket",
                f"comm 0x5 rank {rank} nRanks {per_node} nNodes 1 localRanks {per_node}",
                f"Channel 00/0 : {rank}[0] -> {(rank + 1) % per_node}[0] via P2P/CUMEM",
            )
        ]
        for rank in range(per_node)
    ]
    alone = Network.UNKNOWN if expected.nodes == 2 else Network.SINGLE_NODE
    assert judge(logs, expected).verdict is alone
    elsewhere = [[line.replace("host:", "other:") for line in log] for log in logs]
    assert judge([*logs, *elsewhere], Expectation()).verdict is Network.UNKNOWN


def test_a_rank_inside_a_ring_has_no_channel_to_another_machine() -> None:
    logs = logs_of("direct", 16)
    by_network = "[receive] via NET/Libfabric/0(3)/GDRDMA/Shared"
    inner = [line.replace(by_network, "via P2P/CUMEM") for line in logs[3]]
    logs[3] = [line for line in inner if "[send]" not in line]
    assert judge(logs, P5).verdict is Network.EFA_GPUDIRECT
    logs[3] = [line for line in logs[3] if "Connected" not in line]
    assert judge(logs, P5).verdict is Network.EFA_UNDETERMINED


def test_a_group_of_ranks_that_is_not_complete_is_noticed() -> None:
    """With tensor parallelism no communicator joins all: each of them has to be complete."""
    logs = []
    for rank, log in enumerate(logs_of("direct", 8)):
        node, local = divmod(rank, 4)
        lines = [line for line in log if " rank " not in line]
        head = lines[0].partition("Bootstrap")[0]
        lines.insert(0, f"{head}comm 0x1 rank {local} nranks 4 cudaDev 0 commId 0xa{node} - Init COMPLETE\n")
        lines.insert(0, f"{head}comm 0x2 rank {node} nranks 2 cudaDev 0 commId 0xb{local} - Init COMPLETE\n")
        logs.append(lines)
    assert judge(logs, P5).verdict is Network.EFA_GPUDIRECT
    for gone in range(8):
        left = [log for rank, log in enumerate(logs) if rank != gone]
        assert judge(left, P5).verdict is Network.EFA_UNDETERMINED


def engine(machine: int, number: int, size: int, *, stated: bool = True) -> list[str]:
    """The log of a process that generates on one machine, in a communicator of `size` ranks there."""
    head = f"ip-10-0-0-{machine}:{500 + number}:{500 + number} [{number}] NCCL INFO "
    nodes = f" nNodes 1 localRanks {size} localRank {number}" if stated else ""
    lines = [f"comm 0x9 rank {number} nRanks {size}{nodes} commId 0xe{machine} - Init COMPLETE"]
    if size > 1:
        lines.append(f"Channel 00/0 : {number}[0] -> {(number + 1) % size}[0] via P2P/CUMEM")
        lines.append("Connected all rings")
    return [f"{head}{line}\n" for line in lines]


@each_case("size", [1, 2, 4])
@each_case("name", ["direct", "sockets", "one way", "one way by socket"])
def test_engines_beside_the_training_neither_prove_nor_hide_it(name: str, size: int) -> None:
    """verl's engines have communicators of other sizes within each machine; the training's decide."""
    case, world = cases(VERSIONS[NEWEST])[name], 8
    expected = replace(P5, processes=world)
    trained = logs_of(name, world)
    beside = [engine(machine, number, size) for machine in range(2) for number in range(size)]
    assert judge([*trained, *beside], expected).verdict is case.answer
    incomplete = INCOMPLETE.get(case.answer, case.answer)
    for gone in range(world):
        left = [log for rank, log in enumerate(trained) if rank != gone]
        assert judge([*left, *beside], expected).verdict is incomplete, "an engine is no rank of the training"
    silent = [[line for line in log if " via " not in line] for log in trained]
    assert judge([*silent, *beside], expected).verdict in (Network.UNKNOWN, Network.EFA_UNDETERMINED)
    assert judge(beside, expected).verdict is Network.UNKNOWN


def test_groups_of_training_whose_logs_are_all_missing_are_not_replaced_by_engines() -> None:
    """Two groups of four train; one has no logs, and four engines show channels."""
    trained = logs_of("direct", 4)
    beside = [engine(machine, number, 2) for machine in range(2) for number in range(2)]
    assert judge([*trained, *beside], replace(P5, processes=8)).verdict is Network.EFA_UNDETERMINED
    assert judge([*trained, *beside], replace(P5, processes=4)).verdict is Network.EFA_GPUDIRECT


CAUSES = {
    "NET/OFI Unable to register memory (type = 2). RC: -12, Error: Cannot allocate memory": "lock",
    "NET/OFI Couldn't enable endpoint. RC: -22, ERROR: Invalid argument": "installer",
    "NET/OFI GDR disabled on GDR-supported instance type p4d.24xlarge": "FI_EFA_USE_DEVICE_RDMA=0",
    "NET/OFI Request completed with error. RC: 4. Error: Unreachable remote": "other machine",
    "NET/OFI No eligible providers were found": "no EFA device",
    "NET/OFI aws-ofi-nccl initialization failed": "did not start",
    "NET/Plugin: Could not find: libnccl-net.so.": "did not find",
    "NET/Plugin : No plugin found, using internal implementation": "did not find",
    "nothing of the network": "does not say",
}


@each_case("line", CAUSES)
@each_case("level", ["NCCL INFO", "nccl_net_ofi.c:1234 NCCL WARN"])
def test_a_fallback_has_its_cause_and_a_fix(line: str, level: str) -> None:
    logs = [[each for each in log if "NET/Plugin" not in each] for log in logs_of("sockets", 4)]
    logs[2].insert(1, f"ip-10-0-0-1:100:902 [0] {level} {line}\n")
    found = judge(logs, P5)
    assert found.verdict is Network.TCP_FALLBACK
    assert CAUSES[line] in found.cause
    assert found.fix
    healthy = logs_of("direct", 4)
    healthy[2].insert(1, logs[2][1])
    assert judge(healthy, P5).verdict is Network.EFA_GPUDIRECT


def test_fewer_interfaces_than_the_type_has_are_in_the_evidence() -> None:
    found = judge(logs_of("direct", 4, "nccl 2.18, plugin 1.7"), P5)
    assert found.verdict is Network.EFA_GPUDIRECT
    assert found.nics == 4
    assert "4 of 32 EFA interfaces were found by a process" in found.evidence
