"""Bucket settings are read, judged and corrected on moto's server; SeaweedFS lacks some of them."""

import json
from typing import Any

import pytest

from trainyard.artifacts.store.store_address import open_setup
from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.s3.bucket_setup import BucketSetup

ALL = ["public access block", "encryption", "versioning", "aborted uploads", "no expiry", "owner pays"]


@pytest.fixture
def bucket(moto: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
    return str(moto.new_bucket())


def setup(bucket: str, prefix: str = "/phase2") -> BucketSetup:
    return open_setup(f"s3://{bucket}{prefix}", encryption="AES256")


def verdicts(bucket: str, *, fix: bool = False, prefix: str = "/phase2") -> dict[str, bool | None]:
    return {found.name: found.good for found in setup(bucket, prefix).findings(fix=fix)}


def test_a_new_bucket_wants_attention_and_is_mended_once(moto: Any, bucket: str) -> None:
    before = verdicts(bucket)
    assert list(before) == ALL
    assert {name for name, good in before.items() if good is False} >= {
        *("public access block", "versioning", "aborted uploads"),
    }
    fixed = {found.name for found in setup(bucket).findings(fix=True) if found.fixed}
    assert fixed >= {"public access block", "versioning", "aborted uploads"}
    assert set(verdicts(bucket).values()) == {True}
    assert not any(found.fixed for found in setup(bucket).findings(fix=True))
    assert moto.client.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    blocks = moto.client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    assert set(blocks.values()) == {True}


def test_the_rules_that_there_are_stay_and_one_that_expires_objects_is_named(moto: Any, bucket: str) -> None:
    rules = [
        {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 3}},
        {"ID": "all", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 90}},
    ]
    moto.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": rules})
    found = {each.name: each for each in setup(bucket).findings(fix=True)}
    assert found["aborted uploads"].fixed
    assert found["no expiry"].good is False
    assert "the rule all expires or moves current objects" in found["no expiry"].text()
    kept = moto.client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    assert {rule["ID"] for rule in kept} == {"logs", "all", "abort-incomplete-uploads"}


def test_a_rule_for_another_prefix_is_not_enough_and_not_ours(moto: Any, bucket: str) -> None:
    rule = {
        "ID": "other",
        "Status": "Enabled",
        "Filter": {"Prefix": "phase1/"},
        "Expiration": {"Days": 3},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }
    moto.client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    now = verdicts(bucket)
    assert (now["aborted uploads"], now["no expiry"]) == (False, True)


def test_what_a_store_does_not_know_is_told(seaweedfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.url)
    found = list(setup(seaweedfs.new_bucket()).findings(fix=True))
    assert [each.name for each in found] == ALL
    assert all(each.good or "store" in each.found for each in found), [each.text() for each in found]


def test_a_missing_permission_is_named_and_no_failure(
    moto: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainyard.gateways.s3.client import Bucket

    monkeypatch.setattr(Bucket, "about", lambda *_, **__: (None, "AccessDenied"))
    found = list(setup(bucket).findings(fix=True))
    assert {each.good for each in found} == {None}
    assert "not allowed: s3:GetBucketPublicAccessBlock is missing" in found[0].text()


def test_a_bucket_that_is_not_there_is_refused(moto: Any, bucket: str) -> None:
    with pytest.raises(ServiceError, match="bucket no-such-bucket does not exist"):
        list(setup("no-such-bucket").findings(fix=False))
    with pytest.raises(ConfigError, match="only a bucket has settings"):
        open_setup("file:///folder", encryption="AES256")


def test_the_script_ends_with_1_then_0_and_says_each_setting(
    moto: Any,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import importlib

    script = importlib.import_module("trainyard.commands.store_check")
    assert script.main(["--store", f"s3://{bucket}"]) == 1
    assert "versioning           not ok     never enabled" in capsys.readouterr().out
    assert script.main(["--store", f"s3://{bucket}", "--fix", "--json"]) == 0
    assert {each["good"] for each in json.loads(capsys.readouterr().out)["findings"]} == {True}
