"""Servers of the tests' own on the loopback interface: each request is answered by a function; and Slack."""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str, Any, Mapping[str, str]], tuple[Any, ...]]
"""Method, path, body and headers of a request -> status, content and perhaps headers.

A body is parsed if it is JSON, else text. Content is sent as JSON unless it is bytes or an iterator of them;
None is no content. Status 0 hangs up without an answer."""


class QuietHandler(BaseHTTPRequestHandler):
    """Lets `serve` answer each request; keeps connections open, sends at once, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

    def serve(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = do_GET  # noqa: N815 - the base class

    def send_whole(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer with its length."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def send_parts(self, parts: Iterable[bytes]) -> None:
        """Send an answer in pieces, as they come; a ConnectionAbortedError among them cuts it off."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in parts:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionAbortedError:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(2)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


class _Server(ThreadingHTTPServer):
    # The usual five are too few for parallel requests: the others would connect a second later.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that went away is not an error
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve while the block runs; yield the address."""
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(
    answer: Answer, tls: ssl.SSLContext | None = None, *, version: str = "HTTP/1.0"
) -> Iterator[str]:
    """Serve while the block runs, with 1.0 a connection for each request; yield the address."""

    class Handler(QuietHandler):
        protocol_version = version

        def serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            try:
                body = json.loads(raw) if raw else None
            except ValueError:
                body = raw
            status, content, *headers = answer(self.command, self.path, body, dict(self.headers))
            if not status:
                self.hang_up()
                return
            if isinstance(content, Iterator):
                self.send_parts(content)
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_whole(status, b"" if content is None else data, headers[0] if headers else None)

    with serving(Handler, tls) as address:
        yield address


@dataclass
class Slack:
    """Keeps the requests that it receives; answers from a list, then with success."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """Path, headers and body."""
    answers: list[tuple[int, dict[str, str], str]] = field(default_factory=list)
    status: int = 200
    stall: float = 0.0
    """Seconds before each answer."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.requests]

    @property
    def methods(self) -> list[str]:
        return [path.rpartition("/")[2] for path, _, _ in self.requests]

    def answer(self, _method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[Any, ...]:
        self.requests.append((path, dict(headers), body))
        self.ended.wait(self.stall)
        if self.answers:
            status, more, text = self.answers.pop(0)
            return status, text.encode(), more
        place = {"ok": True, "channel": "C0123", "ts": f"1700.{len(self.requests):04}"}
        return self.status, place if "/api/chat." in path else b"ok"


@contextmanager
def answering_slack() -> Iterator[Slack]:
    """Serve as Slack while the block runs."""
    slack = Slack()
    with answering(slack.answer) as slack.url:
        yield slack
        slack.ended.set()
