"""The S3 gateway and complete runs on real servers: SeaweedFS, and moto where two should agree."""

import base64
import hashlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.record.contents import contents_of
from trainyard.artifacts.record.run_numbers import begin_attempt, claim_run, newest_attempt, stored_claim
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.object_store import Store, checksum_agrees
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import store_contents, sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import NumberTakenError, RunConflictError, ServiceError, VerificationError
from trainyard.gateways import bounded_calls
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import describe_files, read_manifest, write_manifest
from trainyard.run.directory import RunDirectory

MIB = 1 << 20


@pytest.fixture(params=["seaweedfs", "moto"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return endpoint


@pytest.fixture
def bucket(server: Any) -> str:
    return str(server.new_bucket())


@pytest.fixture(params=["file", "seaweedfs", "moto"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    if request.param == "file":
        return open_store(f"file://{tmp_path}/store")
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return open_store(f"s3://{endpoint.new_bucket()}")


@pytest.fixture
def weed(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    return seaweedfs


def random_file(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


def test_a_file_is_stored_encrypted_with_its_metadata_and_the_stores_sha256(
    server: Any, bucket: str, tmp_path: Path
) -> None:
    file = random_file(tmp_path / "file", 5000)
    digest = hashlib.sha256(file.read_bytes())
    store = open_store(f"s3://{bucket}/phase2")
    upload = store.stage(file, "run-1/a", metadata={"git-commit": "3f2c1ab", "run-number": "1"})
    assert store.describe("run-1/a") is None
    stored = upload.commit()
    assert upload.sha256 == digest.hexdigest()
    assert stored.checksum["value"] == base64.b64encode(digest.digest()).decode()
    assert stored.checksum["type"] == "FULL_OBJECT"
    head = server.client.head_object(Bucket=bucket, Key="phase2/run-1/a")
    assert head["ServerSideEncryption"] == "AES256"
    assert head["Metadata"] == {"git-commit": "3f2c1ab", "run-number": "1"}
    assert store.describe("run-1/a") == stored


@pytest.mark.usefixtures("small_limit")
def test_bodies_are_signed_where_somebody_could_change_them_and_arrive_as_they_are(
    weed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SeaweedFS compares the signed SHA-256; it has another address than loopback, as in a cluster."""
    monkeypatch.setattr("trainyard.gateways.s3.client.is_tamper_proof", lambda _: False)
    bucket = weed.new_bucket()
    store = open_store(f"s3://{bucket}")
    for size in (1000, MIB + 1, 40 * MIB):
        file = random_file(tmp_path / f"{size}", size)
        store.stage(file, file.name, metadata={}).commit()
        assert weed.client.get_object(Bucket=bucket, Key=file.name)["Body"].read() == file.read_bytes()


@pytest.mark.parametrize("key", ["run-1/a", "run-1/naïve file/+ ~*'()!,;=:@&$?#%2F.bin"])
def test_a_key_of_any_name_is_the_same_for_other_clients(
    key: str, server: Any, bucket: str, tmp_path: Path
) -> None:
    store = open_store(f"s3://{bucket}")
    (tmp_path / "file").write_bytes(b"1234")
    stored = store.stage(tmp_path / "file", key, metadata={}).commit()
    assert server.client.get_object(Bucket=bucket, Key=key)["Body"].read() == b"1234"
    assert [(found.key, found.etag) for found in store.list_objects(key[:-1])] == [(key, stored.etag)]
    assert list(store.folders()) == ["run-1"]
    assert b"".join(store.stream(key, 1, 4)) == b"234"
    assert store.describe(f"{key}-not") is None


def test_numbers_and_attempts_are_claimed_by_one_of_many(bucket: str) -> None:
    def claim(index: int) -> int:
        store = open_store(f"s3://{bucket}/runs")
        return claim_run(store, run_id=f"racer-{index}", key=f"{index:032x}", wanted=None).number

    def began(_: int) -> bool:
        try:
            begin_attempt(store, first, 2)
        except RunConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(claim, range(6))) == [1, 2, 3, 4, 5, 6]
        store = open_store(f"s3://{bucket}/runs")
        first = claim_run(store, run_id="racer-3", key=f"{3:032x}", wanted=None)
        assert first == stored_claim(store, "racer-3")
        assert sum(pool.map(began, range(6))) == 1
    assert (newest_attempt(store, first.number), newest_attempt(store, 7)) == (2, 1)
    with pytest.raises(NumberTakenError, match="belongs to another run"):
        claim_run(store, run_id="racer-3", key="f" * 32, wanted=None)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files above 32 MiB go in parts, instead of those above 64 MiB."""
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 * MIB)


@pytest.mark.usefixtures("small_limit")
def test_a_large_file_goes_in_parts_and_appears_only_when_committed(
    server: Any, bucket: str, tmp_path: Path
) -> None:
    file = random_file(tmp_path / "file", 33 * MIB + 5)
    store = open_store(f"s3://{bucket}")
    upload = store.stage(file, "big", metadata={})
    assert list(store.list_objects("")) == []
    stored = upload.commit()
    assert upload.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert hashlib.sha256(b"".join(store.stream("big", 0, upload.size))).hexdigest() == upload.sha256
    described = store.describe("big")
    assert described is not None
    assert checksum_agrees(described.checksum, upload.sha256, stored.checksum) is True
    assert server.client.head_object(Bucket=bucket, Key="big")["ServerSideEncryption"] == "AES256"
    assert (stored.checksum["algorithm"], stored.checksum["type"]) == ("CRC64NVME", "FULL_OBJECT")


def test_keys_are_relative_to_the_prefix(bucket: str) -> None:
    store = open_store(f"s3://{bucket}/a/b/")
    for key in ("run-1/x", "run-12/y", "manifests/run-1-manifest.json"):
        store.put_new(key, b"", metadata={})
    open_store(f"s3://{bucket}").put_new("run-9/elsewhere", b"", metadata={})
    assert list(store.folders()) == ["manifests", "run-1", "run-12"]
    assert [found.key for found in store.list_objects("run-1/")] == ["run-1/x"]


def test_a_listing_has_more_than_a_page(weed: Any) -> None:
    bucket = weed.new_bucket()
    for number in range(1005):
        weed.client.put_object(Bucket=bucket, Key=f"k{number:04d}", Body=b"")
    assert len(list(open_store(f"s3://{bucket}").list_objects("k"))) == 1005


def test_an_object_that_is_not_there_is_an_answer(store: Store) -> None:
    assert store.describe("none") is None
    assert store.read_object("none") is None
    with pytest.raises(FileNotFoundError):
        list(store.stream("none", 0, 0))


def test_no_encryption_is_asked_for_when_none_is_wanted(server: Any, bucket: str, tmp_path: Path) -> None:
    store = open_store(f"s3://{bucket}", encryption="none")
    store.stage(random_file(tmp_path / "file", 10), "plain", metadata={}).commit()
    assert "ServerSideEncryption" not in server.client.head_object(Bucket=bucket, Key="plain")


def test_a_file_that_changes_after_it_was_hashed_is_not_stored(weed: Any, tmp_path: Path) -> None:
    store = open_store(f"s3://{weed.new_bucket()}")
    file = random_file(tmp_path / "file", 1000)
    upload = store.stage(file, "a", metadata={})
    random_file(file, 1000)
    with pytest.raises(VerificationError, match="received other bytes than were sent"):
        upload.commit()
    assert store.describe("a") is None


def test_an_object_is_read_from_a_start_and_nothing_beyond_its_end(store: Store) -> None:
    store.put_new("a", b"0123456789", metadata={})
    store.put_new("empty", b"", metadata={})
    for start, rest in ((4, b"456789"), (9, b"9"), (10, b"")):
        assert b"".join(store.stream("a", start, 17)) == rest
    assert b"".join(store.stream("empty", 0, 1)) == b""
    with pytest.raises(FileNotFoundError):
        list(store.stream("none", 1, 2))


def test_a_small_object_that_arrives_as_another_is_read_again_and_refused_in_the_end(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers send the checksum along; the test damages the answer."""
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    store: Any = open_store(f"s3://{bucket}")
    store.put_new("a", b"1234", metadata={})
    read, damaged = store._read, 0

    def damage(*span: Any, **options: Any) -> Any:
        nonlocal damaged
        for chunk in read(*span, **options):
            damaged -= 1
            yield b"1235" if damaged >= 0 else chunk

    monkeypatch.setattr(store, "_read", damage)
    damaged = 2
    assert store.read_object("a") == b"1234"
    damaged = 99
    with pytest.raises(ServiceError, match=r"a: its bytes from .* do not match its checksum, each time"):
        store.read_object("a")


def test_a_swap_replaces_only_what_is_still_there(store: Store) -> None:
    assert not store.swap("promoted/best.json", b"1", b"2", metadata={})
    store.put_new("promoted/best.json", b"1", metadata={})
    assert store.swap("promoted/best.json", b"1", b"2", metadata={})
    assert not store.swap("promoted/best.json", b"1", b"3", metadata={})
    assert store.read_object("promoted/best.json") == b"2"


def test_of_many_who_swap_at_once_one_wins(store: Store) -> None:
    store.put_new("a", b"old", metadata={})
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: store.swap("a", b"old", b"%d" % n, metadata={}), range(8)))
    assert sum(won) == 1
    assert store.read_object("a") == b"%d" % won.index(True)


def test_a_deleted_object_is_gone_and_deleting_again_is_no_error(store: Store) -> None:
    store.put_new("run-1/a", b"x", metadata={})
    assert abs(next(iter(store.list_objects("run-1/"))).modified - time.time()) < 60
    for _ in range(2):
        store.delete("run-1/a")
    assert list(store.list_objects("")) == []


def begin_upload(server: Any, bucket: str, key: str) -> None:
    created = server.client.create_multipart_upload(Bucket=bucket, Key=key)
    part = {"PartNumber": 1, "UploadId": created["UploadId"], "Body": b"x"}
    server.client.upload_part(Bucket=bucket, Key=key, **part)


def test_abandoned_uploads_of_runs_are_swept_and_no_others(weed: Any) -> None:
    bucket = weed.new_bucket()
    for key in ("p/run-1/checkpoint-5/data", "p/run-x/data", "p/other", "run-1/data"):
        begin_upload(weed, bucket, key)
    store = open_store(f"s3://{bucket}/p")
    assert store.sweep(3600) == 0
    assert store.sweep(-5) == 1  # the store reports the time in whole seconds
    left = {upload["Key"] for upload in weed.client.list_multipart_uploads(Bucket=bucket)["Uploads"]}
    assert left == {"p/run-x/data", "p/other", "run-1/data"}


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


@pytest.fixture(params=["seaweedfs"])  # moto has the tests above
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return Bucket(endpoint)


@pytest.fixture
def stored(held: Bucket, make_run: Any) -> RunDirectory:
    run: RunDirectory = make_run()
    assert sync_run(held.store, run, 1).problems == ()
    return run


def test_a_checkpoint_that_is_stored_is_not_read_again(
    held: Bucket, stored: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later changes of the local files do not matter, either: the store has the trainer's bytes."""
    read: list[Path] = []

    def noted(path: Path) -> str:
        read.append(path)
        return sha256_of_file(path)

    monkeypatch.setattr("trainyard.artifacts.record.contents.sha256_of_file", noted)
    data = stored.checkpoint(200) / "__0_0.distcp"
    data.write_bytes(bytes(data.stat().st_size))
    report = sync_run(held.store, stored, None)
    assert (report.sent, report.problems) == (0, ())
    assert not [path for path in read if path.suffix == ".distcp"]
    assert verify_run(held.store, 1, depth=Depth.FULL).problems == ()


def test_a_checkpoint_that_is_trained_anew_while_it_is_synced_is_not_mixed_with_what_is_stored(
    held: Bucket, stored: RunDirectory, make_run: Any, tmp_path: Path
) -> None:
    contents = contents_of(stored, 1, tmp_path)
    before = held.get("run-1/checkpoint-100/manifest.json")
    retrain(stored.checkpoint(100))
    store_contents(held.store, contents, 1)
    assert held.get("run-1/checkpoint-100/manifest.json") == before
    assert verify_run(held.store, 1, depth=Depth.FULL).problems == ()
    assert restore(held.store, Selection(1, step=100), tmp_path / "back").steps == (100,)
    report = sync_run(held.store, stored, 1)
    [problem] = report.problems
    assert report.sent == 0
    assert re.search("checkpoint-100 was not uploaded: run-1/checkpoint-100/.* lists other bytes", problem)
    assert held.get("run-1/checkpoint-100/manifest.json") == before


def retrain(checkpoint: Path) -> None:
    """Write a checkpoint of the same step and sizes with other data."""
    data, manifest = checkpoint / "__0_0.distcp", read_manifest(checkpoint)
    data.write_bytes(os.urandom(data.stat().st_size))
    write_manifest(checkpoint, replace(manifest, files=describe_files(checkpoint)))


def test_a_large_file_that_is_another_than_the_manifest_says_is_named_and_not_stored(
    held: Bucket, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    run = make_run(steps=(100,), size=34_000_000)
    with (run.checkpoint(100) / "__0_0.distcp").open("r+b") as file:
        file.seek(20_000_000)
        file.write(b"damage")
    [problem] = sync_run(held.store, run, 1).problems
    assert "checkpoint-100 was not uploaded: " in problem
    assert re.search(r"__0_0\.distcp: SHA-256 .*, the checkpoint's manifest says", problem)
    assert not list(held.store.list_objects("run-1/checkpoint-100/"))
    assert not held.client.list_multipart_uploads(Bucket=held.name).get("Uploads")


def test_a_large_checkpoint_is_stored_in_parts_and_verifies_against_the_disk(
    held: Bucket, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    run = make_run(steps=(500,), size=34_000_000)
    sync_run(held.store, run, 7)
    assert verify_run(held.store, 7, depth=Depth.LISTING, run_directory=run).ok
    assert sync_run(held.store, run, 7).sent == 0
    held.client.delete_object(Bucket=held.name, Key="manifests/run-7-manifest.json")
    assert sync_run(held.store, run, 7).sent == 0, "read back and not sent"
    held.put("run-7/checkpoint-500/__0_0.distcp", os.urandom(34_000_000))
    assert not verify_run(held.store, 7, depth=Depth.LISTING).ok


def test_a_store_under_a_prefix_verifies_after_it_was_copied_to_another(
    held: Bucket, make_run: Any, tmp_path: Path
) -> None:
    run = make_run()
    sync_run(open_store(f"s3://{held.name}/phase2"), run, 1)
    for found in list(held.store.list_objects("phase2/")):
        held.put(found.key.replace("phase2/", "archive/2026/"), held.get(found.key))
    assert verify_run(open_store(f"s3://{held.name}/archive/2026"), 1, depth=Depth.LISTING).ok
