"""The shares of processes: together they read each token of an epoch once, for any number and source."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.data.batches import TokenBatches, take_share, window_count

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
