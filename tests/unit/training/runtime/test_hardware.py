"""The device of a process among others: memory, compiled vectors, and the times of the parts of its step."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
import torch.distributed as dist
from tests import warm_start
from tests.conditions import COMPILES
from tests.unit.training.lab import Lab
from torch._inductor import config as compiler
from torch._inductor.cpp_builder import CppTorchOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.utils import run_and_get_code

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, TrainingFailedError
from trainyard.training.runtime import hardware
from trainyard.training.runtime.hardware import (
    available_widths,
    hardware_facts,
    memory_facts,
    pin_choices,
    prepare_device,
    set_vector_width,
)
from trainyard.training.runtime.timing import GpuClock, HostClock
from trainyard.training.runtime.world import join_world


def test_the_memory_of_a_gpu_is_what_all_took_and_the_peak_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60, 100))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 30)
    assert memory_facts(torch.device("cuda", 0)) == {
        "gpu_memory_bytes": 40,
        "gpu_memory_total_bytes": 100,
        "gpu_memory_peak_bytes": 30,
    }
    kibibytes = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    assert memory_facts(torch.device("cpu"))["memory_peak_bytes"] == pytest.approx(kibibytes * 1024, rel=0.1)


def test_every_process_sees_that_there_are_more_of_them_than_gpus(
    tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", "0")
    config = tiny_config(model={"device": "cuda"}, compute={"strategy": "ddp"})
    with pytest.raises(ConfigError, match=r"model\.device: 3 processes want one each, but .* sees 2 GPUs"):
        prepare_device(config)


def test_a_cpu_is_not_compiled_for_from_a_folder_with_a_space(
    tiny_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/me/my project/.venv")
    config = tiny_config(compute={"compile": True})
    with pytest.raises(ConfigError, match=r"folder with a space.*/my project/.*compute.compile=false"):
        prepare_device(config)


def test_processes_that_do_not_come_together_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(*_: object, **__: object) -> None:
        raise dist.DistStoreError("Timed out after 301 seconds waiting for clients.")

    monkeypatch.setattr(dist, "init_process_group", alone)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = r"Not all processes of this run joined within 300 s \(Timed out"
    with pytest.raises(TrainingFailedError, match=refused), join_world("cpu", "ddp"):
        pytest.fail("there is no world")


def test_the_choices_of_nccl_and_inductor_are_pinned_unless_the_user_made_them() -> None:
    environment = {"NCCL_PROTO": "LL128"}
    with compiler.patch("deterministic", False):
        pin_choices(compiled=False, environment=environment)
        assert not compiler.deterministic
        pin_choices(compiled=True, environment=environment)
        assert compiler.deterministic, "inductor times no kernels on a GPU"
    assert environment == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}


def test_the_settings_of_nccl_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    facts = hardware_facts(torch.device("cuda", 0), 2)
    assert [facts[name] for name in ("nccl", "nccl_algorithm", "nccl_protocol")] == ["2.29.7", "Ring", "auto"]
    assert "nccl" not in hardware_facts(torch.device("cuda", 0), 1)


COUNT = """
import ctypes, resource
from trainyard.training.runtime.hardware import keep_memory
assert keep_memory()
library, size = ctypes.CDLL(None), 80 << 20
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = library.malloc(size)
    ctypes.memset(block, 1, size)
    library.free(block)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / size)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")
def test_blocks_that_are_used_again_are_not_mapped_again(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNT)
    done = warm_start.run([sys.executable, tmp_path / "count.py"], timeout=120)
    assert float(done.stdout) < 0.1, done.stderr


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr_names", {})
    assert not hardware.keep_memory()


@pytest.fixture
def compiler_settings() -> Iterator[None]:
    """Restore the compiler's settings after the test."""
    with compiler.patch(
        {
            "cpp.simdlen": None,
            "cpp.march": None,
            "fx_graph_cache": False,
            "cpp_cache_precompile_headers": False,
        }
    ):
        yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("bits", [256])
