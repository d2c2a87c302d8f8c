"""The rows and events of a run; each field of a record with each wrong value is refused by file and field."""

import copy
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from tests.cases import each_case

from trainyard.artifacts.record.manifest import RunManifest, parse_run_manifest
from trainyard.artifacts.store.layout import records_prefix
from trainyard.errors import TrainyardError
from trainyard.run.checkpoint_manifest import CheckpointManifest, parse_checkpoint_manifest
from trainyard.run.identity import parse_run
from trainyard.run.record_models import Event, MetricRow, RunRecord, validate_record
from trainyard.run.records import RecordWriter, Row, append_event, keep_rows_up_to, read_rows


def write(path: Path, *rows: Row) -> None:
    writer = RecordWriter(path)
    for row in rows:
        writer.write(row)
    writer.close()


def test_rows_come_back_with_their_time_and_without_unknown_values(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1, "loss": 0.1 + 0.2, "mfu": None}, {"step": 2, "time": 5.0})
    first, second = read_rows(path)
    assert first["loss"] == 0.1 + 0.2
    assert "mfu" not in first
    assert first["time"] > 0
    assert second == {"step": 2, "time": 5.0}


def test_a_torn_last_line_is_skipped_in_reading_and_cut_off_in_writing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert [row["step"] for row in read_rows(path)] == [1]
    write(path, {"step": 2})
    assert [row["step"] for row in read_rows(path)] == [1, 2]


def test_a_line_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    writer.write({"step": 1})
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 1
    writer.close()


@pytest.mark.parametrize("content", ["", "\n\n", "null\n[]\n3\n"])
def test_lines_that_are_no_objects_are_no_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    assert read_rows(path) == []
    assert read_rows(tmp_path / "absent.jsonl") == []


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="Out of range"):
        writer.write({"loss": float("nan")})
    writer.close()


def test_rows_after_a_step_are_dropped_and_the_others_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, *({"step": step, "loss": step / 3} for step in range(1, 6)))
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    assert keep_rows_up_to(path, 3) == 2
    assert path.read_bytes() == kept
    assert keep_rows_up_to(path, 3) == 0
    assert keep_rows_up_to(tmp_path / "absent.jsonl", 3) == 0


def test_events_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(path, "started", step=0, dropped_rows=None)
    append_event(path, "finished", step=9)
    assert [(row["event"], row["step"]) for row in read_rows(path)] == [("started", 0), ("finished", 9)]
    assert "dropped_rows" not in read_rows(path)[0]


MADE_BEFORE = Path(__file__).parents[2] / "scripts" / "made_before" / "run.tar.gz"
DIGEST = "a" * 64
RUN = {
    "run_id": "r",
    "created": 1.5,
    "version": "1",
    "config_file": "c",
    "config_sha256": DIGEST,
    "seed": 0,
    "lock_sha256": DIGEST,
    "image_digest": f"sha256:{DIGEST}",
    "image_name": "n",
    "ci": {},
    "model": {},
    "git": {"commit": "c", "branch": "b", "dirty": False, "diff_sha256": DIGEST},
    "data": {"name": "n", "fingerprint": DIGEST, "train_tokens": 1, "validation_tokens": 1},
    "hardware": {"device": "cpu", "device_name": "x", "world_size": 1, "threads": 1, "peak_flops": 1.0},
    "parent": {"checkpoint": "x", "manifest_sha256": DIGEST},
    "plan": {"steps": 1, "steps_per_epoch": 1, "epochs": 1.0},
    "history": [],
    "outcome": {
        "status": "s",
        "exit_code": 0,
        "reason": "r",
        "steps": 1,
        "final_loss": 1.0,
        "finished": 1.0,
        "checkpoint": {"step": 1, "manifest_sha256": DIGEST},
        "state_sha256": {"model": DIGEST, "optimizer": DIGEST},
    },
}
FILES = [{"path": "a", "size": 1, "sha256": DIGEST}, {"path": "b", "size": 25, "sha256": DIGEST}]
CHECKPOINT = {"schema": 1, "step": 1, "run_id": "r", "created": 1.0, "files": FILES}
MANIFEST = {
    "schema": 1,
    "run_id": "r",
    "run_number": 1,
    "created": 1.0,
    "prefix": "p/",
    "provenance": {"a": 1},
    "outcome": {},
    "unlisted_objects": ["p/run-1/x"],
    "records": f"p/{records_prefix(1, 2)}",
    "statement": {},
    "supersedes": {"key": "p/manifests/run-1-manifest.json", "sha256": DIGEST},
    "pruned": [{"step": 1, "digest": DIGEST, "size": 1, "time": 1.0, "by": "b", "reason": "r"}],
    "objects": [
        {
            "key": "p/run-1/a",
            "size": 1,
            "sha256": DIGEST,
            "etag": "e",
            "store_checksum": {"algorithm": "SHA256", "type": "FULL_OBJECT", "value": "v", "part_size": 5},
        }
    ],
}
RECORDS: dict[str, tuple[Any, Callable[[bytes, str], Any], Any]] = {
    "run.json": (RUN, parse_run, RunRecord),
    "checkpoint's manifest": (CHECKPOINT, parse_checkpoint_manifest, CheckpointManifest),
    "run's manifest": (MANIFEST, parse_run_manifest, RunManifest),
}
FREE = {"provenance.a", "supersedes.sha256"}
"""Fields that no reader checks."""


