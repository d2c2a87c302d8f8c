"""The functions of source document 004, on a local store."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload import standalone_checkpoint
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ConfigError, RunConflictError
from trainyard.run.atomic_files import sha256_of_file

CI: dict[str, Any] = {"ci": {"run_id": "1234"}, "git": {"commit": "3f2c1ab"}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "latest.pt"
    path.parent.mkdir()
    path.write_bytes(os.urandom(5000))
    return path


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.json"
    path.write_text('{"loss": 1.08}')
    return path


def sync(store: Store, checkpoint: Path, metrics: Path, number: int | None = 42, **facts: Any) -> Any:
    return standalone_checkpoint.sync_files(store, checkpoint, metrics, number, provenance=facts)


def test_a_directory_with_a_manifest_goes_by_its_step(store: Store, make_run: Any, metrics: Path) -> None:
    run = make_run(steps=(500,))
    report = sync(store, run.checkpoint(500), metrics)
    assert report.run_id == "run-run"
    assert store.describe("run-42/checkpoint-500/manifest.json") is not None
    assert verify_run(store, 42, depth=Depth.FULL).ok


def test_a_directory_without_one_goes_whole_and_a_missing_one_is_named(
    store: Store, checkpoint: Path, metrics: Path
) -> None:
    sync(store, checkpoint.parent, metrics)
    assert store.describe("run-42/checkpoint/latest.pt") is not None
    with pytest.raises(ConfigError, match="there is no such file"):
        sync(store, checkpoint.with_name("none"), metrics)


@pytest.mark.parametrize("whole", [True, False])
def test_a_name_that_no_store_can_hold_is_refused(
    store: Store, checkpoint: Path, metrics: Path, whole: bool
) -> None:
    odd = checkpoint.rename(checkpoint.with_name(os.fsdecode(b"caf\xe9-step-5.pt")))
    with pytest.raises(ConfigError, match="the name is not UTF-8"):
        sync(store, odd.parent if whole else odd, metrics)


def test_the_same_workflow_run_goes_on_and_another_is_refused(
    store: Store, checkpoint: Path, metrics: Path
) -> None:
    sync(store, checkpoint, metrics, **CI)
    checkpoint.write_bytes(os.urandom(5000))
    assert sync(store, checkpoint, metrics, **CI).manifest_key.endswith("-2.json")
    with pytest.raises(RunConflictError):
        sync(store, checkpoint, metrics, ci={"run_id": "99"})


def test_outside_a_workflow_the_content_is_the_run(store: Store, checkpoint: Path, metrics: Path) -> None:
    assert sync(store, checkpoint, metrics, None).run_number == 1
    assert sync(store, checkpoint, metrics, None).sent == 0
    checkpoint.write_bytes(os.urandom(5000))
    assert sync(store, checkpoint, metrics, None).run_number == 2


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('{"step": 1}\n{"step": 2}\n{"st', [{"step": 1}, {"step": 2}]),
        ('[{"step": 1}]', [{"step": 1}]),
        ('{"rows": [{"step": 3}]}', [{"step": 3}]),
    ],
)
def test_metrics_come_in_three_forms(
    store: Store, folder: Path, checkpoint: Path, metrics: Path, text: str, rows: list[Any]
) -> None:
    metrics.write_text(text)
    sync(store, checkpoint, metrics)
    assert json.loads((folder / "metrics/metrics-42.json").read_text())["rows"] == rows


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json", "line 1 is not a JSON object"),
        (b'{"step": 1}\nnot json\n{"step": 2}\n', "line 2 is not a JSON object"),
        (b"", "is empty"),
        (b'[{"step": 1}, 2]', "is not a metrics file"),
        (b'{"rows": 7}', "is not a metrics file"),
        (None, "there is no such file"),
        ("folder", "cannot be read"),
    ],
)
def test_what_is_no_metrics_is_refused_before_a_number_is_taken(
    store: Store, folder: Path, checkpoint: Path, metrics: Path, content: bytes | str | None, words: str
) -> None:
    metrics.unlink()
    if isinstance(content, bytes):
        metrics.write_bytes(content)
    elif content:
        metrics.mkdir()
    for do in (standalone_checkpoint.sync_files, standalone_checkpoint.preview_files):
        with pytest.raises(ConfigError, match=words):
            do(store, checkpoint, metrics, 42, provenance={})
    assert not folder.exists()


def test_a_manifest_beside_a_file_tells_its_step(store: Store, make_run: Any, metrics: Path) -> None:
    run = make_run(steps=(500,))
    moved = run.path.parent / "moved"
    run.checkpoint(500).rename(moved)
    file = next(path for path in moved.iterdir() if path.name != "manifest.json")
    sync(store, file, metrics)
    assert store.describe(f"run-42/checkpoint-500/{file.name}") is not None


def test_a_preview_tells_what_would_go_and_changes_nothing(
    store: Store, folder: Path, checkpoint: Path, metrics: Path
) -> None:
    plan = standalone_checkpoint.preview_files(store, checkpoint, metrics, None, provenance=CI)
    assert plan.send == ("run-1/checkpoint/latest.pt", "metrics/metrics-1.json")
    assert not folder.exists()
    sync(store, checkpoint, metrics, None, **CI)
    again = standalone_checkpoint.preview_files(store, checkpoint, metrics, None, provenance=CI)
    assert (again.run_number, again.send, len(again.there)) == (1, (), 2)
    with pytest.raises(RunConflictError):
        standalone_checkpoint.preview_files(
            store, checkpoint, metrics, 1, provenance={"ci": {"run_id": "99"}}
        )


def test_metadata_of_any_kind_is_written_as_text(
    store: Store, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    stage = type(store).stage

    def noted(self: Any, path: Path, key: str, **how: Any) -> Any:
        given.append(how["metadata"])
        return stage(self, path, key, **how)

    monkeypatch.setattr(type(store), "stage", noted)
    values = {"step": 500, "loss": 1.5, "none": None, "who": "J\u00fcrgen\nB", 7: ["a"]}
    assert standalone_checkpoint.store_file(store, checkpoint, "k", values)  # type: ignore[arg-type]
    assert given == [{"step": "500", "loss": "1.5", "who": "J\\xfcrgen B", "7": "['a']"}]


def test_metadata_that_is_no_mapping_is_told(
    store: Store, checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not standalone_checkpoint.store_file(store, checkpoint, "k", ["a"])  # type: ignore[arg-type]
    assert "the metadata must map names to values" in caplog.text


@pytest.mark.parametrize("digest", [None, "", "abc", 7, "z" * 64])
def test_what_is_no_digest_is_no_match_and_told(
    store: Store, checkpoint: Path, digest: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert standalone_checkpoint.store_file(store, checkpoint, "k", {})
    assert not standalone_checkpoint.object_has_hash(store, "k", digest)
    assert "is not a SHA-256 of 64 hex digits" in caplog.text


def test_a_described_manifest_is_put_once(store: Store, checkpoint: Path, metrics: Path) -> None:
    manifest = standalone_checkpoint.describe_standalone_files(checkpoint, metrics, 42, provenance=CI)
    assert manifest["objects"][0]["sha256"] == sha256_of_file(checkpoint)
    assert manifest["provenance"]["git"] == CI["git"]
    assert standalone_checkpoint.store_manifest(store, manifest, 42)
    assert standalone_checkpoint.store_manifest(store, manifest, 42)
    assert not standalone_checkpoint.store_manifest(store, manifest | {"created": 0}, 42)
    assert json.loads(store.read_object("manifests/run-42-manifest.json") or b"") == manifest


def test_one_file_is_stored_and_asked_after(store: Store, folder: Path, checkpoint: Path) -> None:
    assert standalone_checkpoint.store_file(store, checkpoint, "phase2/checkpoint-1.pt", {})
    key, sha256 = "phase2/checkpoint-1.pt", sha256_of_file(checkpoint)
    assert standalone_checkpoint.object_has_hash(store, key, sha256)
    assert standalone_checkpoint.object_has_hash(store, key, sha256.upper())
    assert not standalone_checkpoint.object_has_hash(store, "phase2/none", sha256)
    (folder / key).write_bytes(os.urandom(5000))
    assert not standalone_checkpoint.object_has_hash(store, key, sha256)


def test_a_file_that_cannot_be_stored_does_not_stop_the_caller(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not standalone_checkpoint.store_file(store, tmp_path / "none", "k", {})
    assert "was not stored" in caplog.text


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500.pt", 500),
        ("model_step_500.safetensors", 500),
        ("epoch=1-step=500.ckpt", 500),
        ("model-7b.pt", None),
        ("checkpoints/model.pt", None),
    ],
)
def test_a_name_that_tells_the_step_decides_the_key(
    store: Store, folder: Path, tmp_path: Path, metrics: Path, name: str, step: int | None
) -> None:
    path = tmp_path / "loose" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    sync(store, path, metrics)
    middle = "checkpoint" if step is None else f"checkpoint-{step}"
    assert (folder / "run-42" / middle / path.name).is_file()
    assert verify_run(store, 42, depth=Depth.FULL).ok
