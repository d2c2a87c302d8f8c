"""Digests of a file: the same for any pieces of its bytes."""

import hashlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from trainyard.run.digests import FileDigests, digests_of_file


@given(st.lists(st.binary(max_size=25), max_size=8))
def test_they_are_the_same_however_the_bytes_came(pieces: list[bytes]) -> None:
    taken, content = FileDigests(), b"".join(pieces)
    for piece in pieces:
        taken.update(piece)
    assert (taken.size, taken.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_those_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content := bytes(range(256)) * 9000)
    taken = digests_of_file(tmp_path / "file")
    assert (taken.size, taken.sha256) == (len(content), hashlib.sha256(content).hexdigest())
