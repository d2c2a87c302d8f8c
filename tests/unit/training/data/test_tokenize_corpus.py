"""Preparing data: the tokens, when they are prepared again, and the errors for bad input."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from trainyard.config.load import dump_yaml
from trainyard.config.schema import ArchitectureConfig, Config, DataConfig, ModelConfig
from trainyard.errors import ConfigError, DataError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.progress import UNSEEN, Progress
from trainyard.training.data import token_files
from trainyard.training.data.batches import plain_ids
from trainyard.training.data.hugging_face import open_stream
from trainyard.training.data.preparation import Preparation, plan_preparation
from trainyard.training.data.token_files import PreparedData
from trainyard.training.data.tokenize_corpus import find_prepared_data, prepare_data, prepared_data_of

LONG = "a line of text that is long enough\n" * 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some text in `train/`."""
    for name in ("b.txt", "a.md", "c/d.py"):
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n{LONG}")
    return tmp_path


def model(vocab_size: int = 256) -> ModelConfig:
    return ModelConfig(name="m", architecture=ArchitectureConfig(vocab_size=vocab_size))


def config(folder: Path, **changes: object) -> DataConfig:
    values = {
        "train_path": str(folder / "train"),
        "prepared_directory": str(folder / "prepared"),
        "sequence_length": 16,
        "validation_fraction": 0.0,
    }
    return DataConfig.model_validate(values | changes)


def prepare(folder: Path, vocab_size: int = 256, **changes: object) -> PreparedData:
    return prepare_data(config(folder, **changes), model(vocab_size))


def text(prepared: PreparedData) -> bytes:
    return prepared.train.open().tobytes()


def test_files_are_joined_in_order_of_path_with_a_zero_after_each(folder: Path) -> None:
    prepared = prepare(folder)
    assert text(prepared) == "".join(f"{name}\n{LONG}\0" for name in ("a.md", "b.txt", "c/d.py")).encode()
    assert (prepared.train.dtype, prepared.train_files, prepared.validation) == ("uint8", 3, None)


def test_text_and_tokens_together_take_the_wider_type(folder: Path) -> None:
    np.array([300, 301], "<u2").tofile(folder / "train" / "z.bin")
    prepared = prepare(folder, vocab_size=400)
    assert prepared.train.dtype == "uint16"
    assert prepared.train.open()[-3:].tolist() == [0, 300, 301]


def test_a_token_file_is_copied_and_prepared_again_when_it_changed(folder: Path) -> None:
    path = folder / "tokens.bin"
    np.arange(200, dtype="<u2").tofile(path)
    prepared = prepare(folder, train_path=str(path), validation_path=str(folder / "train"))
    assert prepared.train.open().tolist() == list(range(200))
    assert prepared.validation is not None
    assert (prepared.train.dtype, prepared.validation.dtype) == ("uint16", "uint8")
    path.write_bytes(b"\x01\0" * 100)
    again = prepare(folder, train_path=str(path), validation_path=str(folder / "train"))
    assert not again.reused
    assert again.train.tokens == 100


def test_a_megatron_dataset_is_refused_with_what_to_do(folder: Path) -> None:
    for name in ("corpus.bin", "corpus.idx"):
        (folder / "train" / name).write_bytes(b"\1\0\0\0" * 50)
    with pytest.raises(DataError, match=r"corpus\.bin: a Megatron dataset.* set data\.bin_dtype"):
        prepare(folder)
    (folder / "train" / "corpus.idx").unlink()
    assert prepare(folder, bin_dtype="uint32").train.tokens > 50


def test_the_second_time_nothing_is_written(folder: Path) -> None:
    first = prepare(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "prepared").rglob("*")}
    second = prepare(folder)
    assert (first.reused, second.reused) == (False, True)
    assert second.fingerprint == first.fingerprint
    assert second.skipped == first.skipped
    assert {path: path.stat().st_mtime_ns for path in (folder / "prepared").rglob("*")} == before


