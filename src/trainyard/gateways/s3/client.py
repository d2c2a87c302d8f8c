"""Run one S3 operation on one bucket: with a time limit, retries of errors that a retry can fix, and clear
errors.

botocore retries connections and 5xx responses; this module retries other responses that a retry can fix. Only
the settings that our uploads need are set: boto3 finds the region, endpoint, proxy, addressing style, and the
accelerate, dual-stack and FIPS endpoints. The client comes from botocore, as in `boto3.client("s3")`, because
importing boto3's resources and transfers, which are not used, takes 35 ms.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from trainyard.errors import (
    ConfigError,
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
    UnsupportedOperationError,
    VerificationError,
)
from trainyard.gateways.aws_session import botocore_session
from trainyard.gateways.bounded_calls import wait_before_retry
from trainyard.gateways.s3.refusals import DENIED, UNSUPPORTED, explain_refusal

CONNECTIONS = 80
"""Maximum number of open connections, for the threads that transfer small files and parts."""
_CONNECT_SECONDS = 5.0
_SENT_UNASKED_BYTES = 1 << 20
_ATTEMPTS = 5
"""Attempts per call, with exponential backoff and jitter; AWS's variable AWS_MAX_ATTEMPTS overrides it."""
_DAMAGED = ("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidDigest")
"""The bytes that arrived differ from the ones sent."""
_BUSY = ("409", "ConditionalRequestConflict", "OperationAborted", "IncompleteBody")

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "400")
"""The session has expired; the response to a HEAD request can only be a 400."""
_NEVER_AN_ANSWER = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", *_EXPIRED)

_SURE_TO_BE_THERE = {
    "put_object": "ETag",
    "upload_part": "ETag",
    "create_multipart_upload": "UploadId",
    "head_object": "ContentLength",
    "get_object": "ContentLength",
    "list_objects_v2": "IsTruncated",
}
"""A field that a truncated response lacks: Python's HTTP client does not notice headers that are cut off."""


class Bucket:
    """A bucket and the prefix that contains all our keys."""

    def __init__(
        self, name: str, prefix: str, *, encryption: str, call_seconds: float, attempts: int | None = None
    ) -> None:
        """`attempts` is the maximum per call; None means AWS_MAX_ATTEMPTS, or 5 if that is not set."""
        self.name = name
        self.prefix = f"{prefix}/" if prefix else ""
        self.attempts = _attempts(attempts)
        self._call_seconds = call_seconds
        self._client = self._connect()
        self._renewing = threading.Lock()
        self.endpoint = str(self._client.meta.endpoint_url)
        self._encryption = {} if encryption == "none" else {"ServerSideEncryption": encryption}

    def call(self, operation: str, key: str, *, unless: tuple[str, ...] = (), **arguments: Any) -> Any:
        """Return S3's response to `operation` on `key`; None for one of the codes in `unless`.

        Raises VerificationError when S3 repeatedly receives other bytes than were sent, else ServiceError.
        """
        return self._ask(operation, {"Key": self.prefix + key, **arguments}, unless.__contains__)

    def create(self, operation: str, key: str, *, unless: tuple[str, ...] = (), **arguments: Any) -> Any:
        """Like `call`, for operations that create an object: with the store's encryption."""
        return self.call(operation, key, unless=unless, **self._encryption, **arguments)

    def about(self, operation: str, **arguments: Any) -> tuple[Any, str]:
        """Return S3's response to `operation` on the bucket and no code, or None and the refusal's code.

        Raises ServiceError when S3 cannot be reached, or when the bucket or the credentials are wrong.
        """
        codes = [""]

        def is_answer(code: str) -> bool:
            codes.append(code)
            return code not in _NEVER_AN_ANSWER + _BUSY

        return self._ask(operation, arguments, is_answer), codes[-1]

    def pages(self, prefix: str, **arguments: str) -> Iterator[Any]:
        """Yield S3's responses to a listing of the keys that start with `prefix`."""
        further: dict[str, str] = {}
        while True:
            where = {"Prefix": self.prefix + prefix, **arguments, **further}
            page = self._ask("list_objects_v2", where, lambda _: False)
            yield page
            if not page["IsTruncated"]:
                return
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, operation: str, arguments: dict[str, Any], is_answer: Callable[[str], bool]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        for attempt in range(1, self.attempts + 1):
            last, client = attempt == self.attempts, self._client
            try:
                answer = self._answer(client, operation, arguments)
                if _is_complete(answer, _SURE_TO_BE_THERE.get(operation, "ResponseMetadata")):
                    return answer
                if last:
                    raise ServiceError(f"The responses of {self.endpoint} to {operation} are cut off.")
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if is_answer(code):
                    return None
                if last or code not in _DAMAGED + _BUSY + _EXPIRED:
                    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                    raise _refusal(code, status)(self.refusal_text(operation, error)) from None
                if code in _EXPIRED:
                    self._renew_credentials(client)
            except (ResponseParserError, ValueError, OverflowError) as error:  # invalid time or number
                if last:
                    raise ServiceError(self.refusal_text(operation, error)) from None
            except BotoCoreError as error:
                raise ServiceError(self.refusal_text(operation, error)) from None
            wait_before_retry(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if (body := arguments.get("Body")) is not None and hasattr(body, "seek"):
            body.seek(0)  # botocore rewinds it only between its own attempts
        return getattr(client, operation)(Bucket=self.name, **arguments)

    def _renew_credentials(self, expired: Any) -> None:
        """Load credentials again, once for all threads: files, roles and tokens may have newer ones."""
        with self._renewing:
            if self._client is expired:
                self._client = self._connect()

    def _connect(self) -> Any:
        return connect(attempts=self.attempts, call_seconds=self._call_seconds)

    def refusal_text(self, operation: str, error: Exception) -> str:
        """Return an error message for the person who can fix the problem."""
        return explain_refusal(error, bucket=self.name, operation=operation, endpoint=self.endpoint)


def _is_complete(answer: Mapping[str, Any], sure: str) -> bool:
    """Return whether the response has the field `sure`, and no page of a listing is cut off."""
    listed = answer.get("Contents", ())
    is_last = not answer.get("IsTruncated") or bool(answer.get("NextContinuationToken"))
    return sure in answer and is_last and all("Key" in each and "Size" in each for each in listed)


def _refusal(code: str, status: int) -> type[TrainyardError]:
    """Return the error class for a refusal with this code."""
    if code in _DAMAGED:
        return VerificationError
    if code in UNSUPPORTED or status in (405, 411, 501):
        return UnsupportedOperationError
    return PermissionRefusedError if code in DENIED else ServiceError


def _attempts(most: int | None) -> int:
    """Return AWS_MAX_ATTEMPTS or its default, limited to `most`."""
    value = os.environ.get("AWS_MAX_ATTEMPTS", str(_ATTEMPTS))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"AWS_MAX_ATTEMPTS is {value!r}; it must be a whole number above 0")
    return int(value) if most is None else min(int(value), most)


