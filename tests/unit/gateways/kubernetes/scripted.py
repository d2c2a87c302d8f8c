"""An API server that answers by a script: lists, watches that break in every way, refusals.

Each request takes the next entry of the script for its path; the last entry stays. A watch that has
sent all of its lines ends, breaks off or stays silent, as its entry defines.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests import answering

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

    class Handler(answering.QuietHandler):
        def serve(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            mine = script.of(urlsplit(self.path).path)
            if not script.token(self.headers.get("Authorization", "")):
                self._whole(401, {"message": "Unauthorized"})
                return
            which = "watch" if "watch" in query else "list"
            mine.asked.append((which, query))
            answer = mine.next_of(which, mine.watches if which == "watch" else mine.lists)
            if which == "list" or answer.status != 200:
                self._whole(answer.status, answer.body or {"message": "scripted"})
                return
            self._stream(answer)

        def _whole(self, status: int, body: Json) -> None:
            self.send_whole(status, json.dumps(body).encode())

        def _stream(self, answer: Answer) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in answer.events:
                self._chunk(json.dumps(event).encode() + b"\n")
                self.wfile.flush()
                time.sleep(answer.pause)
            if answer.rest:
                self._chunk(answer.rest)
            self.wfile.flush()
            time.sleep(answer.silent)
            if answer.broken:
                self.close_connection = True
                self.connection.close()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    with answering.serving(Handler) as script.server:
        yield script


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