def test_the_fingerprint_is_of_the_tokens_not_of_the_place(folder: Path) -> None:
    shutil.copytree(folder / "train", folder / "elsewhere" / "train")
    here, there = prepare(folder), prepare(folder / "elsewhere")
    assert here.fingerprint == there.fingerprint
    assert here.train.path != there.train.path


def test_changed_data_is_prepared_again(folder: Path) -> None:
    train, fingerprints = folder / "train", {prepare(folder).fingerprint}
    changes: dict[str, Callable[[], object]] = {
        "content": lambda: (train / "b.txt").write_text(LONG.upper() + "longer"),
        "name": lambda: (train / "b.txt").rename(train / "0.txt"),
        "more": lambda: (train / "new.txt").write_text("new"),
        "less": lambda: (train / "0.txt").unlink(),
    }
    for name, change in changes.items():
        change()
        after = prepare(folder)
        assert not after.reused, name
        assert after.fingerprint not in fingerprints, name
        fingerprints.add(after.fingerprint)


def test_torn_tokens_are_never_trusted(folder: Path) -> None:
    complete = prepare(folder)
    tokens, directory = complete.train.path, complete.train.path.parent
    index = directory / "index.json"
    damages: dict[str, Callable[[], object]] = {
        "no index": index.unlink,
        "torn index": lambda: index.write_bytes(index.read_bytes()[:-10]),
        "other index": lambda: index.write_text(index.read_text().replace('"schema": 4', '"schema": 99')),
        "short tokens": lambda: tokens.write_bytes(b"torn"),
        "no tokens": tokens.unlink,
    }
    for name, damage in damages.items():
        damage()
        again = prepare(folder)
        assert not again.reused, name
        assert again.fingerprint == complete.fingerprint
        assert text(again) == text(complete)
        assert [path.name for path in (folder / "prepared").iterdir()] == [directory.name]


def overwrite(path: Path) -> None:
    """Write other bytes of the same size, with the same time of modification."""
    status = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


