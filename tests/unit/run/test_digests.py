"""Digests of bytes: the same for any pieces of its bytes."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from trainyard.run.digests import FileDigests


@given(st.lists(st.binary(max_size=25), max_size=8))
def test_they_are_the_same_however_the_bytes_came(pieces: list[bytes]) -> None:
    taken, content = FileDigests(), b"".join(pieces)
    for piece in pieces:
        taken.update(piece)
    assert (taken.size, taken.sha256) == (len(content), hashlib.sha256(content).hexdigest())
