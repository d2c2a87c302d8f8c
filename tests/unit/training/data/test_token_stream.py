"""Streams yield every token once an epoch, and from any position the tokens that follow it."""

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.training.data import stream_batches, stream_reading
from trainyard.training.data.document_reader import Piece
from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.stream_batches import StreamBatches, first_tokens
from trainyard.training.data.stream_reading import Chunk, ChunkKey, ChunkOrder, ChunkReader
from trainyard.training.data.streamed_dataset import open_stream
from trainyard.training.data.token_stream import Position, TokenStream, Windows
from trainyard.training.data.training_data import agreed_fingerprint
from trainyard.training.data.vocabulary import ByteVocabulary, TokenArray
from trainyard.training.runtime.world import ALONE, World


class Texts:
    """Texts from lists, one list per file; a position is the number of the next text."""

    def __init__(self, *files: list[str]) -> None:
        self._files = files
        self._texts = [text for file in files for text in file]
        self.readers: set[int] = set()
        self._reading = threading.Lock()

    @property
    def files(self) -> int:
        return len(self._files)

    def part(self, number: int, of: int) -> "Texts":
        return Texts(*self._files[number::of])

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        self.readers.add(threading.get_ident())
        assert self._reading.acquire(blocking=False), "two read at once"
        first = place["row"] if place else 0
        texts = [text.encode() for text in self._texts[first : first + count] if text]
        self._reading.release()
        return texts, {"row": first + count} if first + count < len(self._texts) else None


class CountingVocabulary(ByteVocabulary):
    """A byte vocabulary that counts the texts it encoded."""

    def __init__(self) -> None:
        self.texts = 0

    def token_arrays(self, pieces: Iterator[Piece]) -> Iterator[TokenArray]:
        def count_pieces() -> Iterator[Piece]:
            for piece in pieces:
                self.texts += piece is not None
                yield piece

        return super().token_arrays(count_pieces())


def stream(*files: list[str], vocabulary: ByteVocabulary | None = None) -> TokenStream:
    return TokenStream(Texts(*files), vocabulary or ByteVocabulary(), "the test's texts")


def join_chunks(texts: list[str]) -> list[int]:
    """Return the tokens as token files would hold them."""
    return [token for text in texts if text for token in (*text.encode(), 0)]


def tokens_in_order(files: list[list[str]], tracks: int, rows: int) -> list[int]:
    """One epoch by the rule: the tracks take turns with a chunk of `rows` each, as long as they have one."""
    parts = [[text for file in files[track::tracks] for text in file] for track in range(tracks)]
    chunks = [[part[first : first + rows] for first in range(0, len(part), rows)] for part in parts]
    turns = itertools.zip_longest(*chunks, fillvalue=[])
    return [token for turn in turns for chunk in turn for token in join_chunks(chunk)]


def batches(texts: list[str], *, batch_size: int = 2, shuffled: int = 6, seed: int = 1) -> StreamBatches:
    return StreamBatches(
        stream(texts), sequence_length=5, batch_size=batch_size, seed=seed, shuffled=shuffled
    )


class StreamReader:
    """Reads from a position as several processes do that exchange all their chunks."""

    def __init__(self, files: list[list[str]], start: Position, processes: int) -> None:
        self.vocabularies = [CountingVocabulary() for _ in range(processes)]
        streams = [stream(*files, vocabulary=vocabulary) for vocabulary in self.vocabularies]
        self.readers = [ChunkReader(own, start, rank=rank, of=processes) for rank, own in enumerate(streams)]
        self.order = ChunkOrder("the test's texts", start)

    def windows(self, count: int, length: int) -> Windows:
        while (windows := self.order.take(count, length)) is None:
            rounds = self.order.needed_rounds(count, length)
            chunks = [chunk for reader in self.readers for chunk in reader.read(rounds, threading.Event())]
            for reader in self.readers:
                reader.note_ends(chunks)
            self.order.add(chunks, rounds)
        return windows