def values_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from values_in(below, (*path, key))


def wrong_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return [1], "x", 7, None
    if isinstance(value, list):
        return {"a": 1}, "x", 7, None
    if isinstance(value, bool):
        return 1, "true", [1], {"a": 1}
    if isinstance(value, str):
        return 7, True, 1.5, [1], {"a": 1}
    return "7", True, [1], {"a": 1}, "NaN", *((1.5, 1.0) if isinstance(value, int) else ())


def changed(document: Any, path: tuple[Any, ...], value: Any) -> bytes:
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize("name", RECORDS)
def test_each_wrong_value_is_refused_by_file_and_field(name: str) -> None:
    document, parse, _ = RECORDS[name]
    parse(json.dumps(document).encode(), "the file")
    for path, value in values_in(document):
        dotted = ".".join(map(str, path))
        for wrong in wrong_values(value) if dotted not in FREE else ():
            with pytest.raises(TrainyardError, match=r"^the file: ") as refused:
                parse(changed(document, path, wrong), "the file")
            assert str(path[0]) in str(refused.value), (dotted, wrong)


@pytest.mark.parametrize("name", ["checkpoint's manifest", "run's manifest"])
def test_another_form_of_a_manifest_is_refused(name: str) -> None:
    document, parse, _ = RECORDS[name]
    with pytest.raises(TrainyardError, match="schema: this version reads 1, not 2"):
        parse(json.dumps(document | {"schema": 2}).encode(), "the file")


@each_case("name", RECORDS)
@each_case("number", [10**90, 1 << 63, -1, float("inf"), float("nan")])
def test_no_number_ends_with_a_traceback(name: str, number: float) -> None:
    document, parse, _ = RECORDS[name]
    for path, value in values_in(document):
        if isinstance(value, int | float):
            try:
                parse(changed(document, path, number), "the file")
            except TrainyardError as error:
                assert str(error).startswith("the file: ")


@pytest.mark.parametrize("name", RECORDS)
def test_unknown_keys_are_accepted_in_every_object(name: str) -> None:
    document, parse, _ = RECORDS[name]
    for path, value in [((), document), *values_in(document)]:
        if isinstance(value, dict):
            parse(changed(document, (*path, "of a later version"), {"x": 1}), "the file")


def test_unknown_keys_of_a_run_are_kept() -> None:
    run = {**RUN, "later": [1], "git": {"commit": "c", "later": 2}}
    assert parse_run(json.dumps(run).encode(), "run.json") == run


@pytest.mark.parametrize("name", RECORDS)
def test_the_published_schema_accepts_the_record(name: str) -> None:
    document, _, kind = RECORDS[name]
    Draft202012Validator(TypeAdapter(kind).json_schema()).validate(document)


@pytest.mark.parametrize(("name", "kind"), [("metrics.jsonl", MetricRow), ("events.jsonl", Event)])
def test_the_lines_of_a_run_are_what_the_models_say(name: str, kind: Any) -> None:
    with tarfile.open(MADE_BEFORE) as archive:
        file = archive.extractfile(f"run/{name}")
        assert file
        lines = file.read().splitlines()
    assert lines
    for line in lines:
        row = validate_record(kind, json.loads(line))
        assert row.model_extra == {} or kind is Event, line
