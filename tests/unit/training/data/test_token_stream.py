"""Streams: every token once an epoch, and from any position exactly what would have come next."""

import json
import threading
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
from trainyard.training.data import stream_batches, token_stream
from trainyard.training.data.hugging_face import StreamPosition
from trainyard.training.data.stream_batches import StreamBatches
from trainyard.training.data.streamed_dataset import open_stream
from trainyard.training.data.token_stream import Position, TokenStream
from trainyard.training.data.training_data import agreed_fingerprint
from trainyard.training.data.vocabulary import ByteVocabulary
from trainyard.training.runtime.world import ALONE, World


class Texts:
    """Texts from a list; the place is the number of the next one."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.readers: set[int] = set()
        self._reading = threading.Lock()

    def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
        self.readers.add(threading.get_ident())
        assert self._reading.acquire(blocking=False), "two read at once"
        first = place["row"] if place else 0
        texts = [text.encode() for text in self._texts[first : first + count] if text]
        self._reading.release()
        return texts, {"row": first + count} if first + count < len(self._texts) else None


def stream(texts: list[str]) -> TokenStream:
    return TokenStream(Texts(texts), ByteVocabulary(), "the test's texts")


def joined(texts: list[str]) -> list[int]:
    """What token files would hold."""
    return [token for text in texts if text for token in (*text.encode(), 0)]


def batches(texts: list[str], *, batch_size: int = 2, shuffled: int = 6, seed: int = 1) -> StreamBatches:
    return StreamBatches(
        stream(texts), sequence_length=5, batch_size=batch_size, seed=seed, shuffled=shuffled
    )


TEXTS = st.lists(st.text("abcdefgh", max_size=20), min_size=1, max_size=12).filter(any)
MANY = [f"text number {number} " * (number % 4) for number in range(40)]


@given(TEXTS, st.integers(1, 4), st.integers(1, 7), st.integers(1, 9), st.integers(1, 5))
def test_consecutive_windows_hold_every_token_of_every_epoch_once_and_in_order(
    texts: list[str], chunk: int, length: int, count: int, reads: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_stream, "_CHUNK_ROWS", chunk)
        position, inputs, targets = Position(), [], []
        for _ in range(reads):
            read = stream(texts).windows(position, count=count, length=length)
            inputs += read.tokens[:, :-1].ravel().tolist()
            targets += read.tokens[:, 1:].ravel().tolist()
            position = Position(**json.loads(json.dumps(read.end.to_json())))
    epoch = joined(texts)
    expected = epoch * (reads * count * length // len(epoch) + 2)
    assert inputs == expected[: len(inputs)]
    assert targets == expected[1 : len(targets) + 1]
    assert position.epoch == len(inputs) // len(epoch)


@given(TEXTS, st.integers(0, 100))
def test_the_first_tokens_are_those_of_one_epoch(texts: list[str], count: int) -> None:
    assert stream(texts).first_tokens(count).tolist() == joined(texts)[:count]


def test_texts_without_tokens_are_refused_instead_of_read_for_ever() -> None:
    with pytest.raises(DataError, match=r"the test's texts: no row has a text\. Check data\.text_field"):
        stream(["", ""]).windows(Position(), count=1, length=4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 12), st.integers(1, 9), st.integers(1, 3))
def test_a_saved_position_goes_on_with_the_very_batches(step: int, shuffled: int, batch_size: int) -> None:
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
    plain = stream(MANY).windows(Position(), count=12, length=5).tokens
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


def test_what_goes_wrong_while_reading_ahead_is_raised_where_it_is_needed() -> None:
    class Failing(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place:
                raise DataError("the second chunk is broken")
            return super().read(place, count)

    source = StreamBatches(
        TokenStream(Failing(MANY * 5), ByteVocabulary(), "n"),
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


def test_closing_gives_up_what_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_batches, "_END_SECONDS", 0.05)
    reading, released = threading.Event(), threading.Event()

    class Endless(Texts):
        def read(self, place: StreamPosition, count: int) -> tuple[list[bytes], StreamPosition]:
            if place:
                reading.set()
                assert released.wait(30)
            return super().read(place, count)

    source = StreamBatches(
        TokenStream(Endless(["a"] * 10**4), ByteVocabulary(), "n"),
        sequence_length=5,
        batch_size=1,
        seed=1,
        shuffled=20,
    )
    source.batch(0)
    assert reading.wait(30)
    _, block = source._next or (0, None)
    source.close()
    assert source._reader is not None
    assert source._reader.is_alive()
    assert source._reader.daemon, "the end of the process would wait for it"
    released.set()
    assert block is not None
    assert isinstance(block.exception(30), CancelledError)


@dataclass(frozen=True)
class Two(World):
    """Two processes, of which the other is there already with its answer."""

    other: str | None

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.rank == 0 else [self.other, value]


def test_processes_that_found_other_data_do_not_train_together() -> None:
    data = SimpleNamespace(fingerprint="a" * 64)
    assert agreed_fingerprint(data, Two(0, 2, 0, None, "a" * 64)) == "a" * 64
    with pytest.raises(DataError, match=r"Rank 1 found other data than rank 0 .*b… and aaa"):
        agreed_fingerprint(data, Two(0, 2, 0, None, "b" * 64))


def test_one_process_a_machine_reads_a_folder_whole_and_the_others_take_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "word " * 100}) + "\n")
    config = DataConfig.model_validate(
        {"hugging_face": {"dataset": str(tmp_path), "validation_split": None}, "sequence_length": 16}
    )
    data, again = (open_stream(config, ModelConfig(name="m")) for _ in range(2))
    assert agreed_fingerprint(data, ALONE) == agreed_fingerprint(data, Two(0, 2, 0, None, None))
    assert len(data.fingerprint) == 64

    def never(_path: Path) -> str:
        raise AssertionError

    monkeypatch.setattr("trainyard.training.data.hugging_face.sha256_of_file", never)
    assert agreed_fingerprint(again, Two(1, 2, 1, None, "a" * 64)) == "a" * 64
