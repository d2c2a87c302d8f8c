"""The policy of docs/runbooks/permissions.md, on a server that enforces it: enough, and no more."""

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from trainyard.artifacts.promotion import find_promotable, promote
from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.retention.pruning import prune
from trainyard.artifacts.retention.pruning_plan import plan_pruning
from trainyard.artifacts.retention.retention_rules import RetentionRules
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.sync import sync_run
from trainyard.artifacts.verify.verify import Depth, verify_run
from trainyard.errors import ServiceError

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbooks" / "permissions.md"
OBJECT_ACTIONS = {"s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"}
OpenAs = Callable[..., Store]


def policy(bucket: str, *, without: str | None = None, number: int = 0) -> dict[str, Any]:
    """The first policy of the runbook (or another one), for `bucket`, without one action."""
    found = re.findall(r"```json\n(.*?)```", RUNBOOK.read_text(), flags=re.S)
    value: dict[str, Any] = json.loads(found[number].replace("ml-runs", bucket))
    for statement in value["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        statement["Action"] = [action for action in actions if action != without]
    value["Statement"] = [statement for statement in value["Statement"] if statement["Action"]]
    return value


@pytest.fixture
def enforce(moto: Any) -> Iterator[Callable[[bool], None]]:
    """Switches moto's enforcement of policies on and off."""

    def switch(on: bool) -> None:
        free = b"0" if on else b"1000000000"
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"{moto.url}/moto-api/reset-auth", data=free, headers=headers)
        urllib.request.urlopen(request, timeout=30).close()

    switch(False)
    yield switch
    switch(False)


@pytest.fixture
def open_as(moto: Any, enforce: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> OpenAs:
    """Opens a store in a new bucket as a user who has the runbook's policy and nothing else."""

    def open_(*, prefix: str = "phase2", without: str | None = None) -> Store:
        enforce(False)
        bucket, user = moto.new_bucket(), f"user-{time.time_ns()}"
        iam = boto3.client("iam", endpoint_url=moto.url, region_name="us-east-1")
        iam.create_user(UserName=user)
        document = json.dumps(policy(bucket, without=without))
        iam.put_user_policy(UserName=user, PolicyName="artifacts", PolicyDocument=document)
        key = iam.create_access_key(UserName=user)["AccessKey"]
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        enforce(True)
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


@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:GetObject", "s3:PutObject"])
def test_without_an_action_it_is_refused_and_the_action_named(
    open_as: OpenAs, make_run: Any, action: str
) -> None:
    store = open_as(without=action)
    with pytest.raises(
        ServiceError, match=rf"The missing permission is {action} on .*permissions\.md#artifact"
    ):
        sync_run(store, make_run(), None)


@pytest.mark.parametrize("without", [None, "s3:AbortMultipartUpload"])
def test_only_with_the_action_an_aborted_upload_leaves_nothing(
    open_as: OpenAs, moto: Any, enforce: Callable[[bool], None], without: str | None, tmp_path: Path
) -> None:
    store = open_as(without=without)
    store.stage(large_file(tmp_path), "run-1/large", metadata={}).abort()
    enforce(False)
    left = moto.client.list_multipart_uploads(Bucket=store.url.split("/")[2]).get("Uploads", [])
    assert len(left) == (0 if without is None else 1)


def test_another_prefix_is_refused(open_as: OpenAs, make_run: Any) -> None:
    store = open_as(prefix="phase3")
    with pytest.raises(ServiceError, match="refuses GetObject"):
        sync_run(store, make_run(), None)
    with pytest.raises(ServiceError, match="refuses PutObject"):
        store.put_new("run-1/identity.json", b"{}", metadata={})


def test_the_policy_has_no_star_and_no_action_more() -> None:
    listing, objects = policy("ml-runs")["Statement"]
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
        prune(store, plan, by="ada", rules=rules)
    enforce(False)
    iam = boto3.client("iam", endpoint_url=moto.url, region_name="us-east-1")
    user = iam.list_users()["Users"][-1]["UserName"]
    document = json.dumps(policy(store.url.split("/")[2], number=1))
    iam.put_user_policy(UserName=user, PolicyName="retention", PolicyDocument=document)
    enforce(True)
    [plan] = plan_pruning(store, [1], rules)
    assert prune(store, plan, by="ada", rules=rules) == []
    assert verify_run(store, 1, depth=Depth.FULL, run_directory=run).notes == ()
    store.delete("run-1/records-1/run.json")  # one that newer records supersede
    for key in ("manifests/run-1-manifest.json", "run-1/run.json", "promoted/best.json"):
        with pytest.raises(ServiceError, match="s3:DeleteObject"):
            store.delete(key)
