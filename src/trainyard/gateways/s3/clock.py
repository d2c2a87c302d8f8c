"""The clock that requests are signed by: this machine's, put right by the store's once it was refused.

S3 refuses a request whose time differs from its own by more than a quarter of an hour. botocore signs by the
machine's clock and gives up; here what the store's answer says of its time is heeded, and said once.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

_ALLOWED = timedelta(minutes=15)
"""https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, RequestTimeTooSkewed."""
_NO_DIFFERENCE = timedelta(minutes=1)
_logger = logging.getLogger(__name__)


class Clock:
    """The time of one store, for any number of threads."""

    def __init__(self) -> None:
        self.offset = timedelta()
        """What is added to this machine's time."""
        self.endpoint = ""
        """Of the store, for messages."""

    def now(self) -> datetime:
        return machine_time() + self.offset

    def is_put_right(self, response: Mapping[str, Any], signed_by: timedelta) -> bool:
        """Whether a refusal was of our time, and the store's is known now.

        `signed_by` is the offset that the request was signed with. The refusal of a HEAD says nothing but
        403: there the two clocks must differ by more than S3 allows.
        """
        code = str(response.get("Error", {}).get("Code", ""))
        offset = offset_told(response)
        if offset is None or code not in ("RequestTimeTooSkewed", "403"):
            return False
        if abs(offset - signed_by) < (_ALLOWED if code == "403" else _NO_DIFFERENCE):
            return False
        if abs(offset - self.offset) >= _NO_DIFFERENCE:
            self.offset = offset
            _logger.warning("%s Until then, requests go by the other.", difference(self.endpoint, offset))
        return True


def machine_time() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


def offset_told(response: Mapping[str, Any]) -> timedelta | None:
    """How far the time in a store's answer is ahead of this machine's; None if it tells none."""
    try:
        theirs = parsedate_to_datetime(response["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return theirs - machine_time() if theirs.tzinfo else None


def difference(endpoint: str, offset: timedelta | None) -> str:
    """That the clocks differ, by how much, and what to do, in words."""
    off = ""
    if offset is not None:
        word = "behind" if offset > timedelta() else "ahead"
        off = f" It is {abs(offset).total_seconds() / 60:.0f} minutes {word}."
    return (
        f"This machine's clock differs too much from {endpoint}'s (RequestTimeTooSkewed).{off} "
        "Set it (chrony, NTP)."
    )


def sign_by(client: Any, clock: Clock, credentials: Any) -> None:
    """Let botocore's `client` sign by `clock` as well, where that differs from the machine's."""
    from botocore.auth import S3SigV4Auth

    class ByOurClock(S3SigV4Auth):  # type: ignore[misc]
        def _modify_request_before_signing(self, request: Any) -> None:
            request.context["timestamp"] = clock.now().strftime("%Y%m%dT%H%M%SZ")
            super()._modify_request_before_signing(request)

    def sign_again(request: Any, **_: Any) -> None:
        if clock.offset and credentials is not None:
            region = request.context.get("signing", {}).get("region") or client.meta.region_name
            ByOurClock(credentials.get_frozen_credentials(), "s3", region).add_auth(request)

    client.meta.events.register_last("request-created.s3", sign_again)
