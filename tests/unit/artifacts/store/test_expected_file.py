"""The digests of a file's parts in a manifest, and files that differ from them."""

from pathlib import Path

import pytest
from blake3 import blake3

from trainyard.artifacts.store.expected_file import claim_of
from trainyard.errors import CheckpointError
from trainyard.run.checkpoint_manifest import ManifestFile
from trainyard.run.digests import PartDigests

CONTENT = bytes(range(25))
PARTS = PartDigests(10, tuple(blake3(CONTENT[at : at + 10]).hexdigest() for at in (0, 10, 20)))
FILE = ManifestFile("file", 25, "0" * 64, PARTS)


def test_a_file_that_is_as_claimed_passes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    claim = claim_of(tmp_path / "file", FILE)
    assert claim is not None
    claim.require()
    assert (claim.size, claim.sha256, claim.part_bytes, claim.is_vouched_for) == (25, "0" * 64, 10, False)


@pytest.mark.parametrize(("place", "span"), [(0, "0 to 10"), (19, "10 to 20"), (24, "20 to 25")])
def test_the_part_that_is_another_is_named(tmp_path: Path, place: int, span: str) -> None:
    content = bytearray(CONTENT)
    content[place] ^= 1
    (tmp_path / "file").write_bytes(content)
    claim = claim_of(tmp_path / "file", FILE)
    assert claim is not None
    with pytest.raises(CheckpointError, match=rf"file: BLAKE3 .* of bytes {span}, the checkpoint's manifest"):
        claim.require()


def test_a_file_that_ends_too_early_is_another(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:10])
    claim = claim_of(tmp_path / "file", FILE)
    assert claim is not None
    with pytest.raises(CheckpointError, match="of bytes 10 to 20"):
        claim.require()


def test_without_digests_of_parts_nothing_is_claimed(tmp_path: Path) -> None:
    assert claim_of(tmp_path, None) is None
    assert claim_of(tmp_path, ManifestFile("file", 25, "0" * 64)) is None
