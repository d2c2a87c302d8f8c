"""One S3 operation on one bucket: with a time limit, retried where that can heal, refused in plain words.

botocore retries connections and 5xx answers; here stand the answers that heal too and that it does not know.
"""

import os
import random
import threading
import time
from collections.abc import Container, Iterator, Mapping
from typing import Any

from trainyard.errors import (
    ConfigError,
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
    VerificationError,
)
from trainyard.gateways.s3.access import connect
from trainyard.gateways.s3.clock import Clock
from trainyard.gateways.s3.refusals import DENIED, explain

_ATTEMPTS = 5
"""Of one call, with exponential backoff and jitter; AWS's own variable AWS_MAX_ATTEMPTS overrides it."""
_DAMAGED = ("BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "InvalidDigest")
"""The bytes arrived as others than they were sent."""
_BUSY = ("409", "ConditionalRequestConflict", "OperationAborted", "IncompleteBody")

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "400")
"""The session's time is over; 400 is all that the answer to a HEAD can say of it."""
_NEVER_AN_ANSWER = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", *_EXPIRED)

_SURE_TO_BE_THERE = {
    "put_object": "ETag",
    "upload_part": "ETag",
    "create_multipart_upload": "UploadId",
    "head_object": "ContentLength",
    "get_object": "ContentLength",
    "list_objects_v2": "IsTruncated",
}
"""What an answer lacks that broke off in its headers, which Python's HTTP client takes for their end."""


class _Refusals:
    """Takes every refusal as an answer and remembers its code, but those that say nothing of the question."""

    def __init__(self) -> None:
        self.code = ""

    def __contains__(self, code: object) -> bool:
        if code in _NEVER_AN_ANSWER + _BUSY or not isinstance(code, str):
            return False
        self.code = code
        return True


