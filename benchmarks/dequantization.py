#!/usr/bin/env python3
"""Convert GGUF blocks to float32: the native kernels, by path and tile, against gguf's own NumPy code.

All take turns on the same random blocks, whose scales are finite, so that NaNs slow no side. The results are
compared bit by bit before the timing. gguf always allocates new memory, whose first use costs more than the
arithmetic; the kernels are timed with new memory and with reused memory. Goals for the fastest path with the
default tile: 1.5 times gguf's speed with new memory, 3 times with reused memory.

Reads:   native/build, or TRAINYARD_NATIVE_LIBRARY (make native builds it)
Writes:  a table, or JSON, on stdout
Exit codes: 0 every type meets both goals, 1 one does not, 2 there is no native library
Example: benchmarks/dequantization.py --rounds 5
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gguf
import numpy as np

from trainyard.training.weights.native_dequantization import (
    NATIVE_TYPES,
    Instructions,
    dequantize,
    kernels,
)

ROW, ROWS = 4096, 2048
TILES = (256, 1024, 4096, 16384, 65536)
TILE = 4096
NEW_GOAL, PLACE_GOAL = 1.5, 3.0
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
"""Offsets of a block's half-precision scales, if not in its first four bytes."""
Run = Callable[[], Any]


def blocks_of(name: str) -> np.ndarray:
    """Random rows of a type, every scale a finite half."""
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (ROWS * ROW // elements, size), dtype=np.uint8)
    for at in HALVES.get(name, (0,) if size == 2 else (0, 2)):
        blocks[:, at + 1] &= 0xBB
    return blocks.reshape(ROWS, -1)


def contenders(name: str, data: np.ndarray, paths: list[Instructions]) -> dict[str, Run]:
    kind, used = gguf.GGMLQuantizationType[name], np.zeros((ROWS, ROW), np.float32)
    runs: dict[str, Run] = {"gguf": partial(gguf.quants.dequantize, data, kind)}
    for path in paths:
        runs[path.name] = partial(dequantize, data, name, tile_bytes=TILE, instructions=path)
        for tile in TILES:
            runs[f"{path.name} {tile} in place"] = partial(
                dequantize, data, name, tile_bytes=tile, instructions=path, out=used
            )
    runs["2 threads"] = partial(dequantize, data, name, tile_bytes=TILE, threads=2)
    return runs


def seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(name: str, rounds: int, paths: list[Instructions]) -> dict[str, Any]:
    """Elements per second of each contender and its ratio to gguf, medians over the rounds."""
    data = blocks_of(name)
    runs = contenders(name, data, paths)
    right = runs["gguf"]().view(np.uint32)
    for label, run in runs.items():
        assert np.array_equal(run().view(np.uint32), right), f"{name}: {label} has other bits"
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            times[label].append(seconds(run))
    ratios = {k: [g / t for g, t in zip(times["gguf"], ts, strict=True)] for k, ts in times.items()}
    return {
        "type": name,
        "elements_per_second": {k: round(ROWS * ROW / statistics.median(ts)) for k, ts in times.items()},
        "ratio": {k: round(statistics.median(r), 2) for k, r in ratios.items()},
        "ratio_lowest": {k: round(min(r), 2) for k, r in ratios.items()},
    }


def table(result: dict[str, Any], paths: list[Instructions]) -> str:
    rates, ratios = result["elements_per_second"], result["ratio"]
    lines = [f"{result['type']:<5} gguf {rates['gguf'] / 1e6:6,.0f} M elements/s"]
    for path in paths:
        tiles = "  ".join(f"{rates[f'{path.name} {tile} in place'] / 1e6:5,.0f}" for tile in TILES)
        lowest, place = result["ratio_lowest"][path.name], ratios[f"{path.name} {TILE} in place"]
        lines.append(
            f"      {path.name:<6} {rates[path.name] / 1e6:5,.0f} M, {ratios[path.name]:.2f} times gguf "
            f"(lowest {lowest:.2f}); in place {place:.2f} times, by tile {tiles}"
        )
    lines.append(f"      2 threads, new memory: {ratios['2 threads']:.2f} times gguf")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--types", nargs="+", choices=NATIVE_TYPES, default=NATIVE_TYPES)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (library := kernels()) is None:
        print("There is no native library: make native", file=sys.stderr)
        return 2
    best = Instructions(library.trainyard_best_instructions())
    paths = sorted({Instructions.SCALAR, best}, reverse=True)
    if not args.json:
        print(f"{ROWS} rows of {ROW}; tile {TILE}; in place with tiles of {', '.join(map(str, TILES))} bytes")
    results = []
    for name in args.types:
        results.append(measure(name, args.rounds, paths))
        if not args.json:
            print(table(results[-1], paths), flush=True)
    if args.json:
        print(json.dumps(results, indent=2))
    return 0 if all(meets(result["ratio"], best) for result in results) else 1


def meets(ratios: dict[str, float], best: Instructions) -> bool:
    return ratios[best.name] >= NEW_GOAL and ratios[f"{best.name} {TILE} in place"] >= PLACE_GOAL


if __name__ == "__main__":
    sys.exit(main())
