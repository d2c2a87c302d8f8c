"""Send requests to the API server, as plain JSON over a few kept-alive connections.

    get, list_all, review        ──> a read: token, time limit, bounded retries ──> JSON, or an error
    create, apply, merge, delete ──> one request that changes something: sent again only after 429
    stream                       ──> lines as they come: a watch, a log

Lists arrive page by page.
Reads are repeated after errors that a retry can fix: 429 (after Retry-After), 5xx, broken connections. With
429 the server has refused a request before it read it, so a change is sent again too. An expired token is
renewed once. The official client is not used: `docs/decisions/0018` has the reasons.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

from trainyard.errors import (
    CredentialsRefusedError,
    PermissionRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.bounded_calls import wait_before_retry
from trainyard.gateways.http_requests import RETRIED_STATUSES
from trainyard.gateways.kubernetes.cluster_access import Access
from trainyard.gateways.kubernetes.tls import pool_of

CONNECT_SECONDS = 5.0
CALL_SECONDS = 20.0
CONNECTIONS = 12
PAGE = 500
"""Objects per page: some 5 MB of pods."""
_ATTEMPTS = 4
_BROKEN = 2
"""Attempts of a call that got no answer at all."""
_REFUSED_UNREAD = (429,)
"""Statuses after which a change is sent again: with any other, or none, it may have been made."""
_BUSY = (429, 502, 503)
"""Statuses after which a dry run is sent again; its 500 and 504 come from a webhook that does not answer."""
_RESTARTS = 2
"""Restarts of a list whose pages became too old to continue (410)."""
_PIECE = 1 << 16
"""Bytes to read from a stream at once."""
_MOST_REFUSAL = 1 << 16
"""Bytes to read from the refusal of a stream."""
PLAIN = "application/json"
METADATA = {
    "object": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    "list": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
}
"""Requests names and labels only, because the content of a Secret must not be sent."""
Json = dict[str, Any]
Kept = TypeVar("Kept")


class ApiRequests:
    """One cluster, accessed with one identity. Several threads may use it."""

    def __init__(self, access: Access, *, call_seconds: float = CALL_SECONDS) -> None:
        """Send nothing yet. Raises ConfigError for certificates that cannot be used."""
        self.access, self._seconds = access, call_seconds
        self._pool = pool_of(access, CONNECTIONS)
        self._token, self._lock = "", threading.Lock()
        self.server_time: float | None = None
        """The server's time in its last answer, in Unix seconds."""
        self.clock_at_answer = 0.0
        """The local time at that moment."""

    def get(self, path: str, *, metadata_of: str = "") -> Any:
        """Return the answer to a read; None if there is no such object.

        `metadata_of` `object` or `list` requests only the metadata.

        Raises PermissionRefusedError, ServiceError when it is refused, ServiceTroubleError when it failed.
        """
        accept = METADATA[metadata_of] if metadata_of else PLAIN
        status, answer = self._send("GET", path, accept=accept, retried=RETRIED_STATUSES)
        body = self._accepted_body("GET", path, status, answer)
        if body is None or (found := _object_in(body)) is not None:
            return None if body is None else found
        raise ServiceError(
            f"The answer to {path.partition('?')[0]} is not an object in JSON: is a proxy between?"
        )

    def list_all(self, path: str, reduce: Callable[[Json], Kept | None], **query: str) -> tuple[Kept, ...]:
        """Return every object of a list, reduced by `reduce`; objects for which it returns None are omitted.

        Raises the errors of `get`, and ServiceError if there is no such list.
        """
        for _ in range(_RESTARTS + 1):
            with suppress(TooOldError):
                found = (raw for page in self.pages(path, query) for raw in page.get("items") or ())
                return tuple(kept for raw in found if (kept := reduce(raw)) is not None)
        raise ServiceTroubleError(
            f"The list {path} changes faster than it can be read (410 Gone, {_RESTARTS + 1} times)"
        )

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """Yield the answers to a list, page by page. Raises ServiceError if there is none."""
        more: dict[str, str] = {}
        while True:
            answer = self.get(f"{path}?{urlencode({**query, 'limit': PAGE, **more})}")
            if answer is None:
                raise ServiceError(f"The cluster has no list {path} (404)")
            yield answer
            if not (token := (answer.get("metadata") or {}).get("continue")):
                return
            more = {"continue": str(token)}

    def create(self, path: str, body: Json, *, dry_run: bool = False) -> tuple[int, Json]:
        """Return the status and the answer to a creation, refusals included.

        A dry run changes nothing, and is sent again while the server is too busy for it.

        Raises ServiceTroubleError where there was no answer, CredentialsRefusedError.
        """
        if not dry_run:
            return self._change("POST", f"{path}?fieldManager=trainyard", body)
        address = f"{path}?dryRun=All&fieldManager=trainyard"
        status, answer = self._send("POST", address, body, retried=_BUSY)
        return status, _answer_of(answer)

    def review(self, path: str, body: Json) -> Json:
        """Return the answer to a query that is sent as a creation, such as an access review."""
        status, answer = self._send("POST", path, body, retried=RETRIED_STATUSES)
        return _answer_of(self._accepted_body("POST", path, status, answer) or b"{}")

    def apply(self, path: str, body: Json, *, dry_run: bool = False) -> tuple[int, Json]:
        """Return status and answer of a server-side apply, which creates or completes an object.

        A field with another owner is a conflict (409), so nobody's fields are overwritten.
        """
        query = "?fieldManager=trainyard" + ("&dryRun=All" if dry_run else "")
        return self._change("PATCH", path + query, body, "application/apply-patch+yaml")

    def merge(self, path: str, body: Json) -> tuple[int, Json]:
        """Return status and answer of a merge patch: None removes a field, and other fields stay.

        Raises ServiceTroubleError if there was no answer.
        """
        return self._change("PATCH", f"{path}?fieldManager=trainyard", body, "application/merge-patch+json")

    def delete(self, path: str, options: Json) -> tuple[int, Json]:
        """Return status and answer of a deletion with these DeleteOptions; 404 if the object is gone.

        Raises ServiceTroubleError if there was no answer.
        """
        return self._change("DELETE", path, options)

    def stream(self, path: str, *, silence: float) -> "Stream":
        """Return the stream of a path. Raises TooOldError, and the errors of `get` if it is refused.

        After `silence` seconds without a byte it ends with ServiceTroubleError.
        """
        answer = self._authorized("GET", path, {"Accept": "*/*"}, silence=silence)
        if answer.status == 200:
            return Stream(answer, self.access.server)
        body = answer.read(_MOST_REFUSAL)
        answer.release_conn()
        verb = "watch" if "watch=1" in path else "GET"
        if self._accepted_body(verb, path, answer.status, body) is None:
            raise ServiceError(f"The cluster has no {path.partition('?')[0]} (404)")
        raise ServiceError(f"{self.access.server} answered {path.partition('?')[0]} with {answer.status}")

    @staticmethod
    def refusal(what: str, status: int, answer: Mapping[str, Any]) -> ServiceError:
        """Return the error for a change that was refused; `what` says which."""
        kind = PermissionRefusedError if status == 403 else ServiceError
        return kind(f"{what} ({status}): {message_of(answer)}")

    def identity(self, *, refused: str = "") -> dict[str, str]:
        """Return the headers that identify us; not with the token that was `refused`, if there is another."""
        return _identity(self._current_token(refused))

    def unknown_caller(self) -> CredentialsRefusedError:
        """Return the error for an answer 401."""
        return CredentialsRefusedError(
            f"{self.access.server} does not know who we are (401 Unauthorized); renew the credentials of "
            f"context {self.access.context}. On EKS the role also needs an access entry of the cluster: "
            "aws eks list-access-entries"
        )

    def cluster_time(self) -> float:
        """Return the Unix time by the server's clock, which set the times in its objects."""
        if self.server_time is None:
            return time.time()
        return time.time() + self.server_time - self.clock_at_answer

    def _change(self, method: str, path: str, body: Json, kind: str = PLAIN) -> tuple[int, Json]:
        """Send one request that changes something; return the status and the answer."""
        status, answer = self._send(method, path, body, kind=kind, retried=_REFUSED_UNREAD, broken=1)
        return status, _answer_of(answer)

    def _send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        retried: tuple[int, ...],
        accept: str = PLAIN,
        kind: str = PLAIN,
        broken: int = _BROKEN,
    ) -> tuple[int, bytes]:
        """Return the status and the answer, after as many attempts as are needed and allowed.

        An answer with a status in `retried` is not the last one; `broken` is the number of attempts that may
        end without an answer.
        """
        headers = {"Accept": accept, **({"Content-Type": kind} if body is not None else {})}
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(1, _ATTEMPTS + 1):
            requested = None
            try:
                answer = self._authorized(method, path, headers, content)
                if answer.status not in retried or attempt == _ATTEMPTS:
                    return answer.status, answer.data
                seconds = answer.headers.get("Retry-After", "")
                requested = float(seconds) if seconds.isdecimal() else None
            except ServiceTroubleError:
                broken -= 1
                if broken == 0 or attempt == _ATTEMPTS:
                    raise
            wait_before_retry(attempt, requested)
        raise AssertionError("the last attempt returns or raises")

    def _accepted_body(self, method: str, path: str, status: int, answer: bytes) -> bytes | None:
        if status in (200, 201):
            return answer
        if status == 404:
            return None
        message = message_in(answer)
        place = path.partition("?")[0]
        if status == 410:
            raise TooOldError(f"{self.access.server} answered {method} {place} with 410: {message}")
        if status == 403:
            raise PermissionRefusedError(f"not allowed: {method} {place}: {message}")
        kind = ServiceTroubleError if status in RETRIED_STATUSES else ServiceError
        raise kind(f"{self.access.server} answered {method} {place} with {status}: {message}")

    def _authorized(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        silence: float | None = None,
    ) -> Any:
        """Return the answer to one request; if our token is refused, to one more with a new token.

        With `silence` the answer is still to be read.
        """
        token = self._current_token()
        answer = self._once(method, path, {**headers, **_identity(token)}, body, silence=silence)
        if answer.status == 401 and (renewed := self._current_token(token)) != token:
            answer.drain_conn()
            answer.release_conn()
            answer = self._once(method, path, {**headers, **_identity(renewed)}, body, silence=silence)
        if answer.status == 401:
            answer.close()
            answer.release_conn()
            raise self.unknown_caller()
        return answer

    def _current_token(self, refused: str = "") -> str:
        """Return the token in use; a new one if there is none yet, or if it is the one that was `refused`."""
        with self._lock:
            if self._token == refused and self.access.credentials.token is not None:
                self._token = self.access.credentials.token()
            return self._token

    def _once(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        silence: float | None = None,
    ) -> Any:
        import urllib3

        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, self._seconds), read=silence or self._seconds)
        packed = "identity" if silence is not None else "gzip"
        sent = urllib3.HTTPHeaderDict({"User-Agent": "trainyard", "Accept-Encoding": packed, **headers})
        for name, value in self.access.impersonated:
            sent.add(name, value)  # a header of its own for each group
        try:
            answer = self._pool.request(
                method,
                self.access.server + path,
                headers=sent,
                body=body,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=silence is None,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ServiceTroubleError(unreachable(self.access.server, error)) from None
        self._note_time(answer.headers.get("Date"))
        return answer

    def _note_time(self, date: str | None) -> None:
        try:
            moment = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError):
            return
        self.server_time, self.clock_at_answer = moment, time.time()


