"""A folder as a store: files are complete or absent, are read back, and never leave the folder."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.store.store_address import names_a_store, open_store
from trainyard.errors import ConfigError, ObjectChangedError, ServiceError, VerificationError
from trainyard.gateways.local_store.folder import LocalStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> LocalStore:
    return LocalStore(folder)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_000))
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_an_object_that_is_too_large_for_a_record_is_not_read(store: LocalStore, folder: Path) -> None:
    folder.mkdir()
    (folder / "record").touch()
    os.truncate(folder / "record", 1 << 40)
    with pytest.raises(VerificationError, match=r"record: damaged: more than 268,435,456 bytes"):
        store.read_object("record")


def test_a_file_appears_only_when_it_is_committed(store: LocalStore, folder: Path, file: Path) -> None:
    upload = store.stage(file, "run-1/a", metadata={})
    assert store.describe("run-1/a") is None
    assert [o.key for o in store.list_objects("")] == []
    stored = upload.commit()
    assert names(folder) == ["run-1/a"]
    assert upload.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert store.describe("run-1/a") == stored
    assert b"".join(store.stream("run-1/a", 0, 0)) == file.read_bytes()


def test_an_aborted_file_leaves_nothing(store: LocalStore, folder: Path, file: Path) -> None:
    store.stage(file, "a", metadata={}).abort()
    assert names(folder) == []


def test_a_disk_that_gives_back_other_bytes_is_noticed(store: LocalStore, folder: Path, file: Path) -> None:
    upload = store.stage(file, "a", metadata={})
    upload.temporary.write_bytes(os.urandom(3_000_000))
    stated, found = upload.commit(), store.describe("a")
    assert found is not None
    assert (found.size, names(folder)) == (stated.size, ["a"])
    assert found.checksum != stated.checksum  # what every verification compares


def test_the_names_of_new_folders_are_flushed_too(
    store: LocalStore, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, fsync = list[Path](), os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    store.stage(file, "run-1/checkpoint-5/deep/a", metadata={}).commit()
    store.put_new("run-2/identity.json", b"{}", metadata={})
    made = [folder, folder / "run-1", folder / "run-1/checkpoint-5", folder / "run-1/checkpoint-5/deep"]
    assert [path for path in (folder.parent, *made, folder / "run-2") if path not in flushed] == []


def test_a_full_disk_is_reported_and_leaves_nothing(
    store: LocalStore, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ServiceError, match="No space left on device"):
        store.stage(file, "a", metadata={})
    with pytest.raises(ServiceError, match="No space left on device"):
        store.put_new("b", b"x", metadata={})
    assert names(folder) == []


@pytest.mark.parametrize("target", ["nowhere", "../outside", "whole"])
@pytest.mark.parametrize("name", ["run-1/checkpoint-5/a", "run-1/checkpoint-5", "run-1"])
def test_a_link_is_never_an_object(
    store: LocalStore, folder: Path, tmp_path: Path, name: str, target: str
) -> None:
    """The link may be broken, lead out of the store, or stay inside."""
    for place in (tmp_path / "outside", folder / "whole"):
        (place / "checkpoint-5").mkdir(parents=True)
        (place / "checkpoint-5" / "a").write_bytes(b"x")
        (place / "a").write_bytes(b"x")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(folder / target)
    key = "run-1/checkpoint-5/a"
    asked: list[Callable[[], object]] = [
        lambda: list(store.list_objects("run-1/")),
        lambda: store.describe(key),
        lambda: list(store.stream(key, 0, 0)),
    ]
    for ask in asked:
        with pytest.raises(VerificationError, match=rf"{name}: a symbolic link"):
            ask()
    assert "run-1" not in store.folders() or name != "run-1"
    assert [found.key for found in store.list_objects("whole/")] == ["whole/a", "whole/checkpoint-5/a"]


def test_nothing_is_written_through_a_link_to_a_folder(
    store: LocalStore, folder: Path, tmp_path: Path, file: Path
) -> None:
    (tmp_path / "outside").mkdir()
    folder.mkdir()
    (folder / "run-1").symlink_to(tmp_path / "outside")
    with pytest.raises(VerificationError, match="run-1: a symbolic link"):
        store.put_new("run-1/a", b"x", metadata={})
    with pytest.raises(VerificationError, match="run-1: a symbolic link"):
        store.stage(file, "run-1/a", metadata={})
    assert names(tmp_path / "outside") == []


def test_without_hard_links_a_taken_name_is_not_overwritten_either(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    assert store.put_new("a", b"first", metadata={})
    assert not store.put_new("a", b"second", metadata={})
    assert (folder / "a").read_bytes() == b"first"


def test_a_key_does_not_lead_outside(store: LocalStore) -> None:
    for key in ("../outside", "a/../../outside", "/etc/passwd"):
        for operation in (store.describe, lambda k: list(store.stream(k, 0, 0))):
            with pytest.raises(VerificationError, match="not a key of a store"):
                operation(key)


def test_leftovers_of_a_crash_are_not_listed(store: LocalStore, file: Path) -> None:
    store.put_new("run-1/a", b"", metadata={})
    store.put_new("run-12/a", b"", metadata={})
    store.stage(file, "run-1/b", metadata={})
    assert [o.key for o in store.list_objects("run-1/")] == ["run-1/a"]
    assert [o.key for o in store.list_objects("run-1")] == ["run-1/a", "run-12/a"]
    assert list(store.folders()) == ["run-1", "run-12"]


def test_a_missing_folder_has_no_runs_and_cannot_be_listed(store: LocalStore) -> None:
    assert list(store.folders()) == []
    assert store.describe("a") is None
    with pytest.raises(FileNotFoundError):
        list(store.stream("a", 0, 0))
    with pytest.raises(ServiceError, match="does not exist"):
        list(store.list_objects(""))


def test_a_folder_that_cannot_be_created_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder in ("/proc/x", "/dev/null/x", f"/{'n' * 300}", f"{tmp_path}/file/x", f"{tmp_path}/loop"):
        with pytest.raises(ServiceError, match="The store cannot use") as refused:
            LocalStore(Path(folder)).put_new("run-1/identity.json", b"{}", metadata={})
        assert folder[:20] in str(refused.value)


def test_what_names_a_store_is_what_opens(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    for url in (folder.as_uri(), f"file://{folder}", f"file://localhost{folder}"):
        assert open_store(url).url == folder.as_uri(), "one form in every output"
    for url in ("s3://bucket", "s3://bucket/a b/c", "file:///srv/store", "file://localhost/srv"):
        assert names_a_store(url), url


def test_any_other_url_is_a_usage_error() -> None:
    for url, message in {
        "file://relative/path": r"must be absolute, with three slashes: file:///relative/path",
        "file://": "must be absolute",
        "": "not a store",
        "runs": "not a store; write s3://bucket/prefix or file:///folder",
        "http://bucket": "not a store",
        "/mnt/runs": r"did you mean file:///mnt/runs\?",
        "ml-runs/train": r"did you mean s3://ml-runs/train\?",
        "s3:/bucket": "not a store",
        "s3://Bucket_1/x": "Bucket_1 is not a name of a bucket",
    }.items():
        assert not names_a_store(url), url
        with pytest.raises(ConfigError, match=message):
            open_store(url)


@pytest.mark.parametrize("early", [True, False])
def test_a_file_that_is_replaced_before_or_during_a_read_is_noticed(
    store: LocalStore, folder: Path, file: Path, early: bool
) -> None:
    store.stage(file, "run-1/a", metadata={}).commit()
    there, other = store.describe("run-1/a"), folder / "other"
    assert there is not None
    assert b"".join(store.stream("run-1/a", 0, 0, identity=there.identity)) == file.read_bytes()
    chunks = store.stream("run-1/a", 0, 0, identity=there.identity)
    first = b"" if early else next(chunks)
    other.write_bytes(file.read_bytes())
    other.replace(folder / "run-1/a")
    with pytest.raises(ObjectChangedError, match="became another file while it was read"):
        b"".join([first, *chunks])
    assert b"".join(store.stream("run-1/a", 0, 0)) == file.read_bytes()


def test_a_file_that_is_removed_meanwhile_counts_as_missing(
    store: LocalStore, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("run-1/a", "run-1/b/c", "run-1/c", "run-10/a"):
        store.stage(file, key, metadata={}).commit()
    keys = ["run-1/a", "run-1/b/c", "run-1/c"]
    assert [found.key for found in store.list_objects("run-1/")] == keys
    assert [found.key for found in store.list_objects("run-1")] == [*keys, "run-10/a"]
    assert [found.key for found in store.list_objects("run-1/b/c")] == ["run-1/b/c"]
    (folder / "run-1/b/c").unlink()
    assert [found.key for found in store.list_objects("run-1/b")] == []
    hashed = "trainyard.gateways.local_store.folder.hash_stored_file"
    monkeypatch.setattr(hashed, lambda path: path.unlink() or path.stat())
    assert store.describe("run-1/c") is None


def test_a_deleted_object_leaves_no_empty_folder(store: LocalStore, folder: Path) -> None:
    for key in ("run-1/run.json", "run-1/checkpoint-1/a/b"):
        store.put_new(key, b"x", metadata={})
    store.delete("run-1/checkpoint-1/a/b")
    store.delete("run-1/checkpoint-1/a/b")
    assert names(folder) == ["run-1/run.json"]
    assert not (folder / "run-1/checkpoint-1").exists()


def test_leftovers_of_a_crash_are_swept_after_a_while(tmp_path: Path) -> None:
    store, file = LocalStore(tmp_path / "store"), tmp_path / "file"
    file.write_bytes(b"x")
    store.stage(file, "run-1/a", metadata={})  # never committed
    assert store.sweep(3600) == 0
    assert store.sweep(-1) == 1
    assert list((tmp_path / "store" / ".incoming").iterdir()) == []
    assert LocalStore(tmp_path / "none").sweep(0) == 0
