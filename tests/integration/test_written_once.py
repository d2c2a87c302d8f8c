"""What is stored is written once: on a folder, on SeaweedFS and on moto, whose behaviour must be the same."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.artifacts.inventory import list_runs
from trainyard.artifacts.promotion import find_promotable, list_promotions, promote
from trainyard.artifacts.record.run_numbers import claim_of_run
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.store_probe import probe_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import NumberTakenError, UnsupportedOperationError, VerificationError
from trainyard.gateways.s3.client import Bucket
from trainyard.gateways.s3.store import S3Store
from trainyard.run.checkpoint_manifest import describe_files, read_manifest, write_manifest
from trainyard.run.directory import RunDirectory

PART = 5 << 20
KEYS = ("5" * 32, "a" * 32)


@pytest.fixture(params=["folder", "seaweedfs", "moto"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "folder":
        return (tmp_path / "store").as_uri()
    return _new_bucket(request, monkeypatch)


@pytest.fixture(params=["seaweedfs", "moto"])
def remote(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store whose responses can be lost; it sends files above 5 MiB in parts."""
    return open_store(_new_bucket(request, monkeypatch), part_bytes=PART)


def _new_bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    endpoint = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return f"s3://{endpoint.new_bucket()}/runs"


def content_of(store: Store, key: str) -> bytes:
    return b"".join(store.stream(key, 0, 0))


@pytest.mark.parametrize("size", [3000, PART + 1000])
def test_a_name_has_the_first_bytes_it_was_given(place: str, tmp_path: Path, size: int) -> None:
    store = open_store(place, part_bytes=PART)
    first, other = tmp_path / "first", tmp_path / "other"
    for path in (first, other):
        path.write_bytes(os.urandom(size))

    def put(path: Path, replaces: str = "", key: str = "run-1/a") -> str:
        upload = store.stage(path, key, metadata={}, replaces=replaces)
        try:
            upload.commit()
        except VerificationError:
            upload.abort()
            raise
        found = store.describe(key)
        assert found is not None
        return found.identity

    identity = put(first)
    assert put(first) == identity  # the same bytes are accepted, and stored once
    with pytest.raises(VerificationError, match=r"run-1/a: the store holds other bytes under this name"):
        put(other)
    assert content_of(store, "run-1/a") == first.read_bytes()
    # The owner of the key may replace exactly the object that it means.
    newer = put(other, replaces=identity)
    with pytest.raises(VerificationError, match="run-1/a"):
        put(first, replaces=identity)
    assert content_of(store, "run-1/a") == other.read_bytes()
    # Of two that send at once, the later one is refused when it commits.
    late = store.stage(first, "run-1/late", metadata={})
    put(other, key="run-1/late")
    with pytest.raises(VerificationError, match="run-1/late: the store holds other bytes"):
        late.commit()
    late.abort()
    assert (content_of(store, "run-1/late"), newer) == (other.read_bytes(), put(other))
    if isinstance(store, S3Store):
        assert not store._bucket.about("list_multipart_uploads")[0].get("Uploads")
    else:
        assert not list(tmp_path.glob("store/.incoming/*[0-9a-f]"))


@pytest.mark.parametrize(("size", "operation"), [(10, "put_object"), (PART + 9, "complete_multipart_upload")])
def test_a_put_whose_response_was_lost_has_stored_the_file(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, operation: str
) -> None:
    """The request is made twice, as botocore does when it has no response to the first one."""
    answer, asked = Bucket._answer, list[str]()

    def lose_the_first(self: Bucket, client: Any, name: str, arguments: dict[str, Any]) -> Any:
        asked.append(name)
        if name == operation:
            answer(self, client, name, arguments)
        return answer(self, client, name, arguments)

    monkeypatch.setattr(Bucket, "_answer", lose_the_first)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    stored = remote.stage(path, "run-1/a", metadata={}).commit()
    assert (stored.size, stored.checksum["type"]) == (size, "FULL_OBJECT")
    assert content_of(remote, "run-1/a") == path.read_bytes()
    assert asked.count(operation) == 1


def test_after_a_conflict_all_parts_are_sent_again(
    remote: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ClientError

    answer, asked = Bucket._answer, list[str]()

    def refuse_once(self: Bucket, client: Any, name: str, arguments: dict[str, Any]) -> Any:
        asked.append(name)
        if name == "complete_multipart_upload" and asked.count(name) == 1:
            error = {"Error": {"Code": "ConditionalRequestConflict", "Message": "in progress"}}
            raise ClientError(error, "CompleteMultipartUpload")
        return answer(self, client, name, arguments)

    monkeypatch.setattr(Bucket, "_answer", refuse_once)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PART + 9))
    remote.stage(path, "run-1/a", metadata={}).commit()
    assert content_of(remote, "run-1/a") == path.read_bytes()
    assert (asked.count("create_multipart_upload"), asked.count("upload_part")) == (2, 4)
    assert asked.count("abort_multipart_upload") == 1


