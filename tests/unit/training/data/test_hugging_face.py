"""Datasets of Hugging Face's library: read from local folders, and a Hub that is missing or refuses."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tests.answering import answering
from tests.unit.training.lab import Lab

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config, DataConfig, HuggingFaceConfig, ModelConfig
from trainyard.errors import ConfigError, DataError, IncompatibleCheckpointError, ServiceError, StoppedError
from trainyard.training.data.config_of_run import with_values_of_run
from trainyard.training.data.hugging_face import (
    DatasetOrigin,
    StreamedData,
    TextStream,
    find_origin,
    open_stream,
)
from trainyard.training.data.stream_batches import StreamPosition, TokenStream
from trainyard.training.data.vocabulary import ByteVocabulary

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [f"row {number}: " + "words and words " * (number % 5) for number in range(90)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the library, which locks files in its cache, a cache of its own, and no network."""
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for module in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of rows to train on, and one to validate on."""
    folder = tmp_path / "local"
    folder.mkdir()
    for part in range(3):
        rows = ROWS[part * 30 : part * 30 + 30]
        lines = "".join(json.dumps({"text": text, "url": "u"}) + "\n" for text in rows)
        (folder / f"train-{part}.jsonl").write_text(lines)
    held_out = "".join(json.dumps({"text": f"held out {row} " * 3}) + "\n" for row in range(20))
    (folder / "validation-0.jsonl").write_text(held_out)
    return folder


def stream_config(folder: Path | str, **changes: object) -> HuggingFaceConfig:
    return HuggingFaceConfig.model_validate({"dataset": str(folder), "shuffled_sequences": 8} | changes)


def texts(folder: Path, split: str = "train", field: str = "text") -> TextStream:
    return TextStream(stream_config(folder), split, revision=None, text_field=field)


def all_texts(stream: TextStream, place: StreamPosition = None, count: int = 7) -> list[str]:
    result: list[str] = []
    while True:
        found, place = stream.read(place, count)
        result += [text.decode() for text in found]
        if place is None:
            return result


def open_data_stream(folder: Path | str, *, length: int = 16, **changes: object) -> StreamedData:
    data = {"hugging_face": {"dataset": str(folder), **changes}, "sequence_length": length}
    return open_stream(DataConfig.model_validate(data), ModelConfig(name="m"))


@pytest.mark.slow
def test_a_folder_is_read_to_its_end_in_order_and_again(folder: Path) -> None:
    stream = texts(folder)
    assert all_texts(stream) == all_texts(stream) == all_texts(stream, count=90) == ROWS
    assert all_texts(texts(folder, "validation"))[0].startswith("held out 0")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "txt"])
def test_a_part_is_every_nth_file_or_row_and_resumes_from_any_place(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    files = [[f"line {line} of file {file}" for line in range(10 + file)] for file in range(4)]
    for number, own in enumerate(files):
        path = folder / f"train-{number}.{kind}"
        if kind == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": own}), path, row_group_size=6)
        else:
            lines = own if kind == "txt" else [json.dumps({"text": text}) for text in own]
            content = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    complete, rows = texts(folder), [text for file in files for text in file]
    for of in (1, 2, 3):  # everything, parts that are files, and parts that are rows
        expected = [
            [text for file in files[number::of] for text in file] if of == 2 else rows[number::of]
            for number in range(of)
        ]
        parts = [complete.part(number, of) for number in range(of)]
        places: list[StreamPosition] = [None] * of
        for done in range(4, min(map(len, expected)), 4):
            for number, part in enumerate(parts):  # in turn, as a process reads that has several
                _, places[number] = part.read(places[number], 4)
                resumed = complete.part(number, of)
                place = json.loads(json.dumps(places[number]))
                assert all_texts(resumed, place, count=9) == expected[number][done:], (of, number, done)
    assert all_texts(complete) == rows


def test_rows_without_a_text_are_left_out(folder: Path) -> None:
    for path in folder.glob("train-*"):
        path.unlink()
    rows = [json.dumps({"text": text}) for text in ("a", None, "", "ä")]
    (folder / "train-0.jsonl").write_text("\n".join(rows))
    assert all_texts(texts(folder)) == ["a", "ä"]


def test_validation_is_the_start_of_its_split_and_not_repeated(folder: Path) -> None:
    streamed = open_data_stream(folder)
    assert streamed.validation is not None
    tokens = streamed.validation.first_tokens(10**6)
    assert streamed.validation_windows(length=16, count=2).ravel()[:17].tolist() == tokens[:17].tolist()
    assert len(streamed.validation_windows(length=16, count=10**4)) == (tokens.size - 1) // 16


def test_the_fingerprint_is_of_the_content_not_of_the_place(folder: Path, tmp_path: Path) -> None:
    before = open_data_stream(folder).fingerprint
    folder.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    (moved / ".hidden").write_text("x")
    assert open_data_stream(moved).fingerprint == before
    assert open_data_stream(moved, validation_split=None).fingerprint != before
    (moved / "train-1.jsonl").write_text(json.dumps({"text": "another text"}) + "\n")
    assert open_data_stream(moved).fingerprint != before


def test_a_missing_part_of_a_dataset_is_named(folder: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"split": "nope"}, r"Bad split: nope\. Available splits: \['train', 'validation'\]"),
        ({"validation_split": "held"}, "Bad split: held"),
        ({"name": "en"}, "BuilderConfig 'en' not found"),
    ]
    for changes, message in cases:
        with pytest.raises(DataError, match=message):
            open_data_stream(folder, **changes)


def test_a_field_that_rows_do_not_have_is_answered_with_those_they_have(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no 'content', only 'text', 'url'\. Set data\.text_field"):
        texts(folder, field="content").read(None, 1)


def test_too_little_for_a_sequence_and_broken_rows_are_errors_of_the_data(folder: Path) -> None:
    with pytest.raises(DataError, match="local, validation has 710 tokens, less than one sequence"):
        open_data_stream(folder, length=2000)
    (folder / "train-0.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(DataError, match="cannot be read"):
        open_data_stream(folder)


def test_a_folder_has_no_commits(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"revision: .* is a local folder, which has no commits"):
        find_origin(stream_config(folder, revision="main"))


def test_without_a_network_the_fix_is_named() -> None:
    with pytest.raises(ServiceError, match=r"allenai/c4 cannot be read .*\nUnset HF_HUB_OFFLINE"):
        open_data_stream("allenai/c4", name="en")
    with pytest.raises(ServiceError, match="HF_HUB_OFFLINE is set"):
        open_data_stream("allenai/c4", name="en", revision=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A Hub that knows one dataset; yields the requested paths."""
    import huggingface_hub.constants

    requested: list[str] = []

    def answer(_method: str, path: str, *_: object) -> tuple[int, dict[str, str], dict[str, str]]:
        if path.startswith("/api/datasets/"):  # the client sends other requests once a day
            requested.append(path)
        known = path.startswith("/api/datasets/some/data")
        headers = {"Content-Type": "application/json"} | ({} if known else {"X-Error-Code": "RepoNotFound"})
        return 200 if known else 404, {"id": "some/data", "sha": COMMIT}, headers

    with answering(answer) as address:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        yield requested