class TooOldError(ServiceError):
    """A list or a watch cannot be continued, because the server has forgotten its version (410)."""


class Stream:
    """An answer without a fixed end. One thread reads it, and any thread may end it."""

    def __init__(self, answer: Any, server: str) -> None:
        self._answer, self._server, self._ended = answer, server, False

    def lines(self) -> Iterator[bytes]:
        """Yield each line without its line end as it arrives, also a last line without one.

        Raises ServiceTroubleError if the connection breaks or is silent for too long.
        """
        rest = b""
        for piece in self._pieces():
            *complete, rest = (rest + piece).split(b"\n")
            yield from complete
        if rest:
            yield rest

    def end(self) -> None:
        """Stop reading: `lines` ends at once."""
        self._ended = True
        with suppress(ValueError, RuntimeError, OSError):  # it has ended already
            self._answer.shutdown()

    def _pieces(self) -> Iterator[bytes]:
        import urllib3

        try:
            while not self._ended and (piece := self._answer.read1(_PIECE)):
                yield piece
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if not self._ended:
                raise ServiceTroubleError(unreachable(self._server, error)) from None
        finally:
            self._answer.close()
            self._answer.release_conn()  # the place in the pool, for a new connection


def _identity(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def unreachable(server: str, error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    text = re.sub(r"^.*?object at 0x[0-9a-f]+>[:,]?\s*|^\w*ConnectionPool\([^)]*\):?\s*", "", str(cause))
    return f"{server} could not be reached: {' '.join(text.split())[:300] or type(error).__name__}"


def _answer_of(body: bytes) -> Json:
    """Return the object in an answer; an answer that is not an object becomes `message`."""
    found = _object_in(body)
    return {"message": body[:300].decode(errors="replace")} if found is None else found


def _object_in(body: bytes) -> Json | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def message_in(body: bytes) -> str:
    """Return the API server's reason in the body of a refusal, on one line."""
    return message_of(_answer_of(body))


def message_of(answer: Mapping[str, Any]) -> str:
    """Return the API server's reason in a refusal, on one line."""
    return " ".join(str(answer.get("message", "")).split())[:400]
