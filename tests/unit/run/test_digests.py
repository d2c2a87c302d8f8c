"""Digests of a file's parts: the same for any pieces of its bytes; impossible ones are refused."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.run import digests
from trainyard.run.checkpoint_manifest import ManifestFile
from trainyard.run.digests import FileDigests, PartDigests, digests_of_file
from trainyard.run.record_models import validate_record


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PART_BYTES", 10)


@given(st.lists(st.binary(max_size=25), max_size=8))
def test_they_are_the_same_however_the_bytes_came(pieces: list[bytes]) -> None:
    taken, content = FileDigests(), b"".join(pieces)
    for piece in pieces:
        taken.update(piece)
    assert (taken.size, taken.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    wanted = tuple(blake3(content[at : at + 10]).hexdigest() for at in range(0, len(content), 10))
    assert taken.parts == (PartDigests(10, wanted) if len(content) > 10 else None)


def test_those_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(35)))
    taken = digests_of_file(tmp_path / "file")
    assert taken.parts is not None
    assert [len(taken.parts.digests), taken.size] == [4, 35]
    assert validate_record(PartDigests, taken.parts.to_json()) == taken.parts


DIGEST = "0" * 64


@each_case(
    "value",
    [
        {"part_bytes": 10, "parts": [DIGEST]},
        {"part_bytes": 10, "parts": [DIGEST] * 3},
        {"part_bytes": 0, "parts": []},
        {"part_bytes": -10, "parts": [DIGEST] * 2},
        {"part_bytes": 10, "parts": [DIGEST, DIGEST.replace("0", "F")]},
        {"part_bytes": 10, "parts": [DIGEST, "0" * 63]},
        {"part_bytes": 10, "parts": None},
        {"parts": [DIGEST] * 2},
        [],
        None,
    ],
)
def test_what_cannot_be_the_digests_of_a_file_is_refused(value: Any) -> None:
    file = {"path": "a", "size": 20, "sha256": DIGEST, "blake3": value}
    with pytest.raises(ValueError, match=r"^blake3|2 digests|1 digests|3 digests|the record"):
        validate_record(ManifestFile, file)
