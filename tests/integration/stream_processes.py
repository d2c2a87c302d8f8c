"""Draw batches of a stream in processes that share the work, one group of processes after another.

Usage: stream_processes.py FOLDER, which holds `texts/` and `groups.json`, a list of objects with `name`,
`processes`, `interleaved`, `first`, `last` (steps) and `after` (the group whose position is resumed from, or
null). Each process writes `NAME-RANK.json`: SHA-256 of its batches, number of texts that it encoded, last
position; and SHA-256 and texts of the first tokens, as validation reads them.
"""

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # noqa: F401 - else each process would import it
import torch.distributed as dist

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.stream_batches import first_tokens
from trainyard.training.data.streamed_dataset import open_stream
from trainyard.training.data.token_stream import TokenStream
from trainyard.training.data.vocabulary import ByteVocabulary, TokenArray
from trainyard.training.runtime.world import ALONE, World

LENGTH, GLOBAL_BATCH, SHUFFLED = 256, 12, 24
BEGINNINGS = (1, 50_000, 10**7)


class Counting(ByteVocabulary):
    """The vocabulary of bytes, which counts the texts that it encodes."""

    texts = 0

    def token_arrays(self, pieces: Iterator[Piece]) -> Iterator[TokenArray]:
        def counted() -> Iterator[Piece]:
            for piece in pieces:
                Counting.texts += piece is not None
                yield piece

        return super().token_arrays(counted())


def draw(folder: Path, group: dict[str, Any], rank: int) -> None:
    world, size = ALONE, group["processes"]
    if size > 1:
        meeting = f"file://{folder}/{group['name']}.rendezvous"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        world = World(rank, size, rank, dist.new_group(backend="gloo"))
    data = {
        "hugging_face": {
            "dataset": f"{folder}/texts",
            "validation_split": None,
            "shuffled_sequences": SHUFFLED,
            "interleaved_files": group["interleaved"],
        },
        "sequence_length": LENGTH,
        "packing": "separate",
    }
    opened = open_stream(DataConfig.model_validate(data), ModelConfig(name="m"))
    batches = opened.batches(sequence_length=LENGTH, batch_size=GLOBAL_BATCH, seed=3)
    batches.share_with(world)
    if group["after"] is not None:
        batches.restore(json.loads((folder / f"{group['after']}-0.json").read_text())["position"])
    Counting.texts = 0
    steps = range(group["first"], group["last"])
    digests = [hashlib.sha256(batches.batch(step).tobytes()).hexdigest() for step in steps]
    batches.close()
    found = {"digests": digests, "texts": Counting.texts, "position": batches.position(group["last"])}
    found |= first_of(opened.train, world)
    (folder / f"{group['name']}-{rank}.json").write_text(json.dumps(found))
    world.wait()


def first_of(stream: TokenStream, world: World) -> dict[str, Any]:
    """The first tokens of an epoch, fewer than all and more, and the number of texts encoded for them."""
    Counting.texts = 0
    beginnings = [first_tokens(stream, count, world) for count in BEGINNINGS]
    digests = [hashlib.sha256(tokens.tobytes()).hexdigest() for tokens in beginnings]
    return {"beginnings": digests, "sizes": [tokens.size for tokens in beginnings], "read": Counting.texts}


def main(folder: Path) -> int:
    fork = multiprocessing.get_context("fork")  # so that the libraries are imported once
    for group in json.loads((folder / "groups.json").read_text()):
        ranks = range(group["processes"])
        processes = [fork.Process(target=draw, args=(folder, group, rank)) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            return 1
    return 0


if __name__ == "__main__":
    from trainyard.training.data import vocabulary

    vocabulary.ByteVocabulary = Counting  # type: ignore[misc]
    sys.exit(main(Path(sys.argv[1])))
