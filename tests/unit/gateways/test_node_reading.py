"""The reading of a machine: a recorded answer of nvidia-smi, damaged copies of it, and counters."""

import re
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.gateways import node_reading
from trainyard.gateways.node_reading import NodeReading, read_node_answer, read_this_node
from trainyard.gateways.nvidia import gpus_in

RECORDED = Path(__file__).parents[2] / "fixtures" / "nvidia" / "h200-580.159.04" / "q.xml"
GIB = 1 << 30


@pytest.fixture(scope="module")
def xml() -> str:
    return RECORDED.read_text(encoding="utf-8")


def test_a_recorded_answer_is_read(xml: str) -> None:
    [gpu], _ = gpus_in(xml, 0)
    assert gpu.name == "NVIDIA H200"
    assert (gpu.utilization_percent, gpu.temperature_celsius, gpu.power_watts) == (0, 39, 80.5)
    assert (gpu.memory_used_bytes, gpu.power_limit_watts, gpu.sm_clock_mhz) == (0, 700, 345)
    assert gpu.memory_total_bytes == pytest.approx(140.4 * GIB, rel=0.001)
    assert (gpu.is_throttled, gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.faults) == (False, 0, 0, ())
    assert not gpu.is_used


def test_a_hot_gpu_is_throttled_and_a_broken_one_says_what_is_broken(xml: str) -> None:
    for reason in ("hw_thermal_slowdown", "sw_thermal_slowdown"):
        hot = xml.replace(f"event_reason_{reason}>Not Active", f"event_reason_{reason}>Active")
        assert gpus_in(hot, 0)[0][0].is_throttled is True
    for tag, value, fault in (
        ("dram_uncorrectable", "2", "2 memory errors that ECC could not correct"),
        ("sram_uncorrectable_parity", "1", "1 memory errors that ECC could not correct"),
        ("remapped_row_failure", "Yes", "its memory has no spare rows left"),
        ("gpu_util", "GPU is lost", "the driver has lost it"),
    ):
        broken = re.sub(rf"<{tag}>[^<]*<", f"<{tag}>{value}<", xml, count=1)
        assert gpus_in(broken, 0)[0][0].faults == (fault,)


def test_every_figure_that_the_driver_does_not_have_is_unknown(xml: str) -> None:
    [gpu], _ = gpus_in(re.sub(r">[^<>\n]+</", ">N/A</", xml), 0)
    known = {name: value for name, value in vars(gpu).items() if value not in (None, (), 0, "N/A")}
    assert known == {}
    assert (gpu.utilization_percent, gpu.ecc_uncorrected) == (None, None)
    assert not gpu.is_throttled


@each_case("cut", range(0, 27000, 1500))
def test_a_cut_answer_is_unknown(xml: str, cut: int) -> None:
    reading = read_node_answer(f"@gpus\n{xml[:cut]}\n@code 0\n@kernel\n@network\n@end\n")
    assert reading.gpus == () and reading.gpu_trouble


def test_an_answer_without_its_end_says_nothing() -> None:
    for text in ("", "sh: not found", "@gpus\n@kernel\n@network\n"):
        assert read_node_answer(text) == NodeReading(gpu_trouble="the machine gave no complete answer")


def test_xids_and_counters_are_read() -> None:
    reading = read_node_answer(
        "@gpus\n@kernel\n5000.50 1.0\n"
        "[ 4990.250000] NVRM: Xid (PCI:0000:10:1c): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "@network\nrdmap0/ports/1/hw_counters/tx_bytes 100\nrdmap0/ports/1/hw_counters/rx_bytes 50\n"
        "mlx5_0/ports/1/counters/port_xmit_data 5\nmlx5_0/ports/1/hw_counters/odd N/A\n@end\n"
    )
    assert reading.xids is not None
    [xid] = reading.xids
    assert (xid.number, xid.seconds_ago) == (79, 10.25)
    assert xid.text.startswith("NVRM: Xid (PCI:0000:10:1c): 79, pid=")
    assert reading.network_bytes == (100 + 4 * 5, 50)
    assert reading.gpu_trouble == "nvidia-smi is missing"


def test_a_kernel_log_that_may_not_be_read_is_unknown_and_an_empty_one_is_not() -> None:
    assert read_node_answer("@gpus\n@kernel\n@network\n@end\n").xids is None
    assert read_node_answer("@gpus\n@kernel\n9.5 1.0\n@network\n@end\n").xids == ()


@pytest.mark.parametrize("status", [0, 9])
def test_the_script_really_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    said = f"cat '{RECORDED}'" if status == 0 else "echo 'No devices were found'"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{said}; exit {status}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "rdmap0" / "ports" / "1" / "hw_counters").mkdir(parents=True)
    (tmp_path / "rdmap0" / "ports" / "1" / "hw_counters" / "tx_bytes").write_text("12\n")
    script = node_reading.SCRIPT.replace("/sys/class/infiniband", f"'{tmp_path}'")
    monkeypatch.setattr(node_reading, "SCRIPT", script)
    reading = read_this_node()
    assert reading.network_bytes == (12, 0)
    if status:
        assert reading.gpu_trouble == "nvidia-smi failed (exit code 9): No devices were found"
    else:
        assert [gpu.name for gpu in reading.gpus] == ["NVIDIA H200"]