@pytest.fixture(params=["small", "large"])
def file_size_limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of the test count as small, or as large."""
    if request.param == "large":
        monkeypatch.setattr(token_files, "LARGE_BYTES", 0)


@pytest.mark.usefixtures("file_size_limit")
@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_prepared_tokens_with_other_bytes_are_prepared_anew(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    validation = str(folder / "train" / "c")
    complete = prepare(folder, validation_path=validation)
    path = complete.train.path.with_name(name)
    content = path.read_bytes()
    overwrite(path)
    again = prepare(folder, validation_path=validation)
    assert not again.reused
    assert path.read_bytes() == content
    assert again.fingerprint == complete.fingerprint
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{path}: its content has changed since it was prepared" in caplog.text
    assert prepare(folder, validation_path=validation).reused


def test_small_prepared_tokens_are_hashed_each_time_and_large_ones_when_written_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prepare(folder).train.path
    hashed: list[Path] = []

    def record_hash(path: Path, progress: Progress = UNSEEN) -> str:
        hashed.append(path)
        return sha256_of_file(path, progress)

    monkeypatch.setattr(token_files, "sha256_of_file", record_hash)
    assert prepare(folder).reused
    assert hashed == [path]
    monkeypatch.setattr(token_files, "LARGE_BYTES", 0)
    assert prepare(folder).reused
    assert hashed == [path]
    path.write_bytes(path.read_bytes())
    assert prepare(folder).reused
    assert hashed == [path, path]


def test_prepared_tokens_below_the_data_are_not_data(folder: Path) -> None:
    (folder / "train" / "0.txt").write_text("x")
    inside = str(folder / "train" / "prepared")
    first = prepare(folder, train_path=str(folder), prepared_directory=inside)
    (folder / "train" / "0.txt").write_text("y")  # makes it prepare again
    second = prepare(folder, train_path=str(folder), prepared_directory=inside)
    assert first.train.tokens == second.train.tokens
    assert not second.reused


def plan(folder: Path, vocab_size: int = 256, **changes: object) -> Preparation:
    return plan_preparation(config(folder, **changes), model(vocab_size))


def test_what_affects_the_tokens_decides_the_folder(folder: Path) -> None:
    before = plan(folder)
    assert not (folder / "prepared").exists()
    assert before.directory == prepare(folder).train.path.parent
    for change in ({"text_field": "body"}, {"bin_dtype": "uint32"}, {"validation_fraction": 0.5}):
        assert plan(folder, **change).directory != before.directory
    assert plan(folder, 400).directory != before.directory, "tokens are checked against the vocabulary"
    renamed = ModelConfig(name="another", architecture=ArchitectureConfig(num_layers=3))
    assert plan_preparation(config(folder, sequence_length=32), renamed).directory == before.directory
    os.utime(folder / "train" / "b.txt", ns=(1, 1))
    assert plan(folder).directory != before.directory


def test_a_home_folder_and_a_relative_path_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    for path in ("~/train", "train", "./train/"):
        assert [file.relative for file in plan(folder, train_path=path).train] == ["a.md", "b.txt", "c/d.py"]


def test_validation_below_the_training_folder_is_not_trained_on(folder: Path) -> None:
    prepared = prepare(folder, validation_path=str(folder / "train" / "c"), validation_fraction=0.5)
    assert b"c/d.py" not in text(prepared)
    assert (prepared.train_files, prepared.validation_files) == (2, 1)


def test_an_error_leaves_nothing_behind(folder: Path) -> None:
    np.array([300], "<u2").tofile(folder / "train" / "z.bin")
    with pytest.raises(DataError, match="token 300 at position 0"):
        prepare(folder)
    assert list((folder / "prepared").iterdir()) == []


def test_skipped_files_are_reported_once_and_recorded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "train" / "x.txt").write_bytes(b"\0")
    (folder / "train" / "x.jpg").write_bytes(b"\0")
    caplog.set_level(logging.INFO, "trainyard")
    first = prepare(folder)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "skipped binary files: 1 (x.txt)" in caplog.text
    caplog.clear()
    assert prepare(folder).skipped == first.skipped
    assert not caplog.records


def test_less_than_a_sequence_names_tokens_and_length(folder: Path) -> None:
    path = folder / "short.txt"
    path.write_text("x" * 15)
    with pytest.raises(
        DataError, match=r"data\.train_path: .*short\.txt has 16 tokens, less .*sequence_length 16 and"
    ):
        prepare(folder, train_path=str(path))
    path.write_text("x" * 16)
    assert prepare(folder, train_path=str(path)).train.tokens == 17


def test_configured_validation_that_is_unusable_is_an_error_that_names_no_training_file(folder: Path) -> None:
    (folder / "train" / "notes.exe").write_bytes(b"x")
    (folder / "train" / "noise.txt").write_bytes(b"\0\1")
    (folder / "validation").mkdir()
    problems = {
        b"": "has no usable data",
        b"x": "has 2 tokens",
        b"\0": "has no usable data.*binary files: 1 .*hold out",
    }
    for content, problem in problems.items():
        (folder / "validation" / "v.txt").write_bytes(content)
        with pytest.raises(DataError, match=rf"data\.validation_path: .*/validation {problem}") as refused:
            prepare(folder, validation_path=str(folder / "validation"))
        assert "noise.txt" not in str(refused.value) and "notes.exe" not in str(refused.value)


def small_files(folder: Path) -> None:
    for number in range(30):
        (folder / "train" / f"{number}.txt").write_text("x")


def test_the_end_of_the_tokens_is_held_out_when_held_out_files_are_too_short(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_files(folder)
    prepared = prepare(folder, validation_fraction=0.3, sequence_length=100)
    assert prepared.validation is not None
    assert prepared.validation_split == "within"
    assert text(prepared) + prepared.validation.open().tobytes() == text(prepare(folder))
    assert "no validation" not in caplog.text
    assert find_prepared_data(
        config(folder, validation_fraction=0.3, sequence_length=100), model()
    ) == replace(prepared, seconds=0.0, reused=True)


def test_the_end_of_a_single_text_is_held_out(folder: Path) -> None:
    path = folder / "Größe der Welt.txt"
    path.write_text("".join(f"{number:04} a line of the only file\n" for number in range(200)))
    prepared = prepare(folder, train_path=str(path), validation_fraction=0.05)
    assert prepared.validation is not None
    train, held_out_text = text(prepared), prepared.validation.open().tobytes()
    assert train + held_out_text == path.read_bytes() + b"\0"
    assert len(held_out_text) == 290
    assert prepared.to_json() | {"fingerprint": ""} == {
        "name": str(path),
        "fingerprint": "",
        "train_tokens": len(train),
        "train_files": 1,
        "validation_tokens": len(held_out_text),
        "validation_split": "within",
    }
    again = prepare(folder, train_path=str(path), validation_fraction=0.05)
    assert (again.fingerprint, again.reused) == (prepared.fingerprint, True)
    assert prepare(folder, train_path=str(path), validation_fraction=0.1).fingerprint != prepared.fingerprint


def test_documents_of_a_split_token_file_are_kept_apart_on_both_sides(folder: Path) -> None:
    path = folder / "tokens.bin"
    np.frombuffer(b"abcdefghi\0" * 20, "u1").astype("<u2").tofile(path)
    prepared = prepare(folder, train_path=str(path), validation_fraction=0.475, packing="separate")
    assert prepared.validation is not None
    assert prepared.train.documents is not None
    assert prepared.validation.documents is not None
    assert prepared.train.open().size == 105
    assert prepared.train.documents.open().tolist() == list(range(0, 110, 10))
    assert prepared.validation.documents.open().tolist() == [0, *range(5, 95, 10)]


def test_a_text_that_is_too_short_to_split_is_used_for_training_and_reported_in_numbers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "small.txt"
    path.write_text("0123456 9\n" * 90)
    prepared = prepare(folder, train_path=str(path), validation_fraction=0.05, sequence_length=256)
    assert prepared.validation is None
    assert text(prepared) == path.read_bytes() + b"\0"
    assert caplog.messages == [
        f"no validation: data.validation_fraction 0.05 of the 901 tokens of {path} is less than one "
        "sequence, which takes 257. Add text, set data.validation_path, raise data.validation_fraction or "
        "lower data.sequence_length."
    ]
    advised = prepare(folder, train_path=str(path), validation_fraction=0.29, sequence_length=256)
    assert advised.validation is not None


def test_a_place_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/.*could not be prepared.*data\.prepared_directory"):
        prepare(folder, prepared_directory=str(folder / "file"))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """One document in a text file, and two documents and an empty text in rows."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_text("abc")
    (tmp_path / "train" / "b.jsonl").write_text('{"text": "de"}\n{"text": ""}\n{"text": "fghi"}\n')
    return tmp_path


