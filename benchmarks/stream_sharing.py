#!/usr/bin/env python3
"""Compare processes that share the encoding of a stream with processes that each encode all of it.

Both draw the same batches of the same folder of JSON lines, with a byte-pair tokenizer that is trained on
them first. `shared` exchanges the tokens over gloo; in `alone` every process does all the work. Sides take
turns; a round is the time from the second batch to the last, on the slowest process.

Reads:   --processes, --rounds, --steps, --rows
Writes:  temporary files; three lines on stdout
Exit codes: 0 measured
Example:    benchmarks/stream_sharing.py --processes 2 --rounds 5
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import Queue
from pathlib import Path

SIDES = ("shared", "alone")
LENGTH, GLOBAL_BATCH, VOCABULARY = 1024, 16, 8192


def write_texts(folder: Path, rows: int) -> None:
    """Write `rows` rows of text in four files: functions of Python's standard library, numbered."""
    import sysconfig

    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    pieces = [piece for source in sources for piece in source.read_text("utf-8", "replace").split("\n\n\n")]
    (folder / "texts").mkdir()
    for file in range(4):
        own = (f"{row}: {pieces[row % len(pieces)]}" for row in range(file, rows, 4))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in own)
        (folder / "texts" / f"{file}.jsonl").write_text(lines)


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train([str(path) for path in sorted((folder / "texts").iterdir())[:1]], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def draw(folder: Path, side: str, rank: int, size: int, steps: int, answers: "Queue[float]") -> None:
    """Draw `steps` batches in one of `size` processes and send back the seconds that it took."""
    import torch.distributed as dist

    from trainyard.config.schema import DataConfig, ModelConfig
    from trainyard.training.data.streamed_dataset import open_stream
    from trainyard.training.runtime.world import ALONE, World

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    world = World(rank, size, rank, dist.new_group(backend="gloo"))
    source = {"dataset": f"{folder}/texts", "validation_split": None}
    data = DataConfig.model_validate({"hugging_face": source, "sequence_length": LENGTH})
    architecture = {"vocab_size": VOCABULARY}
    model = ModelConfig.model_validate(
        {"name": "m", "tokenizer": str(folder / "tokenizer.json"), "architecture": architecture}
    )
    opened = open_stream(data, model)
    batches = opened.batches(sequence_length=LENGTH, batch_size=GLOBAL_BATCH, seed=1)
    batches.share_with(world if side == "shared" else ALONE)
    batches.batch(0)
    world.wait()
    begun = time.perf_counter()
    for step in range(1, steps):
        batches.batch(step)
    world.wait()
    answers.put(time.perf_counter() - begun)
    batches.close()


def seconds(folder: Path, side: str, size: int, steps: int) -> float:
    """The time that the slowest of `size` processes took."""
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    (folder / "rendezvous").unlink(missing_ok=True)
    arguments = [(folder, side, rank, size, steps, answers) for rank in range(size)]
    processes = [fork.Process(target=draw, args=own) for own in arguments]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return max(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--rows", type=int, default=40_000)
    args = parser.parse_args(argv)
    # One thread per process encodes, so that processes and not threads of the tokenizer are compared.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HF_HOME"] = f"{folder}/home"
        write_texts(folder, args.rows)
        write_tokenizer(folder)
        import torch.distributed  # noqa: F401 - once, before the processes are forked

        for number in range(args.rounds):
            for side in SIDES if number % 2 == 0 else reversed(SIDES):
                times[side].append(seconds(folder, side, args.processes, args.steps))
    tokens = (args.steps - 1) * GLOBAL_BATCH * LENGTH
    for side in SIDES:
        rates = [tokens / each / 1e3 for each in times[side]]
        print(
            f"{side:8} {statistics.median(rates):8,.0f} k tokens/s  ({min(rates):,.0f} to {max(rates):,.0f})"
        )
    ratios = [alone / shared for shared, alone in zip(*(times[side] for side in SIDES), strict=True)]
    print(f"ratio    {statistics.median(ratios):8.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
