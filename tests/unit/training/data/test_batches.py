"""Batches of windows by step, the shares of processes in them, and the files of their tokens."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import DataError
from trainyard.training.data import token_files
from trainyard.training.data.batches import Permutation, TokenBatches, take_share, window_count
from trainyard.training.data.token_files import TokenFile, TokenWriter, cut_end, read_token_file


def batches(tokens: int, *, sequence_length: int, batch_size: int, seed: int = 1) -> TokenBatches:
    """Batches over tokens that count up, so that a token shows its position."""
    values = np.arange(tokens, dtype=np.uint32)
    return TokenBatches(values, sequence_length=sequence_length, batch_size=batch_size, seed=seed)


def starts_of_epoch(source: TokenBatches, epoch: int) -> list[int]:
    first = epoch * source.steps_per_epoch
    rows = [source.batch(step)[:, 0] for step in range(first, first + source.steps_per_epoch)]
    return [int(start) for start in np.concatenate(rows)]


SHAPES = st.tuples(st.integers(2, 50), st.integers(1, 9), st.integers(1, 400))


@given(SHAPES, st.integers(0, 5), st.integers(0, 2**40))
@settings(max_examples=settings().max_examples // 2)
def test_an_epoch_sees_each_window_once_but_for_the_last_incomplete_batch(
    shape: tuple[int, int, int], epoch: int, seed: int
) -> None:
    length, batch_size, extra = shape
    tokens = length * batch_size + 1 + extra
    source = batches(tokens, sequence_length=length, batch_size=batch_size, seed=seed)
    starts = starts_of_epoch(source, epoch)
    assert len(set(starts)) == len(starts) == source.steps_per_epoch * batch_size
    assert source.windows - len(starts) < batch_size
    assert all(start % length == 0 for start in starts)
    assert max(starts) + length < tokens


def test_a_row_is_a_window_of_one_token_more_than_the_sequence() -> None:
    source = batches(1001, sequence_length=10, batch_size=4)
    batch = source.batch(3)
    assert batch.shape == (4, 11)
    assert batch.dtype == np.int64
    assert np.array_equal(batch, batch[:, :1] + np.arange(11))


def test_a_batch_is_the_callers_own() -> None:
    source = batches(1001, sequence_length=10, batch_size=4)
    source.batch(0)[:] = 0
    assert source.batch(0).any()


def test_too_few_windows_are_refused_with_figures_and_a_fix() -> None:
    with pytest.raises(DataError, match=r"1,000 tokens are 9 sequences of 100, fewer than the 16 .*Add data"):
        batches(1000, sequence_length=100, batch_size=16)


def test_a_window_needs_one_token_after_it() -> None:
    windows = {0: 0, 1: 0, 10: 0, 11: 1, 20: 1, 21: 2}
    assert {tokens: window_count(tokens, 10) for tokens in windows} == windows


def test_seeking_in_a_trillion_tokens_takes_no_memory() -> None:
    tokens = np.broadcast_to(np.zeros(1, np.uint16), 10**12)  # one number, seen a trillion times
    source = TokenBatches(tokens, sequence_length=256, batch_size=16, seed=0)
    assert source.batch(10**12).shape == (16, 257)


SIZES = st.integers(1, 3000)
SEEDS = st.integers(0, 2**63)


def elements(size: int, *, seed: int = 1, epoch: int = 0) -> list[int]:
    result: list[int] = Permutation(size, seed=seed, epoch=epoch)(np.arange(size)).tolist()
    return result


@given(SIZES, SEEDS, st.integers(0, 1000))
@settings(max_examples=settings().max_examples // 2)
def test_every_element_has_exactly_one_place(size: int, seed: int, epoch: int) -> None:
    assert sorted(elements(size, seed=seed, epoch=epoch)) == list(range(size))


@given(st.integers(1, 2**62), st.data())
@settings(max_examples=settings().max_examples // 2)
def test_places_of_any_epoch_length_stay_in_range(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    result = Permutation(size, seed=3, epoch=1)(np.array(places))
    assert len(set(result.tolist())) == len(places)
    assert result.min() >= 0
    assert result.max() < size


@given(SIZES, st.data())
@settings(max_examples=settings().max_examples // 2)
def test_a_place_computed_alone_equals_the_place_in_the_permutation(size: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, size - 1))
    assert Permutation(size, seed=5, epoch=2)(np.array([place]))[0] == elements(size, seed=5, epoch=2)[place]


def test_seed_and_epoch_give_other_orders_and_do_not_run_together() -> None:
    assert len({tuple(elements(100, epoch=epoch)) for epoch in range(200)}) == 200
    assert elements(100, seed=1, epoch=11) != elements(100, seed=11, epoch=1)


def test_the_order_of_earlier_versions_is_kept() -> None:
    """A checkpoint holds a step, so another order would silently resume on other samples."""
    assert elements(10, seed=42) == [7, 8, 3, 2, 0, 1, 5, 6, 9, 4]
    far = Permutation(10**12, seed=42, epoch=7)(np.array([0, 10**12 - 1]))
    assert far.tolist() == [822407622927, 376584807837]


@pytest.mark.parametrize("size", [0, -1, 2**63])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="between one and"):
        Permutation(size, seed=0, epoch=0)


SHARED_LENGTH = 4
WORLDS = st.sampled_from([(1, 1, 6), (2, 1, 3), (1, 2, 3), (2, 3, 1), (3, 2, 1), (6, 1, 1)])
"""Processes, forward passes of each, sequences a forward pass: always six sequences a step."""


def inputs_by_rank(source: TokenBatches, steps: int, world: tuple[int, int, int]) -> list[np.ndarray]:
    """The inputs `[sequence, SHARED_LENGTH]` that each process of `world` trains on in `steps` steps."""
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
    windows = window_count(tokens, SHARED_LENGTH)
    steps = windows // 6
    assert source.steps_per_epoch == steps
    by_rank = inputs_by_rank(source, steps, world)
    places = np.concatenate([part.ravel() for part in by_rank])
    assert len({part.size for part in by_rank}) == 1
    assert np.unique(places).size == places.size == steps * 6 * SHARED_LENGTH
    left_out = tokens - places.size
    # Windows that do not fill a step, tokens that do not fill a window, and the last token, only a target.
    assert left_out == windows % 6 * SHARED_LENGTH + (tokens - windows * SHARED_LENGTH)
    assert places.max() < windows * SHARED_LENGTH


@given(st.integers(6 * SHARED_LENGTH + 1, 500), WORLDS, st.integers(0, 3))
def test_of_token_files_each_token_of_an_epoch_is_read_by_one_process(
    tokens: int, world: tuple[int, int, int], seed: int
) -> None:
    source = TokenBatches(np.arange(tokens), sequence_length=SHARED_LENGTH, batch_size=6, seed=seed)
    assert_an_epoch_is_read_once(source, tokens, world)


def write(path: Path, *parts: list[int], dtype: str = "uint16") -> TokenFile:
    with TokenWriter(path, dtype) as writer:
        for part in parts:
            writer.write(np.array(part, dtype=dtype))
        return writer.finish()


@given(st.lists(st.lists(st.integers(0, 65_535))), st.sampled_from(["uint16", "uint32"]))
def test_written_tokens_are_read(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], dtype: str
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "a.bin"
    file = write(path, *parts, dtype=dtype)
    expected = [token for part in parts for token in part]
    assert file.tokens == len(expected)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    if expected:
        assert file.open().tolist() == expected


def test_tokens_are_stored_little_endian_and_mapped_so_that_they_cannot_be_changed(tmp_path: Path) -> None:
    tokens = write(tmp_path / "a.bin", [1, 258]).open()
    assert (tmp_path / "a.bin").read_bytes() == b"\x01\x00\x02\x01"
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 5


@pytest.mark.parametrize("content", [None, b"\0\0\0", b"\0" * 10])
def test_a_file_that_changed_is_not_opened(tmp_path: Path, content: bytes | None) -> None:
    file = write(tmp_path / "a.bin", [1, 2, 3])
    if content is None:
        file.path.unlink()
    else:
        file.path.write_bytes(content)
    assert not file.is_complete
    with pytest.raises(DataError, match=r"a\.bin: missing, or no longer 3 uint16 tokens.*trainyard prepare"):
        file.open()


def test_a_pretokenised_file_is_read_in_parts_and_a_token_beyond_the_vocabulary_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_CHUNK_TOKENS", 2)
    path = write(tmp_path / "a.bin", [1, 2, 3, 100, 200]).path
    parts = read_token_file(path, dtype="uint16", vocab_size=201)
    assert [part.tolist() for part in parts] == [[1, 2], [3, 100], [200]]
    beyond = r"a\.bin: token 100 at position 3, .*vocab_size, 100\. .*data\.bin_dtype"
    with pytest.raises(DataError, match=beyond):
        list(read_token_file(path, dtype="uint16", vocab_size=100))


def test_the_end_of_the_tokens_is_moved_with_the_starts_of_its_documents(tmp_path: Path) -> None:
    starts = write(tmp_path / "a.documents", [0, 5, 8], dtype="int64")
    file = replace(write(tmp_path / "a.bin", list(range(10))), documents=starts)
    kept, end = cut_end(file, 0.4, tmp_path / "b.bin")
    assert end is not None
    assert kept.open().tolist() == [0, 1, 2, 3, 4, 5]
    assert end.open().tolist() == [6, 7, 8, 9]
    found = [part.documents.open().tolist() for part in (kept, end) if part.documents]
    assert found == [[0, 5], [0, 2]]
    assert all(part.verify() for part in (kept, end))
    assert cut_end(kept, 0.1, tmp_path / "c.bin") == (kept, None)
