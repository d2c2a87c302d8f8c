"""Complete runs in real S3 servers: synced, continued, damaged behind our back, verified."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.record.contents import contents_of
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import store_contents, sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import describe_files, read_manifest, write_manifest
from trainyard.run.directory import RunDirectory


class Bucket:
    """A bucket, seen as a store and as another client sees it."""

    def __init__(self, endpoint: Any) -> None:
        self.client = endpoint.client
        self.name = endpoint.new_bucket()
        self.store: Store = open_store(f"s3://{self.name}")

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())


@pytest.fixture(params=["seaweedfs"])  # moto is in test_s3_store.py
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return Bucket(endpoint)


@pytest.fixture
def stored(bucket: Bucket, make_run: Any) -> RunDirectory:
    run: RunDirectory = make_run()
    assert sync_run(bucket.store, run, 1).problems == ()
    return run


def test_a_checkpoint_that_is_stored_is_not_read_again(
    bucket: Bucket, stored: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later changes of the local files do not matter, either: the store has the trainer's bytes."""
    read: list[Path] = []

    def noted(path: Path) -> str:
        read.append(path)
        return sha256_of_file(path)

    monkeypatch.setattr("trainyard.artifacts.record.contents.sha256_of_file", noted)
    data = stored.checkpoint(200) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))
    report = sync_run(bucket.store, stored, None)
    assert (report.sent, report.problems) == (0, ())
    assert not [path for path in read if path.suffix == ".distcp"]
    assert verify_run(bucket.store, 1, depth=Depth.FULL).problems == ()


def test_a_checkpoint_that_is_trained_anew_while_it_is_synced_is_not_mixed_with_what_is_stored(
    bucket: Bucket, stored: RunDirectory, make_run: Any, tmp_path: Path
) -> None:
    contents = contents_of(stored, 1, tmp_path)
    before = bucket.get("run-1/checkpoint-100/manifest.json")
    retrain(stored.checkpoint(100))
    store_contents(bucket.store, contents, 1)
    assert bucket.get("run-1/checkpoint-100/manifest.json") == before
    assert verify_run(bucket.store, 1, depth=Depth.FULL).problems == ()
    assert restore(bucket.store, Selection(1, step=100), tmp_path / "back").steps == (100,)
    report = sync_run(bucket.store, stored, 1)
    [problem] = report.problems
    assert report.sent == 0
    assert re.search("checkpoint-100 was not uploaded: run-1/checkpoint-100/.* lists other bytes", problem)
    assert bucket.get("run-1/checkpoint-100/manifest.json") == before


def retrain(checkpoint: Path) -> None:
    """Write a checkpoint of the same step and sizes with other data."""
    data, manifest = checkpoint / "__0_0.distcp", read_manifest(checkpoint)
    data.write_bytes(os.urandom(data.stat().st_size))
    write_manifest(checkpoint, replace(manifest, files=describe_files(checkpoint)))


def test_a_large_file_that_is_another_than_the_manifest_says_is_named_and_not_stored(
    bucket: Bucket, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    run = make_run(steps=(100,), size=34_000_000)
    with (run.checkpoint(100) / "__0_0.distcp").open("r+b") as file:
        file.seek(20_000_000)
        file.write(b"damage")
    [problem] = sync_run(bucket.store, run, 1).problems
    assert "checkpoint-100 was not uploaded: " in problem
    assert re.search(r"__0_0\.distcp: SHA-256 .*, the checkpoint's manifest says", problem)
    assert not list(bucket.store.list_objects("run-1/checkpoint-100/"))
    assert not bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads")


def test_a_large_checkpoint_is_stored_in_parts_and_verifies_against_the_disk(
    bucket: Bucket, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    run = make_run(steps=(500,), size=34_000_000)
    sync_run(bucket.store, run, 7)
    assert verify_run(bucket.store, 7, depth=Depth.LISTING, run_directory=run).ok
    assert sync_run(bucket.store, run, 7).sent == 0
    bucket.client.delete_object(Bucket=bucket.name, Key="manifests/run-7-manifest.json")
    assert sync_run(bucket.store, run, 7).sent == 0, "read back and not sent"
    bucket.put("run-7/checkpoint-500/__0_0.distcp", os.urandom(34_000_000))
    assert not verify_run(bucket.store, 7, depth=Depth.LISTING).ok


def test_a_store_under_a_prefix_verifies_after_it_was_copied_to_another(
    bucket: Bucket, make_run: Any, tmp_path: Path
) -> None:
    run = make_run()
    sync_run(open_store(f"s3://{bucket.name}/phase2"), run, 1)
    for found in list(bucket.store.list_objects("phase2/")):
        bucket.put(found.key.replace("phase2/", "archive/2026/"), bucket.get(found.key))
    assert verify_run(open_store(f"s3://{bucket.name}/archive/2026"), 1, depth=Depth.LISTING).ok
