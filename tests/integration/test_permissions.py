"""The policy of docs/runbooks/permissions.md, on a server that enforces it: enough, and no more."""

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
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ServiceError

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


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 33 MiB go in parts here, as those above 64 MiB do."""
    monkeypatch.setattr("trainyard.gateways.s3.store.PARTS_FROM_BYTES", 32 << 20)


def large_file(folder: Path) -> Path:
    path = folder / "large"
    path.write_bytes(bytes(33 << 20))
    return path


def test_the_policy_is_enough_to_store_and_to_verify(open_as: OpenAs, make_run: Any, tmp_path: Path) -> None:
    store, run = open_as(), make_run()
    assert sync_run(store, run, None).problems == ()
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).problems == ()
    assert store.stage(large_file(tmp_path), "run-1/large", metadata={}).commit().size == 33 << 20


@pytest.mark.parametrize("without", ["", "s3:AbortMultipartUpload"])
def test_only_with_the_action_an_aborted_upload_leaves_nothing(
    open_as: OpenAs, moto: Any, enforce: Callable[[bool], None], without: str, tmp_path: Path
) -> None:
    store = open_as(without=without)
    store.stage(large_file(tmp_path), "run-1/large", metadata={}).abort()
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
