"""Main memory that a training takes: on processors all of it, beside GPUs the copies."""

from pathlib import Path

import pytest

from trainyard.config.load import load_config
from trainyard.config.parameters import count_parameters
from trainyard.config.schema import Config
from trainyard.plan.device_memory import highest_memory_peak, main_memory_need
from trainyard.plan.workload import training_workload

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
GB = 10**9


def smoke(*changes: str) -> Config:
    return load_config(CONFIGS / "smoke.yaml", changes).config


def need(config: Config, gpus: int = 0) -> int:
    return main_memory_need(config, gpus=gpus)


def test_on_a_cpu_every_tensor_of_the_peak_counts() -> None:
    for changes in ((), ("training.batch_size=64",), ("training.gradient_accumulation_steps=4",)):
        work = training_workload(smoke(*changes), on_gpu=False)
        assert need(smoke(*changes)) == highest_memory_peak(work).parts.total


def test_what_ships_fits_the_smallest_machine_that_anybody_trains_on() -> None:
    assert need(load_config(CONFIGS / "smoke.yaml").config) < GB


@pytest.mark.parametrize(
    ("changes", "gpus", "copies"),
    [
        ((), 1, 0),
        (("checkpointing.mode=async",), 1, 12),
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
    assert need(config, gpus=gpus) == pytest.approx(copies * total, rel=1e-4)


def test_what_this_machine_alone_cannot_share_out_is_no_error() -> None:
    """Several machines train it: the fewest processes that can share it count."""
    config = smoke("compute.strategy=hsdp", "compute.replicas=2", "compute.tensor_parallel=2")
    assert all(need(config, gpus=gpus) >= 0 for gpus in (0, 1, 3))
