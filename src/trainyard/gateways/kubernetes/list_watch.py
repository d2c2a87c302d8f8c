"""Watch a list of objects: one long request, however many objects there are.

    list ──resourceVersion──> watch ──ADDED, MODIFIED, DELETED, BOOKMARK──> watch again from the last version
      ^                          └──410 Gone──┐
      └───────────────────────────────────────┘

Every watch ends after some seconds and is started again, so that a silent dead connection is detected. A
broken watch is tried again until `end`; its failure and its recovery are reported.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from trainyard.errors import (
    CredentialsRefusedError,
    ServiceError,
    ServiceTroubleError,
)
from trainyard.gateways.bounded_calls import retry_pause
from trainyard.gateways.kubernetes.api_requests import ApiRequests, Stream, TooOldError

WATCH_SECONDS = 25
"""Seconds per watch. It may be silent all the time: bookmarks come about once per minute."""
_SILENCE = WATCH_SECONDS + 10.0
Json = Mapping[str, Any]


News = Literal["listed", "changed", "deleted", "broken", "back", "refused"]
"""The kinds of reports of a watch.

    listed    all objects that exist now; a known object that is not among them is gone
    changed   the new state of an object
    deleted   the last state of a deleted object
    broken    the API server does not answer, or rejects our identity; the watch is tried again
    back      it answers again, and no event was missed
    refused   we may not see these objects; the watch has ended
"""


@dataclass(frozen=True)
class Report:
    """One report of a watch."""

    source: str
    news: News
    objects: tuple[Any, ...] = ()
    """The objects, reduced by `keep`."""
    error: ServiceError | None = None


class Watch:
    """Watches one list in its own thread, from `start` to `end`."""

    def __init__(
        self,
        api: ApiRequests,
        path: str,
        report: Callable[[Report], None],
        *,
        source: str,
        keep: Callable[[Json], Any],
        **query: str,
    ) -> None:
        """`keep` reduces an object to what is reported; `query` are selectors."""
        self._api, self._path, self._report = api, path, report
        self._source, self._keep, self._query = source, keep, query
        self._over = threading.Event()
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self._is_broken = self._was_seen = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"watch-{self._source}", daemon=True).start()

    def end(self) -> None:
        """End the watch; its thread ends soon after."""
        self._over.set()
        with self._lock:
            if self._stream is not None:
                self._stream.end()

    def _run(self) -> None:
        version, failures = "", 0
        while not self._over.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
                failures = 0
            except TooOldError:
                version = ""
                self._over.wait(retry_pause(1))
            except (ServiceTroubleError, CredentialsRefusedError) as error:
                self._report_broken(error)
                failures += 1
                self._over.wait(retry_pause(failures))
            except ServiceError as error:
                if not self._was_seen:
                    self._report_unless_over(Report(self._source, "refused", error=error))
                    return
                # An API server that starts may refuse for seconds what it allows.
                self._report_broken(error)
                self._over.wait(retry_pause(5))

    def _list(self) -> str:
        """Return the version from which a watch continues."""
        found: list[Any] = []
        for page in self._api.pages(self._path, self._query):
            found += [self._keep(raw) for raw in page.get("items") or ()]
        self._is_broken, self._was_seen = False, True
        self._report_unless_over(Report(self._source, "listed", tuple(found)))
        return str((page.get("metadata") or {}).get("resourceVersion") or "")

    def _watch(self, version: str) -> str:
        """Report events after `version`; return the version that was reached."""
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": version,
        }
        stream = self._api.stream(f"{self._path}?{urlencode(query)}", silence=_SILENCE)
        with self._lock:
            self._stream = stream
        if self._over.is_set():
            stream.end()
        if self._is_broken:
            self._is_broken = False
            self._report_unless_over(Report(self._source, "back"))
        for line in stream.lines():
            version = self._event(line) or version
        return version

    def _event(self, line: bytes) -> str:
        """Report one event; return its version."""
        try:
            event = json.loads(line)
            kind, raw = event["type"], event["object"]
        except (ValueError, TypeError, KeyError):
            raise ServiceTroubleError(
                f"The watch of {self._path} broke off in the middle of a line"
            ) from None
        if kind == "ERROR":
            if raw.get("code") == 410:
                raise TooOldError
            raise ServiceTroubleError(f"The watch of {self._path} ended: {raw.get('message', 'no reason')}")
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._report_unless_over(
                Report(self._source, "deleted" if kind == "DELETED" else "changed", (self._keep(raw),))
            )
        return str((raw.get("metadata") or {}).get("resourceVersion") or "")

    def _report_broken(self, error: ServiceError) -> None:
        if not self._is_broken:
            self._report_unless_over(Report(self._source, "broken", error=error))
        self._is_broken = True

    def _report_unless_over(self, report: Report) -> None:
        if not self._over.is_set():
            self._report(report)
