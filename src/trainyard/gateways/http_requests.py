"""Send one HTTP request with the standard library, because hosted jobs of workflows have no packages.

It has a time limit, and goes through the proxy that the environment names. S3 and Kubernetes have clients of
their own.
"""

from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException, IncompleteRead
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

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


def is_loopback(host: str) -> bool:
    """Return whether a host, with or without a port, is this machine."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:  # another name
        return False


class _Redirects(HTTPRedirectHandler):
    """Follow redirects of reads alone: a change would become a read, and its signature go to another host."""

    def redirect_request(self, req: Request, *args: Any) -> Request | None:
        is_followed = req.get_method() in ("GET", "HEAD") and is_http(args[-1])
        return super().redirect_request(req, *args) if is_followed else None


def send_request(
    method: str,
    address: str,
    *,
    seconds: float,
    headers: Mapping[str, str],
    authorization: str = "",
    body: bytes | None = None,
) -> HttpAnswer:
    """Return the answer, of a read after redirects; each use of the connection may take `seconds`.

    `authorization` is not sent to the target of a redirect. Raises ServiceTroubleError without an answer, or
    with a part of one.
    """
    if not is_http(address):
        raise ServiceTroubleError(f"{address[:200]!r} is not an address of HTTP")
    proxies = [ProxyHandler({})] if is_loopback(urlsplit(address).netloc.rpartition("@")[2]) else []
    try:
        request = Request(address, data=body, method=method, headers=dict(headers))  # noqa: S310 - by is_http
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        with build_opener(_Redirects, *proxies).open(request, timeout=seconds) as answer:
            content = answer.read(_MOST_BYTES)
            if answer.length and len(content) < _MOST_BYTES:  # a read of so many bytes reports no lost ones
                raise IncompleteRead(content, answer.length)
            return HttpAnswer(answer.status, content, answer.headers)
    except HTTPError as error:
        try:
            return HttpAnswer(error.code, error.read(_MOST_BYTES), error.headers)
        except (OSError, HTTPException):  # the status is known
            return HttpAnswer(error.code, b"", error.headers)
        finally:
            error.close()
    except (OSError, HTTPException, ValueError) as error:  # the address of a redirect may be any text
        host, cause = urlsplit(address).netloc.rpartition("@")[2], getattr(error, "reason", None) or error
        text = f"{host} could not be reached: {cause or type(error).__name__}"
        raise ServiceTroubleError(text) from None
