"""The facts that are read from NCCL's log, with lines of all its versions and misleading ones."""

import pytest

from trainyard.training.run.nccl_log import Fabric, fallback, read_network

HEAD = "ip-10-0-3-17:812:941 [0] NCCL INFO "
BY_SOCKET = (
    "Bootstrap: Using ens32:10.0.3.17<0>",
    "Initialized NET plugin Socket",
    "Using network Socket",
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0",
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0/Shared comm 0x2083dd50 nRanks 16",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
)
BY_EFA = (
    "NET/Plugin: Could not find: libnccl-net.so.",
    "TUNER/Plugin: Could not find: libnccl-tuner.so.",
    "NET/OFI Initializing aws-ofi-nccl 1.17.1",
    "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
    "Using network Libfabric",
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA",
    "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Libfabric/0(0)/GDRDMA",
)
BY_IB = (
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.9.1.4<0>",
    "NET/Socket : Using [0]ib0:10.9.1.4<0>",
    "Channel 00 : 15[e000] -> 0[8000] [receive] via NET/IB/0/GDRDMA",
    "Channel 01 : 15[e000] -> 0[8000] [receive] via NET/IBext_v8/1",
)


def why(*lines: str, fabric: Fabric | None = Fabric.EFA) -> str | None:
    return fallback(read_network(HEAD + line for line in lines), fabric)


@pytest.mark.parametrize("fabric", Fabric)
def test_channels_over_sockets_are_a_fallback_where_there_is_a_fabric(fabric: Fabric) -> None:
    assert why(*BY_SOCKET, fabric=fabric) == ""
    assert read_network(HEAD + line for line in BY_SOCKET).channels == {"Socket": 2}


def test_without_a_fabric_sockets_are_what_there_is() -> None:
    assert why(*BY_SOCKET, fabric=None) is None


def test_other_channels_are_none() -> None:
    assert why(*BY_EFA) is None
    assert why(*BY_IB, fabric=Fabric.INFINIBAND) is None
    assert read_network(BY_IB).channels == {"IB": 1, "IBext_v8": 1}


def test_one_channel_over_a_socket_among_others_is_enough() -> None:
    assert why(*BY_EFA, BY_SOCKET[3]) == "its plugin was not found"


@pytest.mark.parametrize(
    "lines",
    [
        (),
        BY_SOCKET[:3],
        ("NET/Socket : Using [0]eth0:10.0.0.2<0>", "comm 0x5622 rank 0 nRanks 8 nNodes 1 localRanks 8"),
        ("NET/OFI Tuner selected for NET/Socket", "NET/OFI No eligible providers were found"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "Channel 01 : 1[1] -> 0[0] via SHM/direct/direct"),
        ("Connected all rings, use ring PXN 0 GDR 0",),
    ],
)
def test_without_a_channel_between_machines_nothing_is_said(lines: tuple[str, ...]) -> None:
    assert why(*lines) is None


@pytest.mark.parametrize(
    ("fabric", "line", "words"),
    [
        (Fabric.EFA, "NET/OFI No eligible providers were found", "libfabric found no EFA provider"),
        (
            Fabric.EFA,
            "NET/OFI Unable to find a protocol that worked.  Failing initialization",
            "its plugin fa",
        ),
        (Fabric.EFA, "NET/OFI GDR disabled on GDR-supported instance type p5.48xlarge", "FI_EFA_USE_DEVICE"),
        (Fabric.EFA, "NET/Plugin : No plugin found, using internal implementation", "its plugin was not f"),
        (Fabric.EFA, "NET/Plugin: No plugin found (libnccl-net.so)", "its plugin was not found"),
        (Fabric.EFA, "NET/Plugin: Using internal network plugin.", "its plugin was not found"),
        (Fabric.EFA, "NET/Plugin: Could not find: libnccl-net.so", "its plugin was not found"),
        (Fabric.INFINIBAND, "NET/IB : No device found.", "NCCL sees no device"),
        (Fabric.INFINIBAND, "Failed to open libibverbs.so[.1]", "libibverbs is not installed"),
    ],
)
def test_the_log_often_says_why(fabric: Fabric, line: str, words: str) -> None:
    found = why(line, *BY_SOCKET, fabric=fabric)
    assert found is not None
    assert found.startswith(words)


@pytest.mark.parametrize(
    "line",
    ["NET/IB : No device found.", "PROFILER/Plugin: Could not find: libnccl-profiler.so.", "NCCL WARN hm"],
)
def test_what_is_normal_with_efa_is_no_cause(line: str) -> None:
    assert why(line, *BY_SOCKET) == ""


@pytest.mark.parametrize(
    ("wish", "left_alone"),
    [
        ("NCCL_NET set by environment to Socket.", set(Fabric)),
        ("NCCL_NET set by environment to socket", set(Fabric)),
        ("NCCL_IB_DISABLE set by environment to 1.", {Fabric.INFINIBAND}),
        ("NCCL_IB_DISABLE set by environment to 0.", set()),
        ("NCCL_NET_PLUGIN set by environment to none", {Fabric.EFA}),
        ("NCCL_SOCKET_IFNAME set by environment to ens32", set()),
    ],
)
def test_tcp_that_somebody_asked_for_is_no_fallback(wish: str, left_alone: set[Fabric]) -> None:
    for fabric in Fabric:
        assert (why(wish, *BY_SOCKET, fabric=fabric) is None) == (fabric in left_alone), fabric


def test_lines_that_stick_together_or_have_somebody_elses_head_are_read() -> None:
    glued = f"(worker pid=927) {HEAD}{BY_SOCKET[3]}{HEAD}{BY_SOCKET[4]}"
    assert read_network([glued]).channels == {"Socket": 2}
