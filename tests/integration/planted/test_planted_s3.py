"""The same situations, and the same verdicts by rule, where the store is a bucket of a real S3 server.

A run of the tests takes each object with each damage that a bucket can show, and the commands in turn;
TRAINYARD_EVERY_SITUATION=classes takes all commands, all plants and each class of fields; =1 each field.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planted.bucket import Bucket, BucketYard, in_bucket
from tests.integration.planted.damage import IN_A_BUCKET
from tests.integration.planted.objects import Thing, things_of
from tests.integration.planted.situations import (
    FORGERIES,
    Situation,
    Verdict,
    of_fields,
    of_plants,
    of_things,
)
from tests.integration.planted.sweep import EVERY, EVERY_FIELD, a_share, mistakes
from tests.integration.planted.yard import Yard


@pytest.fixture
def yard(
    yards: dict[str, Yard], seaweedfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BucketYard:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    bucket = Bucket(seaweedfs.new_bucket(), seaweedfs.client)
    return in_bucket(yards["single"], bucket, tmp_path / "in a bucket")


def objects_of(yard: Yard) -> list[Thing]:
    return [each for each in things_of(yard) if each.place == "store"]


def in_turn(situations: list[Situation]) -> Iterator[Situation]:
    """Each with one of the four commands, the next one each time."""
    names = ("store_alone", "verify", "restore", "prove")
    for number, each in enumerate(situations):
        kept = names[number % 4]
        only: dict[str, Any] = {name: getattr(each, name) if name == kept else None for name in names}
        yield each if EVERY else replace(each, **only)


def wrong(yard: BucketYard, situations: Iterator[Situation] | list[Situation]) -> list[str]:
    """Return the situations that break their rule; the bucket must be good before and after each."""
    good = Situation("bucket", "untouched", lambda _yard: None, *[Verdict.YES] * 4)
    return list(mistakes([good, *situations, good], {"bucket": yard}))


def test_each_object_with_each_damage(yard: BucketYard) -> None:
    situations = list(of_things("bucket", objects_of(yard), IN_A_BUCKET))
    assert len(situations) >= 12 * len(IN_A_BUCKET)
    assert wrong(yard, in_turn(situations)) == []


def test_each_field_and_each_object_beside_the_list(yard: BucketYard) -> None:
    fields = list(of_fields("bucket", yard, objects_of(yard), every=EVERY_FIELD))
    plants = list(of_plants("bucket", yard, objects_of(yard)))
    assert len(fields) > 1000
    assert wrong(yard, [*a_share(fields, 400), *a_share(plants, 8)]) == []


def put_plainly(bucket: Bucket, key: str) -> None:
    """Put the object as a client that asks for no SHA-256."""
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=bucket.held[key], ChecksumAlgorithm="CRC32")


def put_in_parts(bucket: Bucket, key: str) -> None:
    """Put the object in parts, which changes its ETag and checksum."""
    where = {"Bucket": bucket.name, "Key": key}
    upload = bucket.client.create_multipart_upload(**where)["UploadId"]
    part = bucket.client.upload_part(**where, UploadId=upload, PartNumber=1, Body=bucket.held[key])
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    bucket.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)


@pytest.mark.parametrize("put", [put_plainly, put_in_parts])
def test_the_same_bytes_put_by_another_client_stay_good(
    yard: BucketYard, put: Callable[[Bucket, str], None]
) -> None:
    def put_all(_copy: Yard) -> None:
        for key in yard.bucket.held:
            put(yard.bucket, key)

    again = Situation("bucket", put.__name__, put_all, *[Verdict.YES] * 4)
    assert list(mistakes([again], {"bucket": yard})) == []


def test_empty_folders_as_consoles_make_them_stay_good(yard: BucketYard) -> None:
    def put_markers(_copy: Yard) -> None:
        for key in ("run-1/", "run-1/checkpoint-8/", "run-1/records-9/", "manifests/", "metrics/"):
            yard.bucket.client.put_object(Bucket=yard.bucket.name, Key=key, Body=b"")

    marked = Situation("bucket", "markers", put_markers, *[Verdict.YES] * 4)
    assert list(mistakes([marked], {"bucket": yard})) == []


def test_what_was_forged_before_it_was_stored(yard: BucketYard) -> None:
    forged = [each for each in of_plants("bucket", yard, []) if each.store_alone is None]
    assert len(forged) == 2 * len(FORGERIES)
    assert wrong(yard, a_share(forged, 4)) == []
