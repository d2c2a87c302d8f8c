#!/usr/bin/env python3
"""Compare TokenBatches with nanoGPT's get_batch. Goals: 3 times as fast, a seek under 5 ms.

The peer follows its published source (karpathy/nanoGPT, train.py): random offsets into a memory map, each
sequence converted and stacked, once for the inputs and once for the targets. It runs as published, with the
file mapped for each batch, and in a faster variant, mapped once; the goal applies to the faster variant. Both
sides produce contiguous int64 tensors. They take turns, so that a busy machine slows both; the tokens are in
memory. A seek is a new TokenBatches and its first batch.

Reads:   --rounds
Writes:  a temporary file of 100 MB; a table, or JSON, on stdout
Exit codes: 0 both goals are met, 1 one is not
Example: benchmarks/data_order.py --rounds 15
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainyard.training.data.batches import TokenBatches
from trainyard.training.data.token_files import TokenFile, TokenWriter

TOKENS = 50_000_000
SHAPES = ((2048, 8), (256, 16))
STEPS = (1, 10**3, 10**6)
BATCHES = 200
RATIO_GOAL, SEEK_GOAL_SECONDS = 3.0, 0.005
Pair = tuple[torch.Tensor, torch.Tensor]


def nanogpt_batch(data: np.ndarray, length: int, size: int) -> Pair:
    """One batch of the peer from `data`."""
    offsets = torch.randint(len(data) - length, (size,))
    x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in offsets])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in offsets])
    return x, y


def our_batch(batches: TokenBatches, step: int) -> Pair:
    batch = torch.from_numpy(batches.batch(step))
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def new_batches(file: TokenFile, length: int, size: int) -> TokenBatches:
    return TokenBatches(file.open(), sequence_length=length, batch_size=size, seed=42)


def seconds_a_batch(draw: Callable[[int], Pair], first: int) -> float:
    start = time.perf_counter()
    for step in range(first, first + BATCHES):
        draw(step)
    return (time.perf_counter() - start) / BATCHES


def measure(file: TokenFile, length: int, size: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of the three, and the ratios of each round."""
    ours, kept = new_batches(file, length, size), file.open()
    contenders: dict[str, Callable[[int], Pair]] = {
        "ours": lambda step: our_batch(ours, step),
        "nanogpt_mapped_once": lambda _: nanogpt_batch(kept, length, size),
        "nanogpt_as_published": lambda _: nanogpt_batch(
            np.memmap(file.path, dtype=np.uint16, mode="r"), length, size
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, draw in contenders.items():
            seconds[name].append(seconds_a_batch(draw, number * BATCHES))
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["nanogpt_mapped_once"], strict=True)]
    rates = {name: length * size / statistics.median(times) for name, times in seconds.items()}
    return {
        "sequence_length": length,
        "batch_size": size,
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_lowest": round(min(ratios), 2),
        "ratio_highest": round(max(ratios), 2),
        "seek_seconds": {str(step): median_seek(file, length, size, step) for step in STEPS},
    }


def median_seek(file: TokenFile, length: int, size: int, step: int) -> float:
    times = []
    for _ in range(15):
        start = time.perf_counter()
        our_batch(new_batches(file, length, size), step)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times), 6)


def write_tokens(path: Path) -> TokenFile:
    with TokenWriter(path, "uint16") as writer:
        writer.write(np.random.default_rng(0).integers(0, 50_000, TOKENS, dtype=np.uint16))
        return writer.finish()


def line(result: dict[str, Any]) -> str:
    rates = result["tokens_per_second"]
    seeks = ", ".join(f"step {int(step):,} {s * 1e3:.2f} ms" for step, s in result["seek_seconds"].items())
    return (
        f"{result['batch_size']} x {result['sequence_length']}: ours {rates['ours'] / 1e6:,.0f} M tokens/s, "
        f"nanoGPT {rates['nanogpt_mapped_once'] / 1e6:,.0f} (as published "
        f"{rates['nanogpt_as_published'] / 1e6:,.0f}); ratio {result['ratio']} "
        f"({result['ratio_lowest']} to {result['ratio_highest']}); seek {seeks}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a batch is too small for a second thread
    with tempfile.TemporaryDirectory() as folder:
        file = write_tokens(Path(folder) / "tokens.bin")
        results = [measure(file, length, size, args.rounds) for length, size in SHAPES]
    print(json.dumps(results, indent=2) if args.json else "\n".join(map(line, results)))
    met = all(
        r["ratio"] >= RATIO_GOAL and max(r["seek_seconds"].values()) < SEEK_GOAL_SECONDS for r in results
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
