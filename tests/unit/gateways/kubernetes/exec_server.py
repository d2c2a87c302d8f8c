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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.listener import Listener
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
            connection.shutdown(socket.SHUT_RDWR)

    def access(self, **more: Any) -> Access:
        return Access(server=self.server, credentials=Credentials(), context="exec", **more)


@contextmanager
def exec_server(**settings: Any) -> Iterator[ExecServer]:
    """Serve on loopback."""
    state = ExecServer(**settings)

    class Commands(Listener):
        def serve(self, line: socket.socket) -> None:
            serve(state, line)

    listener = Commands()
    state.server = listener.url
    try:
        yield state
    finally:
        listener.close()


def serve(state: ExecServer, connection: socket.socket) -> None:
    while head := read_head(connection):
        first, *lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        method, address, _ = first.split(" ")
        body = read_exactly(connection, int(headers.get("content-length", 0)))
        state.tokens.append(headers.get("authorization", ""))
        if headers.get("upgrade") == "websocket":
            run(state, connection, address, headers)
            return
        if "watch" in parse_qs(urlsplit(address).query):
            watch(state, connection, unquote(urlsplit(address).path))
            return
        answer(state, connection, method, address, body)


def watch(state: ExecServer, connection: socket.socket, path: str) -> None:
    if state.refuses_watches:
        connection.sendall(b"HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}")
        return
    connection.sendall(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    state.watches.append((path, connection))
    connection.recv(1)  # until the client or the test closes it


def answer(state: ExecServer, connection: socket.socket, method: str, address: str, body: bytes) -> None:
    path = unquote(urlsplit(address).path)
    status, content = 200, state.objects.get(path)
    if method == "GET":
        state.reads.append(path)
    else:
        parsed: Any = json.loads(body) if body else None
        state.changes.append((method, path, parsed))
        if method == "POST":
            name = parsed["metadata"]["name"]
            status, content = 201, state.objects.setdefault(f"{path}/{name}", parsed)
        elif method == "DELETE":
            content = state.objects.pop(path, None)
        elif method == "PATCH":
            content = content or parsed
    if callable(content):
        content = content()
    if content is None:
        status, content = 404, {"message": "not found"}
    data = json.dumps(content).encode()
    connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def run(state: ExecServer, connection: socket.socket, address: str, headers: dict[str, str]) -> None:
    query = parse_qs(urlsplit(address).query)
    state.asked.append({"path": unquote(urlsplit(address).path), **query})
    if state.refuses:
        status, message = state.refuses.pop(0), b'{"message": "refused by the test"}'
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(message)}\r\n\r\n".encode()
        connection.sendall(head + message)
        return
    proof = base64.b64encode(hashlib.sha1((headers["sec-websocket-key"] + GUID).encode()).digest()).decode()
    connection.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {state.accept or proof}\r\n"
        f"Sec-WebSocket-Protocol: {headers['sec-websocket-protocol']}\r\n\r\n".encode()
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


def read_head(connection: socket.socket) -> str:
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            return ""
        found += piece
    return found.decode().rstrip()


def read_exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError
        found += piece
    return found