@pytest.fixture
def letters(tmp_path: Path) -> ModelConfig:
    """A model with a tokenizer of words of one letter; `</s>` is 0."""
    words = {"</s>": 0} | {letter: number for number, letter in enumerate("abcdefghi", start=1)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return model(16).model_copy(update={"tokenizer": str(tmp_path / "tokenizer.json")})


def prepare_apart(folder: Path, model_: ModelConfig | None = None, **changes: object) -> PreparedData:
    values = {"sequence_length": 4, "packing": "separate"} | changes
    return prepare_data(config(folder, **values), model_ or model())


def starts_of(prepared: PreparedData) -> list[int]:
    assert prepared.train.documents is not None
    return [int(place) for place in prepared.train.documents.open()]


def test_the_starts_of_documents_are_noted_as_text_is_encoded(documents: Path, letters: ModelConfig) -> None:
    by_bytes, by_letters = prepare_apart(documents), prepare_apart(documents, letters)
    assert starts_of(by_bytes) == starts_of(by_letters) == [0, 4, 7]
    assert (by_bytes.train.dtype, by_letters.train.dtype) == ("uint8", "uint16")
    assert by_letters.train.open().tolist() == [1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 9, 0]
    assert by_bytes.fingerprint != by_letters.fingerprint
    batch = by_bytes.batches(sequence_length=4, batch_size=2, seed=1).batch(0)
    assert sorted(map(chr, plain_ids(batch[batch < 0]))) == ["a", "d", "d", "f"]  # windows share a token


def test_keeping_apart_is_other_data_than_joining_and_found_again(documents: Path) -> None:
    apart, joined = prepare_apart(documents), prepare_apart(documents, packing="concatenate")
    assert apart.train.sha256 == joined.train.sha256
    assert apart.fingerprint != joined.fingerprint
    assert joined.train.documents is None
    again = prepare_apart(documents)
    assert (again.reused, again.fingerprint) == (True, apart.fingerprint)
    assert apart.train.documents is not None
    np.array([0, 3, 7]).tofile(apart.train.documents.path)
    assert not prepare_apart(documents).reused
    assert starts_of(prepare_apart(documents)) == [0, 4, 7]


def test_bare_tokens_show_documents_by_the_token_of_their_end(documents: Path, letters: ModelConfig) -> None:
    np.array([1, 2, 0, 3, 0, 0, 4, 5], "<u2").tofile(documents / "train" / "c.bin")
    np.array([6, 0, 7], "<u2").tofile(documents / "train" / "d.bin")
    assert starts_of(prepare_apart(documents, letters)) == [0, 4, 7, 12, 15, 17, 18, 20, 22]
    alone = prepare_apart(documents, letters, train_path=str(documents / "train" / "c.bin"))
    assert starts_of(alone) == [0, 3, 5, 6]
    with pytest.raises(ConfigError, match=r"data\.packing: .*c\.bin end is not known\. Set model\.tokenizer"):
        prepare_apart(documents, model(1000))


def test_a_stream_marks_the_same_tokens_as_files(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(documents / "cache"))
    (documents / "train" / "a.txt").unlink()
    source = {"dataset": str(documents / "train"), "validation_split": None, "shuffled_sequences": 2}
    values = {"hugging_face": source, "sequence_length": 4, "packing": "separate"}
    stream = open_stream(DataConfig.model_validate(values), model())
    prepared = prepare_apart(documents)
    expected = prepared.train.open().astype(np.int64)
    starts = starts_of(prepared)
    expected[starts] = ~expected[starts]
    assert stream.train.first_tokens(100).tolist() == expected.tolist()
    assert stream.prompt(3) == list(b"de\0")


def test_skipped_files_of_both_parts_are_recorded(folder: Path) -> None:
    (folder / "train" / "notes.exe").write_bytes(b"x")
    (folder / "validation").mkdir()
    (folder / "validation" / "v.txt").write_text(LONG)
    (folder / "validation" / "w.exe").write_bytes(b"x")
    prepared = prepare(folder, validation_path=str(folder / "validation"))
    assert list(map(str, prepared.skipped)) == ["files with another suffix: 2 (notes.exe, w.exe)"]


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("damage", ["none", "flipped", "cut", "longer", "empty", "missing"])
def test_a_proof_learns_of_each_damage_of_the_prepared_tokens(folder: Path, part: str, damage: str) -> None:
    data = config(folder, validation_path=str(folder / "train"))
    prepared = prepare_data(data, model())
    requested = {"data": data, "model": model(), "training": {"max_steps": 1}}
    (folder / "config.yaml").write_text(dump_yaml(Config.model_validate(requested)))
    path = {"train": prepared.train, "validation": prepared.validation}[part].path  # type: ignore[union-attr]
    content = path.read_bytes()
    changed = {
        "flipped": bytes([content[0] ^ 1]) + content[1:],
        "cut": content[:-1],
        "longer": content + b"1",
    }
    if damage == "missing":
        path.unlink()
    elif damage != "none":
        path.write_bytes(changed.get(damage, b""))
    fingerprint, problem = prepared_data_of(folder / "config.yaml")
    assert fingerprint == (prepared.fingerprint if damage == "none" else None)
    assert (problem is None) is (damage in ("none", "missing"))
    assert problem is None or problem.startswith(f"{path}: its content changed")