def test_a_branch_is_resolved_to_its_commit_and_a_commit_is_not_requested(hub: list[str]) -> None:
    assert find_origin(stream_config("some/data")).revision == COMMIT
    assert find_origin(stream_config("some/data", revision="v1")).revision == COMMIT
    assert [path.partition("?")[0] for path in hub] == [
        "/api/datasets/some/data",
        "/api/datasets/some/data/revision/v1",
    ]
    assert find_origin(stream_config("other/data", revision=COMMIT)).content == f"other/data@{COMMIT}"
    assert len(hub) == 2


def test_a_dataset_that_is_not_there_and_a_hub_that_does_not_answer_are_different_errors(
    hub: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    with pytest.raises(DataError, match=r"other/data cannot be read .*HF_TOKEN"):
        find_origin(stream_config("other/data"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"some/data cannot be read .*\nCheck the network"):
        find_origin(stream_config("some/data"))
    assert len(hub) == 1


@pytest.fixture
def on_stream(tiny_config: Callable[..., Config], folder: Path) -> Callable[..., Config]:
    """The tiny configuration on the stream of `folder`; `shuffled` sequences are read at a time."""

    def build(shuffled: int = 20) -> Config:
        source = {"dataset": str(folder), "shuffled_sequences": shuffled}
        return tiny_config(data={"train_path": None, "validation_path": None, "hugging_face": source})

    return build


def test_a_resumed_run_on_a_stream_is_the_uninterrupted_one(
    lab: Lab, on_stream: Callable[..., Config]
) -> None:
    config = on_stream()
    complete = lab.run(config, "complete")
    for step in (2, 5, 6):  # within a block of five steps, at its end, in the next one
        with pytest.raises(StoppedError):
            lab.run(config, "cut", **lab.stop_after(step))
    assert lab.run(config, "cut")["state_sha256"] == complete["state_sha256"]
    rows = [list(lab.rows(name)) for name in ("complete", "cut")]
    kept = [[(row["step"], row["loss"], row.get("val_loss")) for row in part] for part in rows]
    assert kept[0] == kept[1]
    assert "epoch" not in rows[0][0]
    run = lab.record("complete")
    assert "steps_per_epoch" not in run["plan"]
    assert set(run["data"]) == {"name", "fingerprint"}
    with pytest.raises(IncompatibleCheckpointError, match=r"hugging_face\.shuffled_sequences: .* 20, .* 30"):
        lab.run(on_stream(30), "cut")


def test_the_commit_that_is_read_is_in_the_configuration_of_the_run(folder: Path) -> None:
    config = Config.model_validate(
        {"model": {"name": "m"}, "training": {"max_steps": 1}, "data": {"hugging_face": {"dataset": "a/b"}}}
    )
    origin = DatasetOrigin("a/b", COMMIT)
    stream = TokenStream(texts(folder), ByteVocabulary(), "n")
    data = StreamedData("a/b", origin, ("train",), stream, None, 8, np.arange(3))
    assert data.pinned_config(config).data.hugging_face.revision == COMMIT
    assert data.to_json()["revision"] == COMMIT


def test_a_run_resumes_with_the_commit_it_started_with(tmp_path: Path) -> None:
    def config(dataset: str, revision: str | None = None) -> Config:
        data = {"hugging_face": {"dataset": dataset, "revision": revision}}
        return Config.model_validate({"model": {"name": "m"}, "training": {"max_steps": 1}, "data": data})

    def revision_of(wanted: Config, directory: Path | None = tmp_path) -> str | None:
        return with_values_of_run(wanted, directory).data.hugging_face.revision

    assert revision_of(config("a/b")) is None
    (tmp_path / "config.yaml").write_bytes(dump_yaml(config("a/b", COMMIT)).encode())
    assert revision_of(config("a/b")) == COMMIT
    assert revision_of(config("a/b"), None) is None
    assert revision_of(config("other/data")) is None
    assert revision_of(config("a/b", "f" * 40)) == "f" * 40
