"""An API server that runs commands as `exec` does: a WebSocket with channels, and a real process behind it.

It can refuse, break off and stay silent, as its settings say.
"""

import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.answering import QuietHandler, serving
from websocket import ABNF, frame_buffer

from trainyard.gateways.kubernetes.cluster_access import Access, Credentials

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
Json = dict[str, Any]


@dataclass
class ExecServer:
    """The answers of the server, and the requests that it received."""

    root: str = ""
    """The folder that replaces /volume of the pod."""
    objects: dict[str, Any] = field(default_factory=dict)
    refuses: list[int] = field(default_factory=list)
    """Statuses of the next handshakes."""
    cuts: list[int] = field(default_factory=list)
    """Bytes of stdout after which each of the next connections breaks off."""
    mangles: list[int] = field(default_factory=list)
    """Positions of the byte of stdout that is changed, one for each of the next connections."""
    accept: str = ""
    """A wrong proof of the handshake."""
    raw: list[bytes] = field(default_factory=list)
    """Bytes that each of the next connections sends instead of a process's output."""
    changes: list[tuple[str, str, Any]] = field(default_factory=list)
    asked: list[Json] = field(default_factory=list)
    watches: list[tuple[str, socket.socket]] = field(default_factory=list)
    """The path of each watch so far, and its connection."""
    refuses_watches: bool = False
    reads: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    server: str = ""

    def report(self, path: str, kind: str, raw: Json) -> None:
        """Send an event to all watches of a list."""
        line = json.dumps({"type": kind, "object": raw}).encode() + b"\n"
        for place, connection in self.watches:
            if place == path:
                connection.sendall(f"{len(line):x}\r\n".encode() + line + b"\r\n")

    def break_watches(self) -> None:
        """Break off all watches, and refuse new ones."""
        self.refuses_watches = True
        for _, connection in self.watches:
            with suppress(OSError):  # it has ended already
                connection.shutdown(socket.SHUT_RDWR)

    def access(self, **more: Any) -> Access:
        return Access(server=self.server, credentials=Credentials(), context="exec", **more)


@contextmanager
def exec_server(**settings: Any) -> Iterator[ExecServer]:
    """Serve on loopback."""
    state = ExecServer(**settings)

    class Handler(QuietHandler):
        def serve(self) -> None:
            address = urlsplit(self.path)
            path, query = unquote(address.path), parse_qs(address.query)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.tokens.append(self.headers.get("Authorization", ""))
            if self.headers.get("Upgrade") == "websocket":
                self.close_connection = True
                run(state, self, path, query)
            elif "watch" not in query:
                status, content = answer(state, self.command, path, json.loads(body) if body else None)
                self.send_whole(status, json.dumps(content).encode())
            elif state.refuses_watches:
                self.send_whole(503, b"{}")
            else:
                self.connection.sendall(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
                state.watches.append((path, self.connection))
                self.connection.recv(1)  # until the client or the test closes it
                self.close_connection = True

    with serving(Handler) as state.server:
        try:
            yield state
        finally:
            state.break_watches()


def answer(state: ExecServer, method: str, path: str, body: Any) -> tuple[int, Any]:
    """Return the status and the object of a request that reads or changes one."""
    status, content = 200, state.objects.get(path)
    if method == "GET":
        state.reads.append(path)
    else:
        state.changes.append((method, path, body))
        if method == "POST":
            status = 201
            content = state.objects.setdefault(f"{path}/{body['metadata']['name']}", body)
        elif method == "DELETE":
            content = state.objects.pop(path, None)
        elif method == "PATCH":
            content = content or body
    if callable(content):
        content = content()
    return (status, content) if content is not None else (404, {"message": "not found"})


def run(state: ExecServer, handler: QuietHandler, path: str, query: Mapping[str, list[str]]) -> None:
    state.asked.append({"path": path, **query})
    if state.refuses:
        handler.send_whole(state.refuses.pop(0), b'{"message": "refused by the test"}')
        return
    key, connection = handler.headers["Sec-WebSocket-Key"], handler.connection
    proof = base64.b64encode(hashlib.sha1((key + GUID).encode()).digest()).decode()
    connection.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {state.accept or proof}\r\n"
        f"Sec-WebSocket-Protocol: {handler.headers['Sec-WebSocket-Protocol']}\r\n\r\n".encode()
    )
    if state.raw:
        connection.sendall(state.raw.pop(0))
        return
    words = [word.replace("/volume", state.root) if state.root else word for word in query["command"]]
    if words[0] == "python3":
        words[0] = sys.executable
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except (FileNotFoundError, PermissionError):  # PermissionError if a folder of PATH may not be read
        connection.sendall(
            frame(b"\x03" + json.dumps({"status": "Failure", "message": "not found"}).encode())
        )
        return
    reader = threading.Thread(target=feed, args=(connection, process), daemon=True)
    reader.start()
    with process:
        talk(state, connection, process)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    reader.join(2)  # closing with unread bytes would lose the bytes that were sent


def talk(state: ExecServer, connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None and process.stderr is not None
    left = state.cuts.pop(0) if state.cuts else None
    mangled = state.mangles.pop(0) if state.mangles else None
    sent = 0
    connection.sendall(bytes([0x89, 1]) + b"x")
    while piece := os.read(process.stdout.fileno(), 1 << 16):
        if left is not None and sent + len(piece) >= left:
            connection.sendall(frame(b"\x01" + piece[: left - sent]))
            process.kill()
            connection.shutdown(socket.SHUT_RDWR)
            return
        if mangled is not None and sent <= mangled < sent + len(piece):
            at = mangled - sent
            piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        sent += len(piece)
        connection.sendall(frame(b"\x01" + piece))
    if said := process.stderr.read():
        connection.sendall(frame(b"\x02" + said))
    code = process.wait()
    status: Json = {"status": "Success"}
    if code:
        cause = {"reason": "ExitCode", "message": str(code if code > 0 else 128 - code)}
        status = {"status": "Failure", "message": "failed", "details": {"causes": [cause]}}
    connection.sendall(frame(b"\x03" + json.dumps(status).encode()) + bytes([0x88, 0]))


def feed(connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Pass the client's stdin on to the process, and read on until the client has closed the connection."""
    assert process.stdin is not None
    frames = frame_buffer(lambda count: read_exactly(connection, count), skip_utf8_validation=True)
    with suppress(OSError):
        while True:
            found = frames.recv_frame()
            assert found.mask_value, "a client masks its frames"
            assert isinstance(found.data, bytes)
            if found.opcode == ABNF.OPCODE_BINARY and found.data[:1] == b"\x00":
                with suppress(OSError, ValueError):  # the process has ended
                    process.stdin.write(found.data[1:])
                    process.stdin.flush()


def frame(payload: bytes, *, kind: int = 2, last: bool = True) -> bytes:
    return ABNF(int(last), opcode=kind, mask_value=0, data=payload).format()


def read_exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError
        found += piece
    return found
