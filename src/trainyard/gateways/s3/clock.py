"""The clock that signs requests: this machine's, corrected by the store's after a refusal.

S3 refuses a request whose time differs from its own by more than 15 minutes. botocore signs with the
machine's clock and gives up; this module uses the time in the store's response instead, and warns once.
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
    """The time of one store, shared by any number of threads."""

    def __init__(self) -> None:
        self.offset = timedelta()
        """Added to this machine's time."""
        self.endpoint = ""
        """The store's endpoint, for messages."""

    def now(self) -> datetime:
        return machine_time() + self.offset

    def adjust(self, response: Mapping[str, Any], signed_by: timedelta) -> bool:
        """Return whether the refusal concerned our time, and the store's time is known now.

        `signed_by` is the offset that signed the request. The refusal of a HEAD request is only a 403: it
        counts if the two clocks differ by more than S3 allows.
        """
        code = str(response.get("Error", {}).get("Code", ""))
        offset = stated_offset(response)
        if offset is None or code not in ("RequestTimeTooSkewed", "403"):
            return False
        if abs(offset - signed_by) < (_ALLOWED if code == "403" else _NO_DIFFERENCE):
            return False
        if abs(offset - self.offset) >= _NO_DIFFERENCE:
            self.offset = offset
            _logger.warning("%s Until then, the store's time is used.", difference(self.endpoint, offset))
        return True


def machine_time() -> datetime:
    """This machine's clock."""
    return datetime.now(UTC)


def stated_offset(response: Mapping[str, Any]) -> timedelta | None:
    """Return how far the time in a store's response is ahead of this machine's; None if it has none."""
    try:
        theirs = parsedate_to_datetime(response["ResponseMetadata"]["HTTPHeaders"]["date"])
    except (KeyError, ValueError, TypeError):
        return None
    return theirs - machine_time() if theirs.tzinfo else None


def difference(endpoint: str, offset: timedelta | None) -> str:
    """Return a message that the clocks differ, by how much, and what to do."""
    off = ""
    if offset is not None:
        word = "behind" if offset > timedelta() else "ahead"
        off = f" It is {abs(offset).total_seconds() / 60:.0f} minutes {word}."
    return (
        f"This machine's clock differs too much from {endpoint}'s (RequestTimeTooSkewed).{off} "
        "Set it (chrony, NTP)."
    )


def sign_by(client: Any, clock: Clock, credentials: Any) -> None:
    """Make botocore's `client` sign with `clock` if that differs from the machine's clock."""
    from botocore.auth import S3SigV4Auth

    class ClockSigner(S3SigV4Auth):  # type: ignore[misc]
        def _modify_request_before_signing(self, request: Any) -> None:
            request.context["timestamp"] = clock.now().strftime("%Y%m%dT%H%M%SZ")
            super()._modify_request_before_signing(request)

    def sign_again(request: Any, **_: Any) -> None:
        if clock.offset and credentials is not None:
            region = request.context.get("signing", {}).get("region") or client.meta.region_name
            ClockSigner(credentials.get_frozen_credentials(), "s3", region).add_auth(request)

    client.meta.events.register_last("request-created.s3", sign_again)
