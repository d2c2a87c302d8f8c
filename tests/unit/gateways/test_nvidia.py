"""The driver's answers: from a stand-in `nvidia-smi`, recorded, damaged; and one GPU for two repositories."""

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError, WaitTimeoutError
from trainyard.gateways import gpu_lock, node_reading, nvidia
from trainyard.gateways.gpu_lock import with_gpu_lock
from trainyard.gateways.node_reading import NodeReading, read_node_answer, read_this_node
from trainyard.gateways.nvidia import gpus_in


def say(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `nvidia-smi` with this shell body first on PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "nvidia" / "h200-580.159.04"


def test_no_nvidia_smi_means_no_gpu_and_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.query_gpus() == nvidia.NvidiaAnswer((), None)


@each_case(
    ("change", "code", "trouble"),
    [
        ("", 0, None),
        ("", 14, None),  # a warning about the card's own memory
        ("", 15, "nvidia-smi failed (exit code 15)"),
        ("; s/>39 C</>GPU is lost</", 0, "the driver has lost GPU 0: it has crashed or fallen off the bus"),
        ("; s/>39 C</>Unknown Error</", 0, "the driver has lost GPU 0: it has"),
        ("; 9,$ d", 0, "nvidia-smi failed (exit code 0): <?xml"),
        ("; 1,$ d; $ a Unable to determine the device handle", 9, "nvidia-smi failed (exit code 9): "),
    ],
)
def test_the_drivers_answer_is_read_or_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, code: int, trouble: str | None
) -> None:
    say(tmp_path, f"sed '{change}' '{RECORDED / 'q.xml'}'; exit {code}", monkeypatch)
    answer = nvidia.query_gpus()
    assert (answer.trouble or "").startswith(trouble or "") and bool(answer.trouble) == bool(trouble)
    found = [(gpu.name, gpu.driver, gpu.memory_total_bytes) for gpu in answer.gpus]
    assert found == ([] if trouble else [("NVIDIA H200", "580.159.04", 143771 << 20)])


@pytest.mark.process
def test_the_sampler_returns_the_drivers_last_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, "echo '94, 72'", monkeypatch)
    sample = nvidia.gpu_sampler(seconds=0.01)
    expected = {"gpu_utilization_percent": 94.0, "gpu_temperature_celsius": 72.0}
    assert wait_for(lambda: sample() == expected)
    say(tmp_path, "echo '[N/A], ERR!'", monkeypatch)
    assert wait_for(lambda: sample() == {})


def wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_cuda_visible_devices_decides_how_many_gpus_there_are() -> None:
    counts = {"0": 1, "0,1, 2": 3, "": 0, "-1": 0, "0,-1,1": 1, "MIG-a,MIG-b": 2, "2,,3": 1}
    assert {chosen: nvidia.visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) for chosen in counts} == counts


def test_without_nvidia_smi_the_device_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert nvidia.visible_gpus({}, devices=tmp_path) == 3
    say(tmp_path, f"cat '{RECORDED / 'q.xml'}'", monkeypatch)
    assert nvidia.visible_gpus({}, devices=tmp_path) == 1


def test_the_processes_of_a_machine_follow_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: int | str
    for asked, gpus, on_cpu, count in (
        (3, "0", False, 3),
        ("auto", "0,1", False, 2),
        ("auto", "0,1", True, 1),
        ("auto", "", False, 1),
        ("gpu", "0,1", False, 2),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        assert nvidia.processes_here(asked, on_cpu=on_cpu) == count
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="shows none"):
        nvidia.processes_here("gpu", on_cpu=False)


@each_case("name", ["python3", "/opt/a, b/python", "[Not Found]"])
@each_case("memory", ["12", "[N/A]", "[Insufficient Permissions]"])
def test_each_form_of_a_row_is_read(name: str, memory: str) -> None:
    size = 12 << 20 if memory == "12" else None
    row = f"4711, {name}, {memory}, GPU-1"
    assert nvidia.read_compute_processes(f"{row}\n\n") == (nvidia.ComputeProcess(4711, name, size, "GPU-1"),)


def test_an_answer_without_processes_names_none() -> None:
    for text in ("", "No running processes found", "NVIDIA H100, 580.65.06, 81559, 34", "ERR!, 1", "12"):
        assert nvidia.read_compute_processes(text) == ()


@each_case(
    ("chosen", "pids"),
    [(None, [1, 2]), ("0", [1]), ("1,0", [1, 2]), ("GPU-bb", [2]), ("", []), ("-1", []), ("MIG-bbbb", [])],
)
def test_only_processes_on_the_gpus_of_this_environment_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, pids: list[int]
) -> None:
    answers = "echo 1, python, 5, GPU-aaaa; echo 2, python, 6, GPU-bbbb"
    known = "echo 0, GPU-aaaa; echo 1, GPU-bbbb"
    say(tmp_path, f'case "$1" in *compute-apps*) {answers} ;; *) {known} ;; esac', monkeypatch)
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert [each.pid for each in nvidia.query_compute_processes(environment)] == pids


def hold(path: Path, held: Event, free: Event) -> None:
    with gpu_lock.gpu_lock(path, owner="other/repository"):
        held.set()
        free.wait(60)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "_POLL_SECONDS", 0.01)


def test_without_a_lock_file_no_run_waits() -> None:
    def work() -> int:
        return 7

    assert with_gpu_lock(work, {}) is work
    assert with_gpu_lock(work, {"TRAINYARD_GPU_LOCK": "/nowhere/at/all", "LOCAL_RANK": "1"}) is work


def test_a_second_repository_waits_until_the_first_is_done(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    path, context = tmp_path / "gpu.lock", multiprocessing.get_context("spawn")
    held, free = context.Event(), context.Event()
    other = context.Process(target=hold, args=(path, held, free))
    other.start()
    assert held.wait(60)
    begun = threading.Event()
    mine = {"TRAINYARD_GPU_LOCK": str(path), "GITHUB_REPOSITORY": "my/repository"}
    answers: list[int] = []

    def work() -> int:
        begun.set()
        assert path.read_text().startswith("my/repository, process ")
        return 7

    with caplog.at_level("INFO", "trainyard"):
        waiting = threading.Thread(target=lambda: answers.append(with_gpu_lock(work, mine)()))
        waiting.start()
        assert not begun.wait(0.3)
        third = gpu_lock.gpu_lock(path, owner="third", longest=0.05)
        with pytest.raises(WaitTimeoutError, match="held by other/repository, process"), third:
            pytest.fail("two hold it at once")
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)  # the system frees the lock however the holder ends
        waiting.join(60)
        other.join(60)
    assert answers == [7]
    assert "waiting for the GPU of this machine: other/repository, process" in caplog.text


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_GPU_LOCK"):
        with_gpu_lock(lambda: 0, {"TRAINYARD_GPU_LOCK": str(tmp_path / "missing" / "gpu.lock")})()


RECORDED_NODE = Path(__file__).parents[2] / "fixtures" / "nvidia" / "h200-580.159.04" / "q.xml"
GIB = 1 << 30


@pytest.fixture(scope="module")
def xml() -> str:
    return RECORDED_NODE.read_text(encoding="utf-8")


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
    said = f"cat '{RECORDED_NODE}'" if status == 0 else "echo 'No devices were found'"
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