@pytest.mark.parametrize("operation", ["put_object", "complete_multipart_upload"])
def test_a_check_refuses_a_store_that_ignores_conditions(
    remote: Store, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The header is taken away before the request, which is what such a store does with it."""
    answer = Bucket._answer
    assert probe_store(remote, writes=True).problems == []

    def ignore(self: Bucket, client: Any, name: str, arguments: dict[str, Any]) -> Any:
        if name == operation:
            arguments = {key: value for key, value in arguments.items() if key != "IfNoneMatch"}
        return answer(self, client, name, arguments)

    monkeypatch.setattr(Bucket, "_answer", ignore)
    found = probe_store(remote, writes=True)
    assert ("is not conditional" in found.problems[0], found.is_able) == (True, False)
    if operation == "put_object":
        with pytest.raises(UnsupportedOperationError, match="is not conditional"):
            claim_of_run(remote, {"run_id": "a", "key": KEYS[0]}, None)


def test_what_is_in_an_archive_is_neither_proven_nor_promoted_and_listed_as_such(
    remote: Store, make_run: Callable[..., RunDirectory], request: pytest.FixtureRequest
) -> None:
    """As a lifecycle rule leaves it; on moto it is also brought back."""
    run = make_run()
    sync_run(remote, run, 1)
    data, name = "run-1/checkpoint-200/__0_0.distcp", remote.url.split("/")[2]
    server = request.node.callspec.params["remote"]
    client = request.getfixturevalue(server).client
    given = {"Bucket": name, "Key": f"runs/{data}", "ChecksumAlgorithm": "SHA256"}
    content = (run.checkpoint(200) / "__0_0.distcp").read_bytes()
    client.put_object(**given, Body=content, StorageClass="GLACIER")
    for depth in Depth:
        (problem,) = verify_run(remote, 1, depth=depth, run_directory=run).problems
        assert f"{data}: is in the archive GLACIER" in problem
    with pytest.raises(VerificationError, match=f"{data}: is in the archive GLACIER"):
        find_promotable(remote, 1, 200, depth=Depth.LISTING)
    (listed,) = list_runs(remote, [1], judge=lambda *_: ())
    assert f"{data}: is in the archive GLACIER" in listed.problems[0]
    if server == "moto":
        client.restore_object(Bucket=name, Key=f"runs/{data}", RestoreRequest={"Days": 1})
        assert verify_run(remote, 1, depth=Depth.FULL, run_directory=run).problems == ()
        (listed,) = list_runs(remote, [1], judge=lambda *_: ())
        assert listed.problems == ()


@pytest.fixture
def make_keyed_run(make_run: Callable[..., RunDirectory]) -> Callable[..., RunDirectory]:
    """Make a run whose record has a key, and a given id."""

    def make(name: str, key: str, run_id: str, **more: Any) -> RunDirectory:
        run = make_run(name, **more)
        record = json.loads(run.run_file.read_bytes()) | {"key": key, "run_id": run_id}
        run.run_file.write_text(json.dumps(record))
        for step in run.checkpoint_steps():
            _rewrite(run.checkpoint(step), run_id=run_id)
        return run

    return make


def _rewrite(checkpoint: Path, *, run_id: str | None = None, anew: bool = False) -> None:
    """Write the manifest of a checkpoint again; with `anew`, as after training the same step once more."""
    manifest, data = read_manifest(checkpoint), checkpoint / "__0_0.distcp"
    if anew:
        data.write_bytes(os.urandom(data.stat().st_size))
    files = describe_files(checkpoint)
    write_manifest(checkpoint, replace(manifest, files=files, run_id=run_id or manifest.run_id))


def test_an_id_that_is_used_twice_changes_nothing_of_the_first_run(
    place: str, make_keyed_run: Callable[..., RunDirectory]
) -> None:
    store = open_store(place)
    first = make_keyed_run("first", KEYS[0], "same")
    sync_run(store, first, None)
    run_id, checkpoint = find_promotable(store, 1, 200, depth=Depth.FULL)
    promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.FULL)
    before = {found.key: (found.identity, found.size) for found in store.list_objects("")}
    second = make_keyed_run("second", KEYS[1], "same")
    for wanted in (None, 1, 2):
        with pytest.raises(NumberTakenError, match=r"The id same .* belongs to another run, stored as run 1"):
            sync_run(store, second, wanted)
    third = make_keyed_run("third", KEYS[1], "third")
    with pytest.raises(NumberTakenError, match="belongs to run same; this is run third"):
        sync_run(store, third, 1)
    assert {found.key: (found.identity, found.size) for found in store.list_objects("")} == before
    assert sync_run(store, third, None).run_number == 2
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=first).problems == ()
    assert [each.digest for each in list_promotions(store)] == [checkpoint.digest]


@pytest.mark.parametrize("with_marker", [False, True])
def test_an_unfinished_upload_is_replaced_by_its_owner_and_what_is_listed_never_changes(
    place: str, make_keyed_run: Callable[..., RunDirectory], with_marker: bool
) -> None:
    """Killed while it uploaded step 60, resumed at 40 and saved another 60."""
    store = open_store(place)
    run = make_keyed_run("run", KEYS[0], "run", steps=(40, 60))
    claim_of_run(store, json.loads(run.run_file.read_bytes()), None)
    names = ("__0_0.distcp", ".metadata", *(("manifest.json",) if with_marker else ()))
    for name in names:
        store.stage(run.checkpoint(60) / name, f"run-1/checkpoint-60/{name}", metadata={}).commit()
    _rewrite(run.checkpoint(60), anew=True)
    assert sync_run(store, run, None).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).problems == ()
    listed = content_of(store, "run-1/checkpoint-60/__0_0.distcp")
    assert listed == (run.checkpoint(60) / "__0_0.distcp").read_bytes()

    _rewrite(run.checkpoint(60), anew=True)
    [problem] = sync_run(store, run, None).problems
    assert "checkpoint-60 was not uploaded: run-1/checkpoint-60/" in problem
    assert "lists other bytes under this name, and what is listed never changes" in problem
    assert content_of(store, "run-1/checkpoint-60/__0_0.distcp") == listed
    assert verify_run(store, 1, depth=Depth.FULL).problems == ()
