"""The device of a process among others, and the facts about it in a row of metrics."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainyard.config.schema import Config
from trainyard.errors import ConfigError, TrainingFailedError
from trainyard.training.runtime.hardware import (
    hardware_facts,
    memory_facts,
    pin_choices,
    prepare_device,
)
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
    with (
        pytest.raises(TrainingFailedError, match=refused),
        join_world("cpu", "ddp"),
    ):
        pytest.fail("there is no world")


def test_the_choices_of_nccl_and_inductor_are_pinned_unless_the_user_made_them() -> None:
    from torch._inductor import config

    environment = {"NCCL_PROTO": "LL128"}
    with config.patch("deterministic", False):
        pin_choices(compiled=False, environment=environment)
        assert not config.deterministic
        pin_choices(compiled=True, environment=environment)
        assert config.deterministic, "inductor times no kernels on a GPU"
    assert environment == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}


def test_the_settings_of_nccl_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    facts = hardware_facts(torch.device("cuda", 0), 2)
    assert [facts[name] for name in ("nccl", "nccl_algorithm", "nccl_protocol")] == ["2.29.7", "Ring", "auto"]
    assert "nccl" not in hardware_facts(torch.device("cuda", 0), 1)