@pytest.mark.usefixtures("compiler_settings")
@COMPILES
def test_the_generated_code_has_vectors_of_that_width(bits: int) -> None:
    if bits not in available_widths():
        pytest.skip(f"this CPU has no vectors of {bits} bits")
    set_vector_width(bits)
    assert hardware.vector_width() == bits
    numbers = torch.arange(1024, dtype=torch.float32)
    result, (code,) = run_and_get_code(torch.compile(lambda x: x * 2 + 1), numbers)
    assert torch.equal(result, numbers * 2 + 1)
    written_out = f"loadu(in_ptr0 + static_cast<int64_t>(x0), static_cast<int64_t>({bits // 32}))" in code
    assert written_out == (pick_vec_isa().bit_width() == bits)
    assert ("at::vec::Vectorized" in code) == written_out
    flags = CppTorchOptions(vec_isa=pick_vec_isa()).get_cflags()
    if not written_out:
        assert "march=x86-64-v2" in flags
    else:
        assert "march=x86-64-v2" not in flags


@pytest.mark.usefixtures("compiler_settings")
def test_a_width_that_the_cpu_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "available_widths", lambda: [128, 256])
    with pytest.raises(ConfigError, match=r"simd_bits: 512 was requested.* vectors of 128, 256 bits"):
        set_vector_width(512)
    assert compiler.cpp.simdlen is None


PARTS = ("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")


def test_laps_of_a_part_add_up_and_time_between_steps_is_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = HostClock()
    for pause in (0.25, 0.5):
        clock.begin()
        clock.lap("data")
        now[0] += pause
        clock.lap("forward")
        now[0] += 8
    seconds = clock.read()
    assert seconds == {"data_seconds": 0.0, "forward_seconds": 0.75}
    assert clock.read() == {}


class Event:
    """A CUDA event that passes when the test sets it."""

    now = 0.0
    passed_until = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.passed_until

    def elapsed_time(self, end: "Event") -> float:
        return (end.at - self.at) * 1e3


def test_a_gpus_update_is_in_the_reading_of_the_step_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.Event", Event)
    clock, readings = GpuClock(), deque[dict[str, float]]()
    for start in (0.0, 100.0):
        for at, part in enumerate((None, "data", "forward", "backward", "optimizer")):
            Event.now = start + at * at
            clock.begin() if part is None else clock.lap(part)
        Event.passed_until = start + 9  # the update, 7 seconds, is still running
        readings.append(clock.read())
    assert readings[0] == {"data_seconds": 1.0, "forward_seconds": 3.0, "backward_seconds": 5.0}
    assert readings[1] == readings[0] | {"optimizer_seconds": 7.0}


def test_each_row_has_the_times_of_the_parts_of_its_step(lab: Lab) -> None:
    lab.run(lab.config(training={"max_steps": 6, "validation_steps": None}))
    rows = lab.rows()
    for row in rows:
        assert all(row[part] > 0 for part in PARTS)
        assert sum(row[part] for part in PARTS) <= row["step_seconds"] + 1e-6
    # A busy machine may take the processor away between two parts, so the median step is judged, not each.
    assert median(sum(row[part] for part in PARTS) / row["step_seconds"] for row in rows) > 0.8
    held_up = [row["checkpoint_seconds"] > 0 for row in rows]
    assert held_up == [False, False, False, False, True, False], "step 4 was saved before step 5"


def test_mfu_is_the_share_of_the_peak_of_all_devices(lab: Lab) -> None:
    requested: list[str] = []

    def peak(name: str) -> float:
        requested.append(name)
        return 4e9

    config = lab.config(training={"max_steps": 2})
    lab.run(config, "known", flops_per_token=1000, peak_flops=peak)
    for row in lab.rows("known"):
        assert row["mfu"] == pytest.approx(row["tokens_per_second"] * 1000 / 4e9)
    record = lab.record("known")
    assert (record["plan"]["flops_per_token"], record["hardware"]["peak_flops"]) == (1000, 4e9)
    assert set(requested) == {"cpu"}
    lab.run(config, "no count", peak_flops=peak)
    lab.run(config, "no peak", flops_per_token=1000, peak_flops=lambda name: None)
    lab.run(config, "above 1", flops_per_token=1000, peak_flops=lambda name: 1.0)
    for run in ("no count", "no peak", "above 1"):
        assert not any("mfu" in row for row in lab.rows(run)), run
