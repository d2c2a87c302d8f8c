"""The driver's answers, given by a stand-in `nvidia-smi` that is first on PATH."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.gateways.nvidia import (
    ComputeProcess,
    NvidiaGpu,
    gpu_sampler,
    processes_here,
    query_compute_processes,
    query_gpus,
    read_answer,
    read_compute_processes,
    visible_gpus,
)


def say(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `nvidia-smi` with this shell body first on PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_healthy_gpu_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, "echo 'NVIDIA H100 80GB HBM3, 580.65.06, 81559, 34'", monkeypatch)
    answer = query_gpus()
    assert answer.trouble is None
    assert answer.gpus == (NvidiaGpu("NVIDIA H100 80GB HBM3", "580.65.06", 81559 << 20, 34),)


def test_the_query_is_the_one_that_fails_on_a_crashed_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tmp_path, 'echo "$@" >&2; exit 9', monkeypatch)
    trouble = query_gpus().trouble
    assert trouble is not None
    assert "--query-gpu=name,driver_version,memory.total,temperature.gpu" in trouble
    assert "exit code 9" in trouble


def test_no_nvidia_smi_means_no_gpu_and_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = query_gpus()
    assert (answer.gpus, answer.trouble) == ((), None)


def test_the_inforom_warning_still_counts_as_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(tmp_path, "echo 'Tesla T4, 580.65.06, 15360, 40'; exit 14", monkeypatch)
    assert query_gpus().trouble is None


@pytest.mark.parametrize(
    "line",
    [
        "ERR!, 580.65.06, 81559, 34",
        "NVIDIA H100 80GB HBM3, 580.65.06, [Unknown Error], 34",
        "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
        "NVIDIA H100 80GB HBM3, 580.65.06, 81559, ERR!",
    ],
)
def test_an_answer_that_names_no_gpu_is_trouble(line: str) -> None:
    answer = read_answer(f"Tesla T4, 580.65.06, 15360, 40\n{line}\n")
    assert answer.gpus == ()
    assert answer.trouble is not None
    assert line in answer.trouble


def test_a_gpu_without_a_sensor_has_no_temperature() -> None:
    assert read_answer("GRID, 580.65.06, 8192, [N/A]\n").gpus[0].temperature_celsius is None


@pytest.mark.process
def test_the_sampler_returns_the_drivers_last_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(tmp_path, "echo '94, 72'", monkeypatch)
    sample = gpu_sampler(seconds=0.01)
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


@pytest.mark.parametrize(
    ("chosen", "count"),
    [("0", 1), ("0,1, 2", 3), ("", 0), ("-1", 0), ("0,-1,1", 1), ("MIG-a,MIG-b", 2), ("2,,3", 1)],
)
def test_cuda_visible_devices_decides_how_many_gpus_there_are(chosen: str, count: int) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == count


def test_without_nvidia_smi_the_device_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, devices=tmp_path) == 3
    say(tmp_path, "echo 'H100, 580.65.06, 81559, 34'", monkeypatch)
    assert visible_gpus({}, devices=tmp_path) == 1


@pytest.mark.parametrize(
    ("asked", "gpus", "on_cpu", "count"),
    [
        (3, "0", False, 3),
        ("auto", "0,1", False, 2),
        ("auto", "0,1", True, 1),
        ("auto", "", False, 1),
        ("gpu", "0,1", False, 2),
        ("gpu", "", False, None),
    ],
)
def test_the_processes_of_a_machine_follow_its_gpus(
    monkeypatch: pytest.MonkeyPatch, asked: int | str, gpus: str, on_cpu: bool, count: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    if count is None:
        with pytest.raises(ConfigError, match="shows none"):
            processes_here(asked, on_cpu=on_cpu)
    else:
        assert processes_here(asked, on_cpu=on_cpu) == count


RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "nvidia" / "h200-580.159.04"


def test_the_processes_of_a_real_h200_are_read() -> None:
    assert read_compute_processes((RECORDED / "apps.csv").read_text()) == (
        ComputeProcess(799, "python3", 1978 << 20),
    )


@each_case("unit", ["", " MiB"])
@each_case("gpu", ["", "GPU-1"])
@each_case("name", ["python3", "/opt/a, b/python", "[Not Found]"])
@each_case("memory", ["12", "[N/A]", "[Insufficient Permissions]"])
def test_each_form_of_a_row_is_read(unit: str, gpu: str, name: str, memory: str) -> None:
    row = ", ".join(["4711", name, memory + unit if memory == "12" else memory, *([gpu] if gpu else [])])
    size = 12 << 20 if memory == "12" else None
    assert read_compute_processes(f"pid, process_name\n{row}\n\n") == (ComputeProcess(4711, name, size, gpu),)


@pytest.mark.parametrize(
    "text", ["", "No running processes found", "NVIDIA H100, 580.65.06, 81559, 34", "ERR!, 1", "12"]
)
def test_an_answer_without_processes_names_none(text: str) -> None:
    assert read_compute_processes(text) == ()


@each_case(
    ("chosen", "pids"),
    [
        (None, [1, 2]),
        ("0", [1]),
        ("1", [2]),
        ("1,0", [1, 2]),
        ("GPU-bb", [2]),
        ("GPU-bbbb", [2]),
        ("", []),
        ("-1", []),
        ("MIG-bbbb", []),
    ],
)
def test_only_processes_on_the_gpus_of_this_environment_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None, pids: list[int]
) -> None:
    answers = "echo 1, python, 5, GPU-aaaa; echo 2, python, 6, GPU-bbbb"
    known = "echo 0, GPU-aaaa; echo 1, GPU-bbbb"
    say(tmp_path, f'case "$1" in *compute-apps*) {answers} ;; *) {known} ;; esac', monkeypatch)
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert [each.pid for each in query_compute_processes(environment)] == pids
