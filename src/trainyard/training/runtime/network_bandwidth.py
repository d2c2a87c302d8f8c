"""Measure the bandwidth of all-reduces over all processes of a run, in a worker of torchrun.

The bus bandwidth is that of nccl-tests: bytes / seconds × 2 (n - 1) / n, of the slowest process, and the
median of the repetitions. Each first local process writes the result, because each node judges it.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import json
import os
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

_WARM_UP, _REPETITIONS = 3, 10


def write_measurement(given: dict[str, Any]) -> None:
    """Measure with `given` size, seconds and device; local rank 0 writes `given["file"]`."""
    result = measure(given)
    if os.environ["LOCAL_RANK"] == "0":
        Path(given["file"]).write_text(json.dumps(result))


def measure(given: dict[str, Any]) -> dict[str, Any]:
    """Return the measured bandwidth; all processes of the group call it together."""
    import torch
    import torch.distributed as distributed

    local = int(os.environ["LOCAL_RANK"])
    on_gpu = given["device"] != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    backend = "nccl" if on_gpu else "gloo"
    limit = timedelta(seconds=given["seconds"])
    distributed.init_process_group(backend, timeout=limit, device_id=device if on_gpu else None)
    try:
        world = distributed.get_world_size()
        values = torch.ones(max(1, given["size"] // 4), dtype=torch.float32, device=device)
        seconds = []
        for number in range(_WARM_UP + _REPETITIONS):
            values.fill_(1.0)
            distributed.barrier()
            _wait(torch, on_gpu=on_gpu)
            started = time.perf_counter()
            distributed.all_reduce(values)
            _wait(torch, on_gpu=on_gpu)
            slowest = torch.tensor([time.perf_counter() - started], dtype=torch.float64, device=device)
            distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
            if number >= _WARM_UP:
                seconds.append(float(slowest))
        if not bool((values == world).all()):
            raise RuntimeError(f"an all-reduce of ones over {world} processes gave another sum")
    finally:
        distributed.destroy_process_group()
    size, median = values.numel() * 4, statistics.median(seconds)
    return {
        "bus_gb_per_second": size / median / 1e9 * 2 * (world - 1) / world,
        "bytes": size,
        "seconds": median,
        "processes": world,
        "backend": backend,
    }


def _wait(torch: Any, *, on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
