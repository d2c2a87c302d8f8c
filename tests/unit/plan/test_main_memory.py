"""Main memory that a training takes: on processors all of it, beside GPUs the copies."""

from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.config.load import load_config
from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config
from trainyard.plan.device import cpu
from trainyard.plan.device_memory import highest_memory_peak
from trainyard.plan.main_memory import largest_batch_size, main_memory_need
from trainyard.plan.workload import training_workload

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
GB = 10**9


def smoke(*changes: str) -> Config:
    return load_config(CONFIGS / "smoke.yaml", changes).config


def need(config: Config, gpus: int = 0, available: int = 16 * GB) -> Any:
    return main_memory_need(config, gpus=gpus, available_bytes=available)


@each_case("batch", [1, 16, 1000, 1_000_000])
@each_case("accumulation", [1, 4])
@each_case("available", [0, 2 * GB, 16 * GB, 1000 * GB])
def test_the_largest_batch_fits_and_one_more_does_not(batch: int, accumulation: int, available: int) -> None:
    given = (f"training.batch_size={batch}", f"training.gradient_accumulation_steps={accumulation}")
    config = smoke(*given)
    found = need(config, available=available)
    size, room = found.largest_batch_size, cpu(cores=1, memory_bytes=available).usable_bytes
    assert 0 <= size <= batch

    def takes(sequences: int) -> int:
        again = smoke(f"training.batch_size={sequences}", "training.gradient_accumulation_steps=4")
        return highest_memory_peak(training_workload(again, on_gpu=False)).parts.total

    assert size == 0 or takes(size) <= room
    assert size == batch or takes(size + 1) > room
    assert found.tensors_bytes == highest_memory_peak(training_workload(config, on_gpu=False)).parts.total


def test_what_ships_fits_the_smallest_machine_that_anybody_trains_on() -> None:
    assert need(load_config(CONFIGS / "smoke.yaml").config).tensors_bytes < GB


@pytest.mark.parametrize(
    ("changes", "gpus", "copies"),
    [
        ((), 1, 0),
        (("checkpointing.mode=async",), 1, 12),
        (("checkpointing.mode=async",), 8, 12),
        (("checkpointing.mode=async", "compute.strategy=fsdp"), 8, 12),
        (("compute.strategy=fsdp", "compute.cpu_offload=true"), 8, 16),
        (("compute.strategy=fsdp", "compute.cpu_offload=true", "checkpointing.mode=async"), 4, 28),
        (("compute.strategy=ddp", "checkpointing.mode=async"), 8, 12),
    ],
)
def test_beside_gpus_the_copies_and_what_is_offloaded_count(
    changes: tuple[str, ...], gpus: int, copies: int
) -> None:
    """Bytes per parameter: 12 of a copy (weight, two moments), 16 of an offloaded state."""
    config = smoke(*changes)
    total = count_parameters(config.model.architecture).total
    found = need(config, gpus=gpus)
    assert found.tensors_bytes == pytest.approx(copies * total, rel=1e-4)
    assert found.largest_batch_size is None


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_what_this_machine_alone_cannot_share_out_is_no_error(gpus: int) -> None:
    """Several machines train it: the fewest processes that can share it count."""
    config = smoke("compute.strategy=hsdp", "compute.replicas=2", "compute.tensor_parallel=2")
    assert need(config, gpus=gpus).tensors_bytes >= 0


def test_no_batch_fits_into_nothing() -> None:
    assert largest_batch_size(training_workload(smoke(), on_gpu=False), 0) == 0
