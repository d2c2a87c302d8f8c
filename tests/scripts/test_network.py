"""The verdict on NCCL's logs, by the command as people call it."""

import json
from pathlib import Path

from tests.scripts.conftest import Call

SOCKET = "NET/Socket/0"


def write_logs(folder: Path, by: str, *lines: str) -> list[Path]:
    """Write the logs of two processes on two machines that are joined by a network."""
    paths = []
    for rank in range(2):
        head = f"node-{rank}:7:9 [0] NCCL INFO "
        text = (
            *lines,
            f"comm 0x5 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            f"Channel 00/0 : {1 - rank}[0] -> {rank}[0] [receive] via {by}",
            f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via {by}",
        )
        paths.append(folder / f"rank {rank}.log")
        paths[-1].write_text("".join(f"{head}{line}\n" for line in text))
    return paths


def test_the_type_of_the_machines_decides_what_is_expected(called: Call, tmp_path: Path) -> None:
    logs = write_logs(tmp_path, "NET/Libfabric/0")
    for type_, code in (("p5.48xlarge", 1), ("ml.g6.8xlarge", 0)):
        done = called("network", "--log", *logs, "--instance-type", type_, "--num-nodes", "2", "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["verdict"]) == (code, "efa-no-gpudirect"), done.stderr
        assert (answer["ranks_seen"], answer["world_size"]) == (2, 2)
        assert any("NET/Libfabric/0" in line for line in answer["evidence"])


def test_a_fallback_is_explained_in_words(called: Call, tmp_path: Path) -> None:
    logs = write_logs(tmp_path, SOCKET, "NET/Plugin: Could not find: libnccl-net.so.")
    done = called("network", "--log", *logs, "--instance-type", "p5.48xlarge")
    assert done.returncode == 1
    first, *_, cause, fix = done.stdout.splitlines()
    assert first.startswith(
        "tcp-fallback: 4 channels: Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"
    )
    assert cause == "  cause: NCCL did not find the plugin of EFA (aws-ofi-nccl)"
    assert fix.startswith("  fix:   install aws-ofi-nccl in the image")


def test_what_cannot_be_read_is_exit_code_2(called: Call) -> None:
    for words, said in (
        ((), "--log"),
        (("--log", "none.log"), "none.log: missing"),
        (("--log", "x", "--instance-type", "p5.48xlage"), "did you mean p5.48xlarge?"),
        (("--log", "x", "--num-nodes", "0"), "--num-nodes"),
    ):
        done = called("network", *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
