"""The planned memory of FSDP with accumulation, against what one of several processes really allocates.

Torch's fake process group sends nothing, but one process shards, gathers and reduces as among 2 or 8. Unlike
gloo's threads it releases all memory where torch's profiler sees it, so that the figures are exact.
"""

from typing import Any

import pytest
import torch
from tests.unit.training.model.worlds import config_of, fake_world

from trainyard.config.schema import Config
from trainyard.plan.device_memory import highest_memory_peak, memory_peaks_of
from trainyard.plan.workload import training_workload
from trainyard.training.model.loss import summed_loss
from trainyard.training.model.optimizer import build_optimizer
from trainyard.training.model.parallel import put_on_devices
from trainyard.training.runtime.world import World

OPTIMIZER = "Optimizer.step#AdamW.step"


@pytest.mark.parametrize(("processes", "dtype", "accumulation"), [(2, "float32", 3), (8, "bfloat16", 3)])
def test_accumulation_over_shards_uses_the_planned_memory(
    processes: int, dtype: str, accumulation: int
) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 704, "num_layers": 8, "max_position_embeddings": 64}
    config = config_of(
        shape,
        dtype=dtype,
        data={"sequence_length": 64},
        training={"batch_size": 1, "gradient_accumulation_steps": accumulation},
        compute={"strategy": "fsdp", "threads": 1},
    )
    work = training_workload(config, on_gpu=False, processes=processes)
    with fake_world(0, processes) as world:
        peak, at_optimizer = measure(config, world)
    planned = {moment.name: moment.parts.total for moment in memory_peaks_of(work)}
    assert highest_memory_peak(work).parts.total == pytest.approx(peak, rel=0.05)
    assert planned["optimizer step"] == pytest.approx(at_optimizer, rel=0.05)


def measure(config: Config, world: World) -> tuple[int, int]:
    """Return the peak bytes of tensors in two steps, and the bytes when the second optimizer step starts."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        parallel = put_on_devices(config, world, torch.device("cpu"))
        optimizer = build_optimizer(parallel.model, config.training)
        tokens = torch.zeros(config.training.batch_size, config.data.sequence_length + 1, dtype=torch.int64)
        passes = config.training.gradient_accumulation_steps
        for _ in range(2):
            for number in range(1, passes + 1):
                with parallel.accumulate(last=number == passes):
                    loss = summed_loss(parallel.forward(tokens[:, :-1]), tokens[:, 1:])
                    loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return read_timeline(profile)


def read_timeline(profile: torch.autograd.profiler.profile) -> tuple[int, int]:
    live, peak, at_optimizer = 0, 0, 0
    events: list[Any] = profile.kineto_results.events()  # type: ignore[union-attr]
    rows = [(e.start_ns(), e.nbytes() if e.name() == "[memory]" else 0, e.name()) for e in events]
    for _, change, name in sorted(rows):
        live += change
        peak = max(peak, live)
        at_optimizer = live if name == OPTIMIZER else at_optimizer
    return peak, at_optimizer
