"""Digests computed early are those of the files at the time of the request."""

import os
import threading
from pathlib import Path

import pytest

from trainyard.run.atomic_files import sha256_of_file
from trainyard.training.runtime import early_digests
from trainyard.training.runtime.early_digests import start_early_digests


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The newest of two checkpoints of the run in `tmp_path`."""
    for step in (4, 12):
        folder = tmp_path / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(b"a" * 100)
        (folder / "b").write_bytes(bytes(range(256)) * 1000)
    return folder


@pytest.fixture
def late_hashes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were hashed only on request."""
    late: list[Path] = []

    def hash_late(path: Path) -> str:
        late.append(path)
        return sha256_of_file(path)

    monkeypatch.setattr(early_digests, "sha256_of_file", hash_late)
    return late


@pytest.mark.parametrize("resume", ["auto", "checkpoints/step-00000012"])
def test_the_newest_or_the_named_checkpoint_is_hashed_ahead(
    tmp_path: Path, checkpoint: Path, late_hashes: list[Path], monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(early_digests, "_CHUNK_BYTES", 1000)
    digest_of = start_early_digests(tmp_path, resume)
    files = sorted(checkpoint.iterdir())
    assert [digest_of(path) for path in files] == [sha256_of_file(path) for path in files]
    assert not late_hashes
    older = tmp_path / "checkpoints" / "step-00000004" / "b"
    assert digest_of(older) == sha256_of_file(older)
    assert late_hashes == [older]


def test_a_file_that_changed_since_is_hashed_again(
    tmp_path: Path, checkpoint: Path, late_hashes: list[Path]
) -> None:
    digest_of = start_early_digests(tmp_path, "auto")
    before = digest_of(checkpoint / "a")
    (checkpoint / "a").write_bytes(b"b" * 100)
    assert digest_of(checkpoint / "a") == sha256_of_file(checkpoint / "a") != before
    assert late_hashes == [checkpoint / "a"]


def test_a_file_that_was_given_its_old_time_back_is_hashed_again(
    tmp_path: Path, checkpoint: Path, late_hashes: list[Path]
) -> None:
    digest_of = start_early_digests(tmp_path, "auto")
    path = checkpoint / "a"
    digest_of(path)
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the kernel's clock for files is coarse
        path.write_bytes(b"b" * 100)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert digest_of(path) == sha256_of_file(path)
    assert late_hashes == [path]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError])
def test_no_error_of_early_hashing_makes_a_caller_wait_endlessly(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(path: Path) -> None:
        raise error(path)

    monkeypatch.setattr(early_digests, "_hash_file", fail)
    digest_of = start_early_digests(tmp_path, "auto")
    found: dict[Path, str] = {}
    asking = threading.Thread(
        target=lambda: found.update({path: digest_of(path) for path in checkpoint.iterdir()}), daemon=True
    )
    asking.start()
    asking.join(30)
    for thread in threading.enumerate():
        if thread.name == "early-digests":  # else it may end during the next test
            thread.join(30)
    assert found == {path: sha256_of_file(path) for path in checkpoint.iterdir()}


def test_a_folder_that_cannot_be_listed_is_reported_by_the_search(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert start_early_digests(tmp_path, "auto") is sha256_of_file
    assert start_early_digests(None, str(checkpoint)) is sha256_of_file


def test_a_file_that_cannot_be_read_fails_when_its_digest_is_requested(
    tmp_path: Path, checkpoint: Path
) -> None:
    def raise_missing(path: Path) -> None:
        raise OSError(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(early_digests, "_hash_file", raise_missing)
        digest_of = start_early_digests(tmp_path, "auto")
    (checkpoint / "a").unlink()
    with pytest.raises(FileNotFoundError):
        digest_of(checkpoint / "a")


@pytest.mark.parametrize(
    ("run", "resume"), [(None, "auto"), (".", "none"), (".", "auto"), (".", "no/folder")]
)
def test_without_a_checkpoint_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str | None, resume: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert start_early_digests(Path(run) if run else None, resume) is sha256_of_file
