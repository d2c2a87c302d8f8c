"""Messages about a store that is not what its address says name the thing that is there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.planted.judging import Answer, call
from tests.integration.planted.yard import Yard, make_all, plain

READERS = ("prove", "store_verify", "store_restore", "store_ls", "store_prune")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return make_all(tmp_path_factory.mktemp("words"), kinds=(plain,))["plain"]


@pytest.fixture
def yard(made: Yard) -> Iterator[Yard]:
    target = made.path.parent / "copy"
    shutil.copytree(made.path, target)
    yield Yard(target)
    shutil.rmtree(target)


def ask(name: str, store: str, yard: Yard) -> Answer:
    more = {
        "prove": ["--run-dir", str(yard.run.path)],
        "store_verify": ["--run-number", "1"],
        "store_restore": ["--run-number", "1", "--to", str(yard.path / "back")],
        "store_prune": ["--all-runs", "--keep-last", "1"],
        "store_sync": ["--run-dir", str(yard.run.path)],
    }
    return call(name, "--store", store, *more.get(name, []), within=yard.path)


@pytest.mark.parametrize("name", [*READERS, "store_sync"])
def test_a_store_that_is_a_file_is_said_to_be_one(yard: Yard, name: str) -> None:
    (yard.path / "file").write_text("")
    for path in ("/dev/null", str(yard.path / "file")):
        answer = ask(name, f"file://{path}", yard)
        assert answer.code in (1, 2, 4), answer.said
        assert f"{Path(path).name} is a file and no folder" in answer.said or "Not a directory" in answer.said
        assert "does not exist" not in answer.said


@pytest.mark.parametrize("name", READERS)
def test_a_store_that_does_not_exist_is_not_said_to_be_empty(yard: Yard, name: str) -> None:
    answer = ask(name, (yard.path / "nowhere").as_uri(), yard)
    assert answer.code in (1, 2, 4), answer.said
    assert "nowhere does not exist" in answer.said
    assert "nothing of this run" not in answer.said
    assert not (yard.path / "nowhere").exists()


def test_a_store_that_holds_other_things_holds_nothing_of_this_run(yard: Yard) -> None:
    (yard.path / "other").mkdir()
    answer = ask("prove", (yard.path / "other").as_uri(), yard)
    assert answer.code == 1
    assert "does not exist" not in answer.said


@pytest.mark.parametrize("content", [b"", b"{", b'{"run_id": 7}', b"\xff", b"[" * 5000])
def test_a_garbled_claim_is_said_before_a_second_copy_is_stored(yard: Yard, content: bytes) -> None:
    (claim,) = yard.store_folder.glob("run-1/identity.json")
    claim.chmod(0o644)
    claim.write_bytes(content)
    before = sorted(yard.store_folder.rglob("*"))
    answer = ask("store_sync", yard.store, yard)
    assert answer.code == 1, answer.said
    assert "identity.json: damaged" in answer.said
    assert "Nothing was stored" in answer.said
    assert sorted(yard.store_folder.rglob("*")) == before