TEXT = st.text("abcdefgh", max_size=20)
TEXTS = st.lists(TEXT, min_size=1, max_size=12).filter(any)
FILES = st.lists(st.lists(TEXT, max_size=8), min_size=1, max_size=6).filter(
    lambda files: any(map(any, files))
)
PROCESSES = st.integers(1, 5)
MANY = [f"text number {number} " * (number % 4) for number in range(40)]


@settings(deadline=None)
@given(
    FILES,
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(PROCESSES, st.integers(1, 9), st.integers(1, 2)), min_size=1, max_size=4),
    st.integers(1, 7),
)
def test_windows_hold_every_token_of_every_epoch_once_in_an_order_that_knows_no_processes(
    files: list[list[str]],
    tracks: int,
    rows: int,
    segments: list[tuple[int, int, int]],
    length: int,
) -> None:
    """Each segment resumes from the position of the one before, as JSON, on another number of processes."""
    position = stream(*files).beginning(tracks)
    inputs, targets = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_reading, "CHUNK_ROWS", rows)
        for processes, count, reads in segments:
            reading = StreamReader(files, position, processes)
            for _ in range(reads):
                windows = reading.windows(count, length)
                inputs += windows.tokens[:, :-1].ravel().tolist()
                targets += windows.tokens[:, 1:].ravel().tolist()
            position = Position.from_json(json.loads(json.dumps(windows.end.to_json())))
    epoch = tokens_in_order(files, min(tracks, len(files)), rows)
    expected = epoch * (len(inputs) // len(epoch) + 2)
    assert inputs == expected[: len(inputs)]
    assert targets == expected[1 : len(targets) + 1]
    assert position.epoch == len(inputs) // len(epoch)


@settings(deadline=None, max_examples=30)
@given(PROCESSES, st.integers(1, 4), st.integers(1, 3))
def test_each_process_encodes_its_share_of_the_texts_and_all_together_encode_each_once(
    processes: int, tracks: int, rows: int
) -> None:
    files = [[f"text {number} of file {file}" for number in range(120)] for file in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_reading, "CHUNK_ROWS", rows)
        reading = StreamReader(files, stream(*files).beginning(tracks), processes)
        while sum(vocabulary.texts for vocabulary in reading.vocabularies) < 300:
            end = reading.windows(3, 8).end
    counts = [vocabulary.texts for vocabulary in reading.vocabularies]
    assert end.epoch == 0
    assert max(counts) - min(counts) <= 2 * rows * tracks


@pytest.mark.parametrize(
    ("processes", "tracks", "read"),
    [(1, 4, [4]), (2, 4, [2, 2]), (4, 4, [1] * 4), (3, 4, [4] * 3), (6, 4, [2] * 6), (3, 1, [1] * 3)],
)
def test_a_process_reads_only_the_files_that_it_encodes_some_texts_of(
    processes: int, tracks: int, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reading, "CHUNK_ROWS", 1)
    touched: dict[Texts, None] = {}

    class RecordingTexts(Texts):
        def part(self, number: int, of: int) -> Texts:
            return RecordingTexts(*self._files[number::of])

        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            touched[self] = None
            return super().read(place, count)

    found = []
    for rank in range(processes):
        touched.clear()
        source = TokenStream(RecordingTexts(*[MANY] * tracks), ByteVocabulary(), "n")
        reader = ChunkReader(source, source.beginning(tracks), rank=rank, of=processes)
        reader.read(12, threading.Event())
        found.append(len(touched))
    assert found == read


def test_a_track_waits_at_its_end_until_the_others_are_at_theirs() -> None:
    files = [["short"], [f"text {number}" for number in range(1000)]]
    start = stream(*files).beginning(2)
    reader = ChunkReader(stream(*files), start, rank=0, of=2)
    read = [reader.read(5, threading.Event()) for _ in range(3)]
    assert [len(chunks) for chunks in read] == [1, 0, 0]
    reader.note_ends([Chunk(ChunkKey(0, 15, 1), np.empty(0, np.int32), None)])
    assert [chunk.key for chunk in reader.read(5, threading.Event())] == [ChunkKey(1, 0, 0)]


def test_one_track_writes_the_position_of_runs_from_before_there_were_several() -> None:
    position = Position(places=({"row": 128},), consumed=17, epoch=2)
    assert position.to_json() == {"place": {"row": 128}, "consumed": 17, "epoch": 2}
    assert Position.from_json({"block": 9, **position.to_json()}) == position


def test_a_position_in_more_tracks_than_there_are_files_is_refused() -> None:
    source = batches(MANY)
    source.restore({"block": 3, **Position((None, None, None)).to_json()})
    with pytest.raises(DataError, match=r"the test's texts is 1 files, and .* position is in 3 .*lock file"):
        source.batch(9)


@given(TEXTS, st.integers(0, 100))
def test_the_first_tokens_are_those_of_one_epoch(texts: list[str], count: int) -> None:
    assert first_tokens(stream(texts), count, ALONE).tolist() == join_chunks(texts)[:count]


@pytest.mark.parametrize("processes", [1, 2])
def test_texts_without_tokens_are_refused_instead_of_read_for_ever(processes: int) -> None:
    for files in ([["", ""]], [["", ""], [""] * 300]):
        reading = StreamReader(files, stream(*files).beginning(2), processes)
        with pytest.raises(DataError, match=r"the test's texts: no row has a text\. Check data\.text_field"):
            reading.windows(1, 4)


def test_the_exchanges_per_block_are_few_once_the_size_of_texts_is_known() -> None:
    files = [[f"text number {number} " * (number % 40) for number in range(20_000)]]
    reading = StreamReader(files, stream(*files).beginning(1), 2)
    reading.windows(20, 1000)
    for _ in range(10):
        assert 0 < reading.order.needed_rounds(20, 1000) < 30
        chunks = [
            chunk
            for reader in reading.readers
            for chunk in reader.read(reading.order.needed_rounds(20, 1000), threading.Event())
        ]
        reading.order.add(chunks, reading.order.needed_rounds(20, 1000))
        assert reading.order.take(20, 1000) is not None, "one exchange was not enough"


@settings(max_examples=30)
@given(st.integers(0, 12), st.integers(1, 9), st.integers(1, 3))
def test_a_saved_position_continues_with_the_same_batches(step: int, shuffled: int, batch_size: int) -> None:
    first = batches(MANY, batch_size=batch_size, shuffled=shuffled)
    expected = [first.batch(number) for number in range(step + 6)]
    again = batches(MANY, batch_size=batch_size, shuffled=shuffled)
    for number in range(step):
        again.batch(number)
    position = json.loads(json.dumps(again.position(step)))
    resumed = batches(MANY, batch_size=batch_size, shuffled=shuffled)
    resumed.restore(position)
    for number in range(step, step + 6):
        np.testing.assert_array_equal(resumed.batch(number), expected[number])
    for each in (first, again, resumed):
        each.close()


def test_a_block_is_shuffled_by_seed_and_holds_each_of_its_windows_once() -> None:
    plain = StreamReader([MANY], Position(), 1).windows(12, 5).tokens
    orders = []
    for seed in (1, 1, 2):
        source = batches(MANY, batch_size=2, shuffled=12, seed=seed)
        rows = np.concatenate([source.batch(step) for step in range(6)])
        source.close()
        assert sorted(map(tuple, rows)) == sorted(map(tuple, plain))
        orders.append(rows.tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != plain.tolist()


def test_blocks_are_read_ahead_in_another_thread() -> None:
    texts = Texts(MANY)
    source = StreamBatches(
        TokenStream(texts, ByteVocabulary(), "n"), sequence_length=5, batch_size=2, seed=1, shuffled=4
    )
    for step in range(10):
        source.batch(step)
    source.close()
    assert threading.get_ident() not in texts.readers


def test_steps_that_were_passed_can_be_had_again_from_the_start() -> None:
    source = batches(MANY)
    expected = [source.batch(step).tolist() for step in range(9)]
    assert [source.batch(step).tolist() for step in (8, 0, 4)] == [expected[8], expected[0], expected[4]]
    source.close()


def test_an_error_while_reading_ahead_is_raised_where_the_block_is_needed() -> None:
    class FailingTexts(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place:
                raise DataError("the second chunk is broken")
            return super().read(place, count)

    source = StreamBatches(
        TokenStream(FailingTexts(MANY * 5), ByteVocabulary(), "n"),
        sequence_length=5,
        batch_size=1,
        seed=1,
        shuffled=150,
    )
    source.batch(0)
    with pytest.raises(DataError, match="the second chunk is broken"):
        for step in range(1, 500):
            source.batch(step)
    source.close()


@dataclass(frozen=True)
class WorldWithBrokenPeer(World):
    """A world of two processes; the other process cannot read the data."""

    def gather(self, value: Any) -> list[Any]:
        assert threading.current_thread() is threading.main_thread(), "a collective behind training"
        return [value, (DataError("a row of the other process is broken"), [])]


def test_an_error_in_another_process_is_raised_in_this_one_too() -> None:
    source = batches(MANY)
    source.share_with(WorldWithBrokenPeer(0, 2, 0, None))
    with pytest.raises(DataError, match="a row of the other process is broken"):
        source.batch(0)
    source.close()


def test_closing_abandons_a_running_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_batches, "_END_SECONDS", 0.05)
    reading, released = threading.Event(), threading.Event()

    class EndlessTexts(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place:
                reading.set()
                assert released.wait(30)
            return super().read(place, count)

    source = StreamBatches(
        TokenStream(EndlessTexts(["a"] * 10**4), ByteVocabulary(), "n"),
        sequence_length=5,
        batch_size=1,
        seed=1,
        shuffled=20,
    )
    source.batch(0)
    assert reading.wait(30)
    assert source._reading is not None
    read = source._reading.ahead
    source.close()
    assert source._thread is not None
    assert source._thread.is_alive()
    assert source._thread.daemon, "the end of the process would wait for it"
    released.set()
    assert read is not None
    assert isinstance(read.exception(30), CancelledError)


@dataclass(frozen=True)
class WorldOfTwo(World):
    """A world of two processes; the other process has already answered."""

    other: str | None

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.rank == 0 else [self.other, value]


def test_processes_that_found_other_data_do_not_train_together() -> None:
    data = SimpleNamespace(fingerprint="a" * 64)
    assert agreed_fingerprint(data, WorldOfTwo(0, 2, 0, None, "a" * 64)) == "a" * 64
    with pytest.raises(DataError, match=r"Rank 1 found other data than rank 0 .*b… and aaa"):
        agreed_fingerprint(data, WorldOfTwo(0, 2, 0, None, "b" * 64))


def test_one_process_per_machine_hashes_a_folder_and_the_others_use_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "word " * 100}) + "\n")
    config = DataConfig.model_validate(
        {"hugging_face": {"dataset": str(tmp_path), "validation_split": None}, "sequence_length": 16}
    )
    data, again = (open_stream(config, ModelConfig(name="m")) for _ in range(2))
    assert agreed_fingerprint(data, ALONE) == agreed_fingerprint(data, WorldOfTwo(0, 2, 0, None, None))
    assert len(data.fingerprint) == 64

    def raise_if_called(_path: Path) -> str:
        raise AssertionError

    monkeypatch.setattr("trainyard.training.data.hugging_face.sha256_of_file", raise_if_called)
    assert agreed_fingerprint(again, WorldOfTwo(1, 2, 1, None, "a" * 64)) == "a" * 64
