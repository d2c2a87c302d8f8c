"""An API server that answers by a script: lists, watches that break in every way, refusals.

Each request takes the next entry of the script for its path; the last entry stays. A watch that has
sent all of its lines ends, breaks off or stays silent, as its entry defines.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.answering import answering

from trainyard.gateways.kubernetes.cluster_access import Access, Credentials

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The answer to a list or a watch."""

    status: int = 200
    body: Json | None = None
    events: Sequence[Json] = ()
    """The events of a watch, one line each."""
    pause: float = 0.0
    """Seconds between the events."""
    rest: bytes = b""
    """The beginning of a line, which is sent after the events."""
    silent: float = 0.0
    """Seconds before the watch ends."""
    broken: bool = False
    """The connection is cut in the middle of the answer."""


@dataclass
class Script:
    """Requests, and their answers."""

    lists: list[Answer]
    watches: list[Answer] = field(default_factory=list)
    token: Callable[[str], bool] = lambda _token: True
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """`list` or `watch`, and the query."""
    server: str = ""

    def of(self, path: str) -> "Script":
        """The script that answers for a path."""
        return self

    def access(self, source: Callable[[], str] | None = None) -> Access:
        return Access(server=self.server, credentials=Credentials(token=source), context="scripted")

    def next_of(self, which: str, answers: list[Answer]) -> Answer:
        number = sum(1 for kind, _ in self.asked if kind == which)
        return answers[min(number, len(answers)) - 1]


@contextmanager
def serving(script: Script) -> Iterator[Script]:
    """Answer by the script, on loopback."""

    def answer(_method: str, path: str, _body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        address = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        mine = script.of(address.path)
        if not script.token(headers.get("Authorization", "")):
            return 401, {"message": "Unauthorized"}
        which = "watch" if "watch" in query else "list"
        mine.asked.append((which, query))
        found = mine.next_of(which, mine.watches if which == "watch" else mine.lists)
        if which == "list" or found.status != 200:
            return found.status, found.body or {"message": "scripted"}
        return 200, events_of(found)

    with answering(answer, version="HTTP/1.1") as script.server:
        yield script


def events_of(answer: Answer) -> Iterator[bytes]:
    """The events of a watch, and how it ends."""
    for event in answer.events:
        yield json.dumps(event).encode() + b"\n"
        time.sleep(answer.pause)
    if answer.rest:
        yield answer.rest
    time.sleep(answer.silent)
    if answer.broken:
        raise ConnectionAbortedError


def listed(*names: str, version: str = "10") -> Answer:
    items = [{"metadata": {"name": name}} for name in names]
    return Answer(body={"metadata": {"resourceVersion": version}, "items": items})


def event(kind: str, name: str, version: str) -> Json:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}


def bookmark(version: str) -> Json:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}


GONE: Json = {
    "type": "ERROR",
    "object": {"kind": "Status", "code": 410, "message": "too old resource version"},
}
FAULT: Json = {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is away"}}
