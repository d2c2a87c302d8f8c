"""The check whether a folder can be a store, for every way in which a file system refuses."""

import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.cases import each_case

from trainyard.artifacts.store.layout import READINESS, READINESS_SMALL
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store_probe import Probe, probe_store, standing_of


def probed(path: Path) -> Probe:
    return probe_store(open_store(f"file://{quote(str(path))}"), writes=True)


@each_case(
    "name", ["store", "with space", "100%", "#?&;", "ö 试", "'\"$(x)", "a\nb", "file:", "%41", "-rf", "..."]
)
def test_a_folder_of_any_name_is_ready(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "missing" / "parents" / name
    assert probed(folder) == Probe()
    assert probed(folder) == Probe()
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {READINESS, READINESS_SMALL}


def test_with_nothing_to_write_the_folder_is_not_even_made(tmp_path: Path) -> None:
    assert probe_store(open_store(f"file://{tmp_path}/store"), writes=False) == Probe()
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_file_sizes_is_refused(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        (problem,) = probed(tmp_path / "store").problems
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.strerror(errno.EFBIG) in problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may do everything, so tests that run as root access folders as another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o600])
def test_a_folder_that_this_user_may_not_use_is_refused(mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "store"
        with as_nobody():
            if os.geteuid() != Path(name).stat().st_uid:
                (problem, *_) = probed(folder).problems
                assert "Permission denied" in problem
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        folder.chmod(mode)
        with as_nobody():
            found = probed(folder)
        folder.chmod(0o700)
        assert found.problems
        assert all("Permission denied" in problem for problem in found.problems)
        assert list(folder.iterdir()) == []


def test_a_store_that_loses_or_changes_what_it_is_given_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is a real one, but a patch changes what is read from it."""
    for given in (None, b"{", b""):
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "read_object", lambda _store, _key, given=given: given)
            (problem,) = probe_store(store, writes=True).problems
        assert "is missing or has other bytes" in problem


@pytest.mark.parametrize("wanted", [None, 1, 2, 7])
@pytest.mark.parametrize("claims", [{}, {1: "other"}, {1: "mine"}, {1: "other", 3: "mine"}, {2: ""}])
def test_whose_a_number_is(store: Store, wanted: int | None, claims: dict[int, str]) -> None:
    for number, run_id in claims.items():
        content = f'{{"run_id": "{run_id}"}}' if run_id else "torn"
        store.put_new(f"run-{number}/identity.json", content.encode(), metadata={})
        if run_id:
            by_id = f'{{"run_id": "{run_id}", "run_number": {number}}}'
            store.put_new(f"ids/{run_id}.json", by_id.encode(), metadata={})
    found = standing_of(store, "mine", wanted, may_be_stored=True)
    next_free = max(claims, default=0) + 1
    if wanted is None:
        had = next((number for number, run_id in claims.items() if run_id == "mine"), None)
        assert (found.number, found.owner) == ((had, "mine") if had else (next_free, None))
    else:
        assert (found.number, found.owner) == (wanted, claims.get(wanted))
        assert found.free == (None if found.owner in (None, "mine") else next_free)
    unread = standing_of(store, "mine", None, may_be_stored=False)
    assert (unread.number, unread.owner) == (next_free, None)
    if claims:
        assert len(list(store.list_objects(""))) == len(claims) + sum(map(bool, claims.values()))
