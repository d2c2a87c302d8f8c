"""The shares of processes: together they read each token of an epoch once, for any number and source."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.training.data.batches import TokenBatches, take_share, window_count
from trainyard.training.data.stream_batches import StreamBatches, StreamPosition, TokenStream
from trainyard.training.data.vocabulary import ByteVocabulary
from trainyard.training.runtime.world import DataShare, World

LENGTH = 4
WORLDS = st.sampled_from([(1, 1, 6), (2, 1, 3), (1, 2, 3), (2, 3, 1), (3, 2, 1), (6, 1, 1)])
"""Processes, forward passes of each, sequences a forward pass: always six sequences a step."""


def inputs_by_rank(source: TokenBatches, steps: int, world: tuple[int, int, int]) -> list[np.ndarray]:
    """The inputs `[sequence, LENGTH]` that each process of `world` trains on in `steps` steps."""
    ranks, passes, size = world
    read: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for step in range(steps):
        batch = source.batch(step)
        for rank in range(ranks):
            own = take_share(batch, size=size, rank=rank, of=ranks)
            assert [len(part) for part in own] == [size] * passes
            read[rank] += [part[:, :-1] for part in own]
    return [np.concatenate(parts) for parts in read]


def assert_an_epoch_is_read_once(source: TokenBatches, tokens: int, world: tuple[int, int, int]) -> None:
    """Each position, whose token is its number, is read by exactly one process, except the epoch's tail."""
    windows = window_count(tokens, LENGTH)
    steps = windows // 6
    assert source.steps_per_epoch == steps
    by_rank = inputs_by_rank(source, steps, world)
    places = np.concatenate([part.ravel() for part in by_rank])
    assert len({part.size for part in by_rank}) == 1
    assert np.unique(places).size == places.size == steps * 6 * LENGTH
    left_out = tokens - places.size
    # Windows that do not fill a step, tokens that do not fill a window, and the last token, only a target.
    assert left_out == windows % 6 * LENGTH + (tokens - windows * LENGTH)
    assert places.max() < windows * LENGTH


@given(st.integers(6 * LENGTH + 1, 500), WORLDS, st.integers(0, 3))
def test_of_token_files_each_token_of_an_epoch_is_read_by_one_process(
    tokens: int, world: tuple[int, int, int], seed: int
) -> None:
    source = TokenBatches(np.arange(tokens), sequence_length=LENGTH, batch_size=6, seed=seed)
    assert_an_epoch_is_read_once(source, tokens, world)


class Numbered:
    """Texts whose bytes count up from 1; a separator, 0, takes the place of the number after each text."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = texts

    def part(self, number: int, of: int) -> "Numbered":
        return Numbered(self.texts[number::of])

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        first = place["row"] if place else 0
        following = {"row": first + count} if first + count < len(self.texts) else None
        return self.texts[first : first + count], following


class Peerless(World):
    """A world of which only one process reads."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=6, max_size=9), WORLDS, st.integers(1, 30), st.integers(1, 9))
def test_every_token_of_a_lane_is_read_in_each_of_its_epochs(
    sizes: list[int], world: tuple[int, int, int], shuffled: int, blocks: int
) -> None:
    ranks, passes, size = world
    bounds = np.cumsum([0, *sizes])
    texts = Numbered([bytes(range(first + 1, last)) for first, last in pairwise(bounds.tolist())])
    steps = max(1, shuffled // 6) * blocks  # complete blocks: within one, the order is shuffled
    for rank in range(ranks):
        source = StreamBatches(
            TokenStream(texts, ByteVocabulary(), "n"),
            sequence_length=LENGTH,
            batch_size=6,
            seed=1,
            shuffled=shuffled,
        )
        groups = DataShare(Peerless(rank, ranks, 0, None))
        own = [source.share(step, groups, size=size)[0] for step in range(steps)]
        source.close()
        assert {tuple(map(len, parts)) for parts in own} == {(size,) * passes}
        read = np.sort(np.concatenate([part[:, :-1].ravel() for parts in own for part in parts]))
        epoch = [token for text in texts.part(rank, ranks).texts for token in (*text, 0)]
        expected = (epoch * (read.size // len(epoch) + 1))[: read.size]
        assert read.tolist() == sorted(expected)