class Bucket:
    """A bucket and the prefix under which we keep to."""

    def __init__(
        self, name: str, prefix: str, *, encryption: str, call_seconds: float, attempts: int | None = None
    ) -> None:
        """`attempts` of one call at most; None is AWS_MAX_ATTEMPTS, and 5 where that is not set."""
        self.name = name
        self.prefix = f"{prefix}/" if prefix else ""
        self.attempts = _attempts(attempts)
        self._call_seconds = call_seconds
        self._clock = Clock()
        self._client = self._connect()
        self._renewing = threading.Lock()
        self.endpoint = str(self._client.meta.endpoint_url)
        self._clock.endpoint = self.endpoint
        self._encryption = {} if encryption == "none" else {"ServerSideEncryption": encryption}

    def call(self, operation: str, key: str, *, unless: tuple[str, ...] = (), **arguments: Any) -> Any:
        """S3's answer to `operation` on `key`; None when it answers with one of the codes in `unless`.

        Raises VerificationError when S3 keeps receiving other bytes than were sent, else ServiceError.
        """
        return self._ask(operation, {"Key": self.prefix + key, **arguments}, unless)

    def create(self, operation: str, key: str, *, unless: tuple[str, ...] = (), **arguments: Any) -> Any:
        """`call` for the operations that make an object: encrypted as the store was asked to."""
        return self.call(operation, key, unless=unless, **self._encryption, **arguments)

    def require_encrypted(self, key: str, answer: Mapping[str, Any]) -> None:
        """Raise VerificationError when S3 says of a new object that it is not encrypted as asked."""
        if not self.is_encrypted_as_asked(answer):
            raise VerificationError(
                f"{key}: encrypted by {answer['ServerSideEncryption']}, asked for "
                f"{self._encryption['ServerSideEncryption']}: an upload that was begun so was gone on with"
            )

    def is_encrypted_as_asked(self, answer: Mapping[str, Any]) -> bool:
        """Whether S3 does not say of an object that it is encrypted in another way than was asked for."""
        told, asked = answer.get("ServerSideEncryption"), self._encryption.get("ServerSideEncryption")
        return not told or not asked or told == asked

    @property
    def is_aws(self) -> bool:
        """Whether it is Amazon's, which tells the encryption of every object that has one."""
        return ".amazonaws.com" in self.endpoint

    @property
    def goes_on_with_uploads(self) -> bool:
        """Whether an upload that was cut off may be gone on with: not where a key is asked for.

        Nothing tells with what encryption it was begun, and its ETags tell nothing of its parts then.
        """
        return self._encryption.get("ServerSideEncryption", "AES256") == "AES256"

    def about(self, operation: str, **arguments: Any) -> tuple[Any, str]:
        """S3's answer to `operation` on the bucket itself, and no code; or None and the code of its refusal.

        Raises ServiceError when S3 cannot be reached, or the bucket or the credentials are the wrong ones.
        """
        refused = _Refusals()
        return self._ask(operation, arguments, refused), refused.code

    def pages(self, prefix: str, **arguments: str) -> Iterator[Any]:
        """S3's answers to a listing of the keys that start with `prefix`."""
        further: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", {"Prefix": self.prefix + prefix, **arguments, **further}, ())
            yield page
            if not page["IsTruncated"]:
                return
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def _ask(self, operation: str, arguments: dict[str, Any], unless: Container[str]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        for attempt in range(1, self.attempts + 1):
            last, client = attempt == self.attempts, self._client
            try:
                answer = self._answer(client, operation, arguments)
                if _is_whole(answer, _SURE_TO_BE_THERE.get(operation, "ResponseMetadata")):
                    return answer
                if last:
                    raise ServiceError(f"The answers of {self.endpoint} to {operation} break off.")
            except ClientError as error:
                code = str(error.response.get("Error", {}).get("Code", ""))
                if code in unless:
                    return None
                if last or code not in _DAMAGED + _BUSY + _EXPIRED:
                    raise _refusal(code)(self.explained(operation, error)) from None
                if code in _EXPIRED:
                    self._renew_credentials(client)
            except (ResponseParserError, ValueError, OverflowError) as error:  # of a time or a number, too
                if last:
                    raise ServiceError(self.explained(operation, error)) from None
            except BotoCoreError as error:
                raise ServiceError(self.explained(operation, error)) from None
            pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        """What S3 answers, asked once more where it was our time that it refused."""
        from botocore.exceptions import ClientError

        signed_by = self._clock.offset
        try:
            return self._answer_once(client, operation, arguments)
        except ClientError as error:
            if not self._clock.is_put_right(error.response, signed_by):
                raise
            return self._answer_once(client, operation, arguments)

    def _answer_once(self, client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        if (body := arguments.get("Body")) is not None and hasattr(body, "seek"):
            body.seek(0)  # botocore rewinds it between its own attempts only
        return getattr(client, operation)(Bucket=self.name, **arguments)

    def _renew_credentials(self, expired: Any) -> None:
        """Look for credentials anew, once for all threads: files, roles and tokens may have newer ones."""
        with self._renewing:
            if self._client is expired:
                self._client = self._connect()

    def _connect(self) -> Any:
        return connect(attempts=self.attempts, call_seconds=self._call_seconds, clock=self._clock)

    def explained(self, operation: str, error: Exception) -> str:
        """What went wrong, in words for the person who can mend it."""
        return explain(error, bucket=self.name, operation=operation, endpoint=self.endpoint)


def _is_whole(answer: Mapping[str, Any], sure: str) -> bool:
    """Whether the answer neither broke off in its headers nor lacks, being damaged, what is sure."""
    etag, listed = str(answer.get("ETag", "")), answer.get("Contents", ())
    if etag.startswith('"') and (len(etag) == 1 or not etag.endswith('"')):
        return False
    if answer.get("IsTruncated") and listed and not answer.get("NextContinuationToken"):
        return False
    named = all("Prefix" in each for each in answer.get("CommonPrefixes", ()))
    return sure in answer and named and all("Key" in each and "Size" in each for each in listed)


def pause(attempt: int) -> None:
    """Wait up to 1, 2, 4 … seconds before the next attempt, at random: clients must not march in step."""
    time.sleep(random.uniform(0, min(2 ** (attempt - 1), 10)))  # noqa: S311


def _refusal(code: str) -> type[TrainyardError]:
    """What to raise for a refusal with this code."""
    if code in _DAMAGED:
        return VerificationError
    return PermissionRefusedError if code in DENIED else ServiceError


def _attempts(most: int | None) -> int:
    """AWS_MAX_ATTEMPTS, or its default; `most` where that is less."""
    value = os.environ.get("AWS_MAX_ATTEMPTS", str(_ATTEMPTS))
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"AWS_MAX_ATTEMPTS is {value!r}; it must be a whole number above 0")
    return int(value) if most is None else min(int(value), most)