def connect(*, attempts: int, call_seconds: float) -> Any:
    """Return boto3's client with the current credentials.

    Raises ConfigError for unusable settings, ServiceError when a workflow's role cannot be assumed.
    """
    from botocore.exceptions import BotoCoreError
    from botocore.handlers import add_expect_header

    try:
        core = botocore_session()
        core.register_component("data_loader", _definitions(core.get_config_variable("data_path")))
        region = core.get_config_variable("region") or os.environ.get("AWS_REGION") or "us-east-1"
        client = core.create_client("s3", region_name=region, config=_settings(attempts, call_seconds))
        if not is_tamper_proof(client.meta.endpoint_url):
            config = _settings(attempts, call_seconds, signs_bodies=True)
            client = core.create_client("s3", region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"The AWS settings cannot be used: {error}") from None
    client.meta.events.unregister("before-call.s3", add_expect_header)
    client.meta.events.register("before-call.s3.PutObject", _ask_before_a_large_body)
    return client


def is_tamper_proof(endpoint: str) -> bool:
    """Return whether nobody between here and the store can change bytes together with their checksum."""
    place = urlsplit(endpoint)
    return place.scheme == "https" or place.hostname in ("localhost", "127.0.0.1", "::1")


@functools.cache
def _definitions(path: str | None) -> Any:
    """Return AWS's service definitions, loaded once because loading them takes most of a client's start."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _ask_before_a_large_body(params: dict[str, Any], **_: Any) -> None:
    """Let S3 refuse a large file before its body is sent. For small ones, this wastes a round trip."""
    from botocore.utils import determine_content_length

    if (determine_content_length(params["body"]) or 0) > _SENT_UNASKED_BYTES:
        params["headers"]["Expect"] = "100-continue"


def _settings(attempts: int, call_seconds: float, *, signs_bodies: bool = False) -> Any:
    import botocore
    from botocore.config import Config

    return Config(
        connect_timeout=min(_CONNECT_SECONDS, call_seconds),
        read_timeout=call_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # botocore builds its user agent anew for each request, which takes a seventh of the request's time.
        user_agent=f"Trainyard Botocore/{botocore.__version__}",
        # Every upload already carries a signed checksum of its body, so no second checksum is needed. A
        # CRC can be forged, so bodies are signed too where somebody could change them on their way.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": signs_bodies},
    )
