"""A store of the commit before S3 was reached by boto3 alone: it verifies, restores, and takes a new sync.

The archive holds the same run as it was in a folder and in a bucket of SeaweedFS: a small checkpoint, and one
with a file of 65 MiB that was sent in five parts with a CRC64NVME. Commit 55e7cb4 made both, by `sync_run`.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.run.directory import RunDirectory

FILTER: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python has extraction filters from 3.11.4 on."""
ARCHIVE = Path(__file__).parents[1] / "fixtures" / "stores-before-boto3.tar.xz"
PART_BYTES = 16 << 20
LARGE = "run-7/checkpoint-200/__0_0.distcp"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, **FILTER)
    return tmp_path


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield (unpacked / "folder").as_uri()
        return
    server = request.getfixturevalue("seaweedfs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    yield f"s3://{bucket_as_it_was(server, unpacked / 'bucket')}"


def bucket_as_it_was(server: Any, folder: Path) -> str:
    """Make a bucket whose objects are put as they were: with their checksums and their parts."""
    bucket = str(server.new_bucket())
    for path in (path for path in folder.rglob("*") if path.is_file()):
        key, content = path.relative_to(folder).as_posix(), path.read_bytes()
        how = {"Bucket": bucket, "Key": key}
        if key == LARGE:
            put_in_parts(server.client, how, content)
        else:
            server.client.put_object(**how, Body=content, ChecksumAlgorithm="SHA256")
    return bucket


def put_in_parts(client: Any, how: dict[str, str], content: bytes) -> None:
    checksum = {"ChecksumAlgorithm": "CRC64NVME"}
    begun = client.create_multipart_upload(**how, **checksum, ChecksumType="FULL_OBJECT")
    upload, parts = {"UploadId": begun["UploadId"]}, []
    for number, at in enumerate(range(0, len(content), PART_BYTES), 1):
        body = content[at : at + PART_BYTES]
        answer = client.upload_part(**how, **upload, **checksum, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
    client.complete_multipart_upload(**how, **upload, MultipartUpload={"Parts": parts})


def test_a_store_of_before_verifies_restores_and_is_gone_on_with(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    for depth in Depth:
        found = verify_run(store, 7, depth=depth)
        assert (found.problems, found.objects_verified) == ((), found.objects_total)
    report = restore(store, Selection(7), tmp_path / "back")
    assert report.steps == (100, 200)
    run = RunDirectory(tmp_path / "back")
    assert verify_run(store, 7, depth=Depth.LISTING, run_directory=run).problems == ()
    assert sync_run(store, run, 7).sent <= 1, "it was all there: at most the metrics' second form is new"


def test_what_the_archive_is_about(unpacked: Path) -> None:
    manifest = json.loads((unpacked / "bucket" / "manifests" / "run-7-manifest.json").read_text())
    large = next(each for each in manifest["objects"] if each["key"] == LARGE)
    assert large["size"] > 64 << 20
    assert large["store_checksum"]["algorithm"] == "CRC64NVME"
    assert large["etag"].endswith("-5")
