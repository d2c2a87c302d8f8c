"""The messages for S3's refusals, and the parts of files; real servers are in tests/integration."""

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    TokenRetrievalError,
)
from tests.cases import each_case

from trainyard.errors import ServiceError, UnsupportedOperationError
from trainyard.gateways.s3.client import _refusal as refusal_class
from trainyard.gateways.s3.client import connect, is_tamper_proof
from trainyard.gateways.s3.refusals import UNSUPPORTED, explain_refusal
from trainyard.gateways.s3.uploads import part_bytes

MIB, GIB = 1 << 20, 1 << 30


def refusal(code: str, message: str = "", *, status: int = 403, headers: dict[str, str] | None = None) -> Any:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    return ClientError(answer, "PutObject")


def said(error: Exception, operation: str = "put_object") -> str:
    return explain_refusal(error, bucket="ml-runs", operation=operation, endpoint="https://s3.amazonaws.com")


def test_denied_access_names_who_and_the_permission() -> None:
    who = "arn:aws:sts::123456789012:assumed-role/trainyard-ci/session"
    text = said(refusal("AccessDenied", f"User: {who} is not authorized to perform: s3:PutObject"))
    assert text == (
        f"The bucket ml-runs answers, but refuses PutObject for {who} (AccessDenied). "
        "The missing permission is s3:PutObject on arn:aws:s3:::ml-runs/*. "
        "The complete policy is in docs/runbooks/permissions.md#artifacts."
    )


def test_the_permission_is_that_of_the_operation() -> None:
    for operation, permission in {
        "head_object": "s3:GetObject on arn:aws:s3:::ml-runs/*. Without s3:ListBucket",
        "list_objects_v2": "s3:ListBucket on arn:aws:s3:::ml-runs.",
        "upload_part": "s3:PutObject on",
        "abort_multipart_upload": "s3:AbortMultipartUpload on",
    }.items():
        assert permission in said(refusal("403", "Forbidden"), operation)


@each_case(
    ("error", "text"),
    [
        (refusal("NoSuchBucket", status=404), "The bucket ml-runs does not exist"),
        (refusal("RequestTimeTooSkewed"), "This machine's clock differs too much"),
        (refusal("ExpiredToken"), "the session has expired; sign in or assume the role again"),
        (refusal("InvalidAccessKeyId"), "the access key does not exist there"),
        (refusal("SignatureDoesNotMatch"), "the secret key does not belong"),
        (refusal("PermanentRedirect", "use eu-west-1", status=301), "another region"),
        (refusal("BadDigest", status=400), "received other bytes than were sent"),
        (refusal("SlowDown", "Reduce your rate.", status=503), "cannot serve PutObject now: SlowDown Reduce"),
        (refusal("", status=500), "cannot serve PutObject now: 500. Try again later."),
        (
            refusal("QuotaExceeded", "Full", status=400),
            "The bucket ml-runs refuses PutObject: QuotaExceeded Full.",
        ),
        (EndpointConnectionError(endpoint_url="https://x"), "No usable answer from https://s3.amazonaws.com"),
        (NoCredentialsError(), "There are no AWS credentials for s3://ml-runs. Set AWS_ACCESS_KEY_ID"),
        (
            TokenRetrievalError(provider="sso", error_msg="gone"),
            "credentials for s3://ml-runs could not be obtained",
        ),
        (ParamValidationError(report="non ascii"), "The request to S3 is not valid"),
    ],
)
def test_each_cause_is_told(error: Exception, text: str) -> None:
    assert text in said(error)


def test_the_variable_of_the_advice_changes_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_REGION would not change it: AWS_DEFAULT_REGION and the profile's region come first."""
    assert "Set AWS_DEFAULT_REGION to it" in said(refusal("PermanentRedirect", status=301))
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert connect(attempts=1, call_seconds=1.0).meta.region_name == "eu-west-1"


def test_what_a_store_cannot_do_is_never_put_off() -> None:
    for code in UNSUPPORTED:
        text = said(refusal(code, "No.", status=400), "create_multipart_upload")
        assert f"cannot do CreateMultipartUpload: {code} No. Trying again does not help" in text
        assert "later" not in text


def test_a_head_request_that_says_only_400_may_mean_an_expired_session() -> None:
    """The answer to a HEAD request has no body, so S3 cannot name the cause: another store would not help."""
    text = said(refusal("400", "Bad Request", status=400), "head_object")
    assert "Perhaps the session has expired; sign in or assume the role again" in text
    assert "another store" not in text
    assert issubclass(refusal_class("400", 400), ServiceError)
    assert not issubclass(refusal_class("400", 400), UnsupportedOperationError)


def test_a_status_without_a_code_decides_whether_to_try_later() -> None:
    for status in (405, 411, 501):
        assert f"cannot do UploadPart: {status}. Trying again" in said(
            refusal("", status=status), "upload_part"
        )
    for status in (500, 502, 503, 504):
        text = said(refusal("", status=status), "complete_multipart_upload")
        assert f"cannot serve CompleteMultipartUpload now: {status}. Try again later." in text


def test_parts_grow_so_that_there_are_never_more_than_s3_takes() -> None:
    assert [part_bytes(size) // MIB for size in (33 * MIB, 100 * GIB, 5 * 1024 * GIB)] == [16, 16, 525]
    for size in (5 * 1024 * GIB, *range(150 * GIB, 170 * GIB, 97 * MIB + 1)):
        assert -(-size // part_bytes(size)) <= 10_000


def test_an_unkeyed_checksum_goes_only_where_nobody_can_change_bytes() -> None:
    for endpoint in (
        "https://s3.amazonaws.com",
        "http://127.0.0.1:9000",
        "http://[::1]:9000",
        "http://localhost",
    ):
        assert is_tamper_proof(endpoint), endpoint
    for endpoint in ("http://minio:9000", "http://127.0.0.1.example.com"):
        assert not is_tamper_proof(endpoint), endpoint
