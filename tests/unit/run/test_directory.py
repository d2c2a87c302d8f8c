"""The run directory: its names, its lock, its settings, its checkpoints, and the run that was meant."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trainyard.config.load import dump_yaml, load_config
from trainyard.config.yaml_reader import CoreLoader, dump_values, value_of
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    read_manifest,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.run_advice import checkpoint_advice, checkpoint_meant, require_run
from trainyard.run.run_lock import locked
from trainyard.run.run_settings import read_settings, setting

ODD_NAMES = (
    "step-12",
    "best",
    ".step-00000011.tmp",
    *(f"step-{n}" for n in ("000000009", "\u0660" * 7 + "\u0669", "9" * 19)),
)


def test_names_are_those_of_the_contract(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r")
    names = {p.relative_to(run.path).as_posix() for p in (run.run_file, run.config_file, run.metrics_file)}
    assert names == {"run.json", "config.yaml", "metrics.jsonl"}
    assert run.events_file.name == "events.jsonl"
    assert run.checkpoint(500) == run.path / "checkpoints" / "step-00000500"
    run.create()
    assert sorted(p.name for p in run.path.iterdir()) == ["checkpoints", "logs", "report", "tensorboard"]


def test_steps_are_listed_in_order_and_nothing_else_counts(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.checkpoint_steps() == []
    for name in ("step-00000010", "step-00000002", "step-123456789", *ODD_NAMES):
        (run.checkpoints / name).mkdir(parents=True)
    (run.checkpoints / "step-00000099").write_text("a file")
    assert run.checkpoint_steps() == [2, 10, 123456789]


@pytest.mark.parametrize("name", ["report", "checkpoints", "logs", "tensorboard"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=rf"/{name}: is a file and must be a folder"):
        RunDirectory(tmp_path).create()


def test_a_directory_is_held_once_and_free_again(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with locked(tmp_path), pytest.raises(ConfigError, match="is being trained by process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_not_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match=r"cannot be used \(No locks available\)"), locked(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from trainyard.run.run_lock import locked
with locked(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with locked(tmp_path):
        pass


def test_a_run_that_never_started_leaves_no_directory(tmp_path: Path) -> None:
    with locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()


def test_what_else_is_in_the_directory_stays(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("mine")
    with locked(tmp_path / "new"):
        pass
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["notes.txt"]


ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LOOK_LIKE_VALUES = [
    "yes", "off", "n", "1:30", "0o7", "0o17", "08", "017", "1_000", "1e3", "5e-5", "2026-01-01", ".inf",
    ".nan", "=", "<<", "~", "",
]  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_a_run_writes_is_read_back_equal(path: Path) -> None:
    weights = ["model.path=weights"] if path.stem == "fine_tuning" else []
    config = load_config(path, weights).config
    assert read_settings(dump_yaml(config)) == config.model_dump(mode="json")


@given(
    st.sampled_from(LOOK_LIKE_VALUES)
    | st.text()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.none()
)
def test_any_value_is_the_one_that_the_loader_reads(value: Any) -> None:
    text = dump_values({"section": {"key": value}})
    assert yaml.safe_load(text) == {"section": {"key": value}}, "for readers of YAML 1.1"
    node = CoreLoader(text).get_single_node().value[0][1].value[0][1]
    for found in (setting(read_settings(text), "section.key"), value_of(node.tag, node.value)):
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("key", ["a.x", "a.b.c.d", "x", "a.b.c.d.e", ""])
def test_a_key_that_is_not_there_has_no_value(key: str) -> None:
    assert setting(read_settings("a: {b: {c: 1}}"), key) is None


@pytest.mark.parametrize("content", ["", "3", "- a", b"\n"])
def test_what_is_no_mapping_has_no_settings(content: str | bytes) -> None:
    assert read_settings(content) == {}


@pytest.mark.parametrize("content", ["a: [", "\t", b"a: \xff", "[" * 5000])
def test_what_is_no_yaml_is_an_error_of_configuration(content: str | bytes) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml.*(not valid YAML|a tab|not UTF-8|more than)"):
        read_settings(content)


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


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("20261120-1200-aaaa", "20261121-1200-bbbb", "20261122-1200-cccc", "20261123-1200-dddd"):
        run = RunDirectory(tmp_path / "runs" / name)
        run.checkpoint(100).mkdir(parents=True)
        (run.checkpoint(100) / MANIFEST_NAME).touch()
        (run.checkpoint(100) / "data").touch()
        run.checkpoint(200).mkdir()
        run.run_file.touch()
    return tmp_path / "runs"


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError, match="is not a run directory") as error:
        require_run(path)
    return str(error.value)


def test_the_run_that_was_meant_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, meant in {
        "20261120-1200-aaaa/checkpoints/step-00000100": "20261120-1200-aaaa",
        "20261120-1200-aaaa/run.json": "20261120-1200-aaaa",
        "20261122-1200-ccc": "20261122-1200-cccc",
        "other": "20261123-1200-dddd",
        "": "20261123-1200-dddd",
    }.items():
        assert meant in refusal(runs / named), named
        require_run(runs / meant)
    monkeypatch.chdir(runs)
    assert "the run 20261120-1200-aaaa; name" in refusal(Path("20261120-1200-aaaa/checkpoints"))


def test_without_a_run_the_command_that_makes_one_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "folder" / "without runs"
    empty.mkdir(parents=True)
    for path in (empty, empty / "absent"):
        assert "`trainyard run` makes one" in refusal(path)


def test_the_steps_that_are_there_are_named(runs: Path, tmp_path: Path) -> None:
    run = RunDirectory(runs / "20261120-1200-aaaa")
    places = ("", "checkpoints", "checkpoints/step-00000300", "checkpoints/step-00000200")
    for named in (*places, "checkpoints/step-00000100/data"):
        assert checkpoint_meant(run.path / named) == (
            f"{run.path} has step 100; name one, such as {run.checkpoint(100)}"
        )
    (run.checkpoint(100) / MANIFEST_NAME).unlink()
    assert "--resume none starts at step 0" in checkpoint_advice(run.path)
    assert checkpoint_meant(tmp_path) is None
    assert checkpoint_advice(tmp_path).startswith("name a checkpoint")
