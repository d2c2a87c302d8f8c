"""Buckets: their settings are read, judged and corrected; the runbook's policy is enough, and no more."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.integration.conftest import AsUser, documented_policy

from trainyard.artifacts.promotion import find_promotable, promote
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import RetentionRules, plan_pruning
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_setup, open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
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
        *("public access block", "versioning", "aborted uploads")
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
    rule: dict[str, Any] = {"ID": "other", "Status": "Enabled", "Filter": {"Prefix": "phase1/"}}
    rule |= {"Expiration": {"Days": 3}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
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
    moto: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib

    script = importlib.import_module("trainyard.commands.store_check")
    assert script.main(["--store", f"s3://{bucket}"]) == 1
    assert "versioning           not ok     never enabled" in capsys.readouterr().out
    assert script.main(["--store", f"s3://{bucket}", "--fix", "--json"]) == 0
    assert {each["good"] for each in json.loads(capsys.readouterr().out)["findings"]} == {True}


OBJECT_ACTIONS = {"s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"}
OpenAs = Callable[..., Store]


@pytest.fixture
def open_as(as_user: AsUser, monkeypatch: pytest.MonkeyPatch) -> OpenAs:
    """Opens a store in a new bucket as a user who has the runbook's policy and nothing else."""

    def open_(*, prefix: str = "phase2", without: str = "") -> Store:
        bucket, variables = as_user(lambda bucket: documented_policy(bucket, without))
        for name, value in {**variables, "AWS_MAX_ATTEMPTS": "1"}.items():
            monkeypatch.setenv(name, value)
        return open_store(f"s3://{bucket}/{prefix}")

    return open_


@pytest.fixture
def large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 33 MiB, which goes in parts here, as those above 64 MiB do."""
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)
    (tmp_path / "large").write_bytes(bytes(33 << 20))
    return tmp_path / "large"


def test_the_policy_is_enough_to_store_and_to_verify(
    open_as: OpenAs, make_run: Any, large_file: Path
) -> None:
    store, run = open_as(), make_run()
    assert sync_run(store, run, None).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).problems == ()
    assert store.stage(large_file, "run-1/large", metadata={}).commit().size == 33 << 20


@pytest.mark.parametrize("without", ["", "s3:AbortMultipartUpload"])
def test_only_with_the_action_an_aborted_upload_leaves_nothing(
    open_as: OpenAs, moto: Any, enforce: Callable[[bool], None], without: str, large_file: Path
) -> None:
    store = open_as(without=without)
    store.stage(large_file, "run-1/large", metadata={}).abort()
    enforce(False)
    left = moto.client.list_multipart_uploads(Bucket=store.url.split("/")[2]).get("Uploads", [])
    assert len(left) == bool(without)


def test_another_prefix_is_refused(open_as: OpenAs, make_run: Any) -> None:
    store = open_as(prefix="phase3")
    with pytest.raises(ServiceError, match="refuses GetObject"):
        sync_run(store, make_run(), None)
    with pytest.raises(ServiceError, match="refuses PutObject"):
        store.put_new("run-1/identity.json", b"{}", metadata={})


def test_the_policy_has_no_star_and_no_action_more() -> None:
    listing, objects = documented_policy("ml-runs")
    assert (listing["Action"], listing["Resource"]) == (["s3:ListBucket"], "arn:aws:s3:::ml-runs")
    assert (set(objects["Action"]), objects["Resource"]) == (OBJECT_ACTIONS, "arn:aws:s3:::ml-runs/phase2/*")


def test_only_the_role_for_retention_removes_and_only_checkpoints_and_copies_of_records(
    open_as: OpenAs, moto: Any, enforce: Callable[[bool], None], make_run: Any, tmp_path: Path
) -> None:
    store, run, rules = open_as(), make_run(), RetentionRules(keep_last=1)
    sync_run(store, run, 1)
    run_id, checkpoint = find_promotable(store, 1, 200, depth=Depth.FULL)
    promote(store, "best", checkpoint, run_id=run_id, by="ada", depth=Depth.FULL)
    promote(store, "best", checkpoint, run_id=run_id, by="bob", depth=Depth.FULL)
    assert restore(store, Selection(1), tmp_path / "back").steps == (100, 200)
    [plan] = plan_pruning(store, [1], rules)
    with pytest.raises(ServiceError, match=r"The missing permission is s3:DeleteObject on"):
        prune(store, plan, by="ada")
    enforce(False)
    iam = boto3.client("iam", endpoint_url=moto.url, region_name="us-east-1")
    user = iam.list_users()["Users"][-1]["UserName"]
    statements = documented_policy(store.url.split("/")[2], number=1)
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_user_policy(UserName=user, PolicyName="retention", PolicyDocument=document)
    enforce(True)
    [plan] = plan_pruning(store, [1], rules)
    assert prune(store, plan, by="ada") == []
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).notes == ()
    store.delete("run-1/records-1/run.json")  # one that newer records supersede
    for key in ("manifests/run-1-manifest.json", "run-1/run.json", "promoted/best.json"):
        with pytest.raises(ServiceError, match="s3:DeleteObject"):
            store.delete(key)
