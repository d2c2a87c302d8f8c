"""Send one HTTP request with the standard library, because hosted jobs of workflows have no packages.

It has a time limit, and goes through the proxy that the environment names. S3 and Kubernetes have clients of
their own.
"""

from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from trainyard.errors import ServiceTroubleError

RETRIED_STATUSES = (429, 500, 502, 503, 504)
"""Statuses after which another attempt may succeed."""
_MOST_BYTES = 32 << 20


class HttpAnswer(NamedTuple):
    """An answer with any status."""

    status: int
    content: bytes
    headers: Message


def is_http(address: str) -> bool:
    """Return whether it is an address that a request can go to."""
    try:
        parts = urlsplit(address)
    except ValueError:  # an IPv6 address without its end
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def send_request(
    method: str,
    address: str,
    *,
    seconds: float,
    headers: Mapping[str, str],
    authorization: str = "",
    body: bytes | None = None,
) -> HttpAnswer:
    """Return the answer, after redirects; each read or write of the connection may take `seconds`.

    `authorization` is not sent to the target of a redirect. Raises ServiceTroubleError without an answer.
    """
    request = Request(address, data=body, method=method, headers=dict(headers))  # noqa: S310 - by is_http
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    try:
        with urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return HttpAnswer(answer.status, answer.read(_MOST_BYTES), answer.headers)
    except HTTPError as error:
        try:
            return HttpAnswer(error.code, error.read(_MOST_BYTES), error.headers)
        except (OSError, HTTPException):  # the status is known
            return HttpAnswer(error.code, b"", error.headers)
        finally:
            error.close()
    except (OSError, HTTPException) as error:
        host, cause = urlsplit(address).netloc.rpartition("@")[2], getattr(error, "reason", None) or error
        text = f"{host} could not be reached: {cause or type(error).__name__}"
        raise ServiceTroubleError(text) from None
