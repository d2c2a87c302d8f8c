"""Worlds of processes of which only this one exists, and small configurations for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import destroy_process_group, init_process_group

from trainyard.config.schema import ArchitectureConfig, Config
from trainyard.training.runtime.world import World

SMALL = ArchitectureConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
)


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[World]:
    """Make this process one of `size` in torch's fake process group, which sends nothing."""
    # Their imports take a second, which every process of the tests would spend at collection.
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield World(rank, size, rank % 8, None)
    finally:
        destroy_process_group()
        # Otherwise torch takes an equal mesh of the next test for this one, whose groups are gone.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


@contextmanager
def group_of_one() -> Iterator[None]:
    """Make a group of this process alone."""
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        destroy_process_group()


def config_of(architecture: dict[str, Any], *, dtype: str = "float32", **sections: Any) -> Config:
    """Return a configuration of one step on the CPU; `sections` change `training`, `compute` or `data`."""
    training = {"max_steps": 1} | sections.pop("training", {})
    model = {"name": "x", "dtype": dtype, "device": "cpu", "architecture": architecture}
    return Config.model_validate({"model": model, "training": training, **sections})
