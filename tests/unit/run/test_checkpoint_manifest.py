import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainyard.errors import CheckpointError
from trainyard.run.checkpoint_manifest import (
    CheckpointManifest,
    describe_files,
    read_manifest,
    verify_checkpoint,
    write_manifest,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step-00000005"
    (folder / "part").mkdir(parents=True)
    (folder / "weights").write_bytes(b"weights" * 100)
    (folder / "part" / "ünï").write_bytes(b"")
    write_manifest(folder, CheckpointManifest(5, "run", 1.5, describe_files(folder)))
    return folder


def test_a_whole_checkpoint_verifies_and_gives_its_manifest(checkpoint: Path) -> None:
    manifest = verify_checkpoint(checkpoint)
    assert (manifest.step, manifest.run_id, manifest.created) == (5, "run", 1.5)
    assert [(f.path, f.size) for f in manifest.files] == [("part/ünï", 0), ("weights", 700)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"weights" * 99, "693 bytes, the manifest says 700"), (b"Weights" + b"weights" * 99, "SHA-256")],
)
def test_a_changed_file_is_named(checkpoint: Path, content: bytes, complaint: str) -> None:
    (checkpoint / "weights").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"weights: {complaint}"):
        verify_checkpoint(checkpoint)


def test_a_part_of_a_checkpoint_may_lack_shards_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000005"
    folder.mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (folder / name).write_text(name)
    write_manifest(folder, CheckpointManifest(5, "run", 1.5, describe_files(folder)))
    (folder / "__1_0.distcp").unlink()
    verify_checkpoint(folder, is_part=True)
    with pytest.raises(CheckpointError, match="missing"):
        verify_checkpoint(folder)
    (folder / "__0_0.distcp").write_text("__0_0.DISTCP")
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify_checkpoint(folder, is_part=True)
    (folder / "__0_0.distcp").unlink()
    (folder / ".metadata").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        verify_checkpoint(folder, is_part=True)


def test_a_name_that_no_store_can_hold_is_refused(checkpoint: Path) -> None:
    (checkpoint / os.fsdecode(b"caf\xe9")).touch()
    with pytest.raises(CheckpointError, match="is not UTF-8"):
        describe_files(checkpoint)


SHA256 = "0" * 64
UNREADABLE = (
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"step": 5}',
    b'{"step": "x", "run_id": 1, "created": 0, "files": [{}]}',
)
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    *({"sha256": value} for value in ("not hex", None, "A" * 64, f"sha256:{SHA256}")),
    *({"size": -1}, {"size": float("inf")}, {"path": "./part//ünï"}),
)


def test_a_manifest_that_does_not_read_or_says_what_cannot_be_is_no_manifest(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    value = json.loads(path.read_text())
    own, other = value["files"]
    changed = [json.dumps(value | {"files": [own, other | change]}).encode() for change in IMPOSSIBLE]
    for content in (*UNREADABLE, *changed):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"manifest\.json:.*(not a readable manifest|damaged)"):
            read_manifest(checkpoint)


def test_without_a_manifest_there_is_no_checkpoint(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="never completed"):
        read_manifest(checkpoint)


def test_a_file_outside_the_checkpoint_is_never_looked_at(checkpoint: Path) -> None:
    value = json.loads((checkpoint / "manifest.json").read_text())
    value["files"][0]["path"] = "../secret"
    (checkpoint.parent / "secret").write_bytes(b"")
    (checkpoint / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(CheckpointError, match="not a file of the folder"):
        read_manifest(checkpoint)


def test_a_copy_under_the_name_of_another_step_is_not_that_checkpoint(checkpoint: Path) -> None:
    copy = checkpoint.rename(checkpoint.with_name("step-00000006"))
    with pytest.raises(CheckpointError, match=r"step-00000006: its manifest.json is of step 5"):
        verify_checkpoint(copy)
    assert verify_checkpoint(copy.rename(checkpoint.with_name("by-hand"))).step == 5


def test_a_checkpoint_of_another_run_is_named_where_a_run_is_asked_for(checkpoint: Path) -> None:
    assert verify_checkpoint(checkpoint, run_id="run").run_id == "run"
    with pytest.raises(CheckpointError, match="is of run run, not of run other"):
        verify_checkpoint(checkpoint, run_id="other")
