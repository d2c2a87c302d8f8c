"""Streams yield every token once an epoch, and from any position the tokens that follow it."""

import itertools
import json
import threading
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.config.schema import DataConfig, ModelConfig
from trainyard.errors import DataError
from trainyard.training.data import stream_batches
from trainyard.training.data.hugging_face import TextStream, open_stream
from trainyard.training.data.stream_batches import Position, StreamBatches, StreamPosition, TokenStream
from trainyard.training.data.training_data import agreed_fingerprint
from trainyard.training.data.vocabulary import ByteVocabulary
from trainyard.training.runtime.world import ALONE, DataShare, World

ONE = DataShare(ALONE)


class Texts(TextStream):
    """Texts from a list; a position is the number of the next text, and a lane is every nth text."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.readers: set[int] = set()
        self.lanes: list[tuple[int, int]] = []

    def part(self, number: int, of: int) -> "Texts":
        lane = type(self)(self._texts[number::of])
        lane.readers, lane.lanes = self.readers, self.lanes
        self.lanes.append((number, of))
        return lane

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        self.readers.add(threading.get_ident())
        first = place["row"] if place else 0
        texts = [text.encode() for text in self._texts[first : first + count] if text]
        return texts, {"row": first + count} if first + count < len(self._texts) else None


def stream(texts: list[str]) -> TokenStream:
    return TokenStream(Texts(texts), ByteVocabulary(), "the test's texts")


def join_texts(texts: list[str]) -> list[int]:
    """Return the tokens as token files would hold them."""
    return [token for text in texts if text for token in (*text.encode(), 0)]


def batches(
    texts: list[str], *, batch_size: int = 2, shuffled: int = 6, seed: int = 1, length: int = 5
) -> StreamBatches:
    return StreamBatches(
        stream(texts), sequence_length=length, batch_size=batch_size, seed=seed, shuffled=shuffled
    )


def rows_of(source: StreamBatches, step: int, groups: DataShare = ONE) -> np.ndarray:
    """The rows that a process trains on at a step."""
    return np.concatenate(source.share(step, groups, size=1)[0])


class Processes:
    """The batches of a world of `size` processes, which are called one after the other."""

    def __init__(self, texts: list[str], size: int, *, batch_size: int = 12, shuffled: int = 24) -> None:
        worlds = [CountingWorld(rank, size, 0, None) for rank in range(size)]
        self.groups = [DataShare(world) for world in worlds]
        self.sources = [batches(texts, batch_size=batch_size, shuffled=shuffled) for _ in worlds]

    def batch(self, step: int) -> np.ndarray:
        """The global batch: the rows of each process."""
        both = zip(self.sources, self.groups, strict=True)
        return np.concatenate([rows_of(source, step, groups) for source, groups in both])

    def positions(self, step: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(json.dumps([one.position(step) for one in self.sources]))
        return found

    def restore(self, positions: list[dict[str, Any]]) -> None:
        for source in self.sources:
            source.restore(positions)

    def close(self) -> None:
        for source in self.sources:
            source.close()


class CountingWorld(World):
    """A world whose other processes found as many targets as this one."""

    def gather(self, value: Any) -> list[Any]:
        error, _, counts = value
        return [(error, rank, counts) for rank in range(self.size)]


TEXT = st.text("abcdefgh", max_size=20)
TEXTS = st.lists(TEXT, min_size=1, max_size=12).filter(any)
MANY = [f"text number {number} " * (number % 4) for number in range(40)]


@settings(deadline=None)
@given(
    TEXTS,
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2)), max_size=4),
    st.integers(1, 7),
)
def test_the_windows_of_a_lane_hold_every_token_of_every_epoch_once(
    texts: list[str], rows: int, segments: list[tuple[int, int]], length: int
) -> None:
    """Each segment resumes from the position of the one before, as JSON."""
    position = Position()
    inputs: list[int] = []
    targets: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_batches, "CHUNK_ROWS", rows)
        for count, reads in segments:
            lane = stream(texts).lane(0, 1, position)
            for _ in range(reads):
                windows = lane.windows(count, length, Event())
                inputs += windows[:, :-1].ravel().tolist()
                targets += windows[:, 1:].ravel().tolist()
            position = Position(**json.loads(json.dumps(asdict(lane.position))))
    epoch = join_texts(texts)
    expected = epoch * (len(inputs) // len(epoch) + 2)
    assert inputs == expected[: len(inputs)]
    assert targets == expected[1 : len(targets) + 1]
    assert position.epoch == len(inputs) // len(epoch)


def test_a_resumed_run_draws_the_same_batches_on_any_number_of_processes() -> None:
    texts = [f"text number {number} " * (number % 7) for number in range(100)]
    wrong = []
    for started_with, steps in itertools.product((1, 2, 3, 4, 6), (1, 2, 3)):  # a block has two steps
        reference, running = Processes(texts, started_with), Processes(texts, started_with)
        for turn, size in enumerate((started_with, 4, 1, 3, 2, 6)):
            wrong += [
                (started_with, steps, size, step)
                for step in range(turn * steps, (turn + 1) * steps)
                if running.batch(step).tolist() != reference.batch(step).tolist()
            ]
            positions = running.positions((turn + 1) * steps)
            running.close()
            running = Processes(texts, size)
            running.restore(positions)
            running.restore(running.positions((turn + 1) * steps))  # saved before its first step
        reference.close()
        running.close()
    assert wrong == []


def test_a_process_reads_its_own_lane_alone() -> None:
    source, texts = batches(MANY, batch_size=4), Texts(MANY)
    source._stream = TokenStream(texts, ByteVocabulary(), "n")
    rows_of(source, 0, DataShare(CountingWorld(1, 4, 0, None)))
    source.close()
    assert texts.lanes == [(1, 4)]
    assert threading.get_ident() not in texts.readers, "blocks are read ahead in another thread"


def test_the_targets_of_a_step_are_those_of_all_groups_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one_group = World(0, 2, 0, None)  # whose processes have the same rows
    monkeypatch.setattr(World, "gather", lambda world, value: [value] * world.size)
    for share, passes in (
        (DataShare(CountingWorld(0, 2, 0, None)), 1),
        (DataShare(one_group, processes=2), 2),
    ):
        source = batches(MANY, batch_size=4)
        own, targets = source.share(0, share, size=2)
        source.close()
        assert [len(part) for part in own] == [2] * passes
        assert targets == 4 * 5


@given(TEXTS, st.integers(0, 100))
def test_the_first_tokens_are_those_of_one_epoch(texts: list[str], count: int) -> None:
    assert stream(texts).first_tokens(count).tolist() == join_texts(texts)[:count]


def test_texts_without_tokens_are_refused_instead_of_read_for_ever() -> None:
    for texts in (["", ""], [""] * 300):
        with pytest.raises(DataError, match=r"the test's texts: no row has a text\. Check data\.text_field"):
            stream(texts).lane(0, 1, Position()).windows(1, 4, Event())


def test_a_block_is_shuffled_by_seed_and_holds_each_of_its_windows_once() -> None:
    plain = stream(MANY).lane(0, 1, Position()).windows(12, 5, Event())
    orders = []
    for seed in (1, 1, 2):
        source = batches(MANY, batch_size=2, shuffled=12, seed=seed)
        rows = np.concatenate([rows_of(source, step) for step in range(6)])
        source.close()
        assert sorted(map(tuple, rows)) == sorted(map(tuple, plain))
        orders.append(rows.tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != plain.tolist()


def test_steps_that_were_passed_can_be_had_again_from_the_start() -> None:
    source = batches(MANY)
    expected = [rows_of(source, step).tolist() for step in range(9)]
    assert [rows_of(source, step).tolist() for step in (8, 0, 4)] == [expected[8], expected[0], expected[4]]
    source.close()


def test_an_error_while_reading_ahead_is_raised_where_the_block_is_needed() -> None:
    class FailingTexts(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place:
                raise DataError("the second chunk is broken")
            return super().read(place, count)

    source = batches(MANY, batch_size=1, shuffled=150)
    source._stream = TokenStream(FailingTexts(MANY * 5), ByteVocabulary(), "n")
    rows_of(source, 0)
    with pytest.raises(DataError, match="the second chunk is broken"):
        for step in range(1, 500):
            rows_of(source, step)
    source.close()


class WorldWithBrokenPeer(World):
    """A world of two processes; the other process cannot read the data."""

    def gather(self, value: Any) -> list[Any]:
        assert threading.current_thread() is threading.main_thread(), "a collective behind training"
        return [value, (DataError("a row of the other process is broken"), 1, None)]


def test_an_error_in_another_process_is_raised_in_this_one_too() -> None:
    source = batches(MANY)
    with pytest.raises(DataError, match="a row of the other process is broken"):
        rows_of(source, 0, DataShare(WorldWithBrokenPeer(0, 2, 0, None)))
    source.close()


def test_closing_abandons_a_running_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_batches, "_END_SECONDS", 0.05)
    reading, released = threading.Event(), threading.Event()

    class EndlessTexts(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place and place["row"] >= 192:
                reading.set()
                assert released.wait(30)
            return super().read(place, count)

    source = batches(MANY, batch_size=1, shuffled=60)  # a block needs more than two chunks of 128 tokens
    source._stream = TokenStream(EndlessTexts(["a"] * 10**4), ByteVocabulary(), "n")
    rows_of(source, 0)
    assert reading.wait(30)
    read = source._ahead
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
    data: Any = SimpleNamespace(fingerprint="a" * 64)
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
