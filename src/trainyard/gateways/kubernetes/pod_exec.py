"""Run a command in a container through the API server: a WebSocket with a channel per stream.

    handshake (GET .../exec, Upgrade) ──> messages; the first byte says stdin, stdout, stderr or error

The protocol is v4.channel.k8s.io, which every API server since Kubernetes 1.4 speaks. One thread uses a
connection. Pings show that it is alive, so that a command may be silent for long but a dead connection is
detected.
"""

import base64
import hashlib
import http.client
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from trainyard.errors import PermissionRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.kubernetes.api import HEALS, Api, message_in, unreachable
from trainyard.gateways.kubernetes.cluster_access import Access
from trainyard.gateways.kubernetes.tls import KEEP_ALIVE, proxy_headers, proxy_of, ssl_context

if TYPE_CHECKING:
    from trainyard.jobs.volumes.helper_pod import Place

_PROTOCOL = "v4.channel.k8s.io"
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3: proves that the server understood the handshake."""
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_PING_SECONDS = 15.0
_SILENT_SECONDS = 60.0
"""After this time without a byte, pongs included, the connection is dead."""
_PIECE = 1 << 18
_MOST_FRAME = 64 << 20
_MOST_HEAD = 1 << 16
_STDIN_PIECE = 1 << 15


class Exec:
    """A command that runs in a container. Use it with `with`; leaving early closes the connection."""

    STDIN, STDOUT, STDERR, ERROR = range(4)

    def __init__(self, api: Api, place: "Place", command: Sequence[str], *, stdin: bytes = b"") -> None:
        """Raises PermissionRefusedError, ServiceError if it is refused, ServiceTroubleError."""
        self._place, self._server = place, api.access.server
        self.exit_code: int | None = None
        """None until `streams` has ended, and if the command could not be run."""
        self._socket, self._rest = _opened(api, place, command, reads_stdin=bool(stdin))
        self._heard = time.monotonic()
        for start in range(0, len(stdin), _STDIN_PIECE):
            self._send(_BINARY, bytes([self.STDIN]) + stdin[start : start + _STDIN_PIECE])

    def __enter__(self) -> "Exec":
        return self

    def __exit__(self, *_: object) -> None:
        self._send(_CLOSE, b"")
        self._socket.close()

    def streams(self) -> Iterator[tuple[int, bytes]]:
        """Yield the command's output, each piece with STDOUT or STDERR, until it has ended.

        Raises ServiceTroubleError if the connection breaks first, ServiceError if the command cannot be run.
        """
        channel, status = self.STDOUT, b""
        for first, piece in self._messages():
            if first:
                channel, piece = piece[0] if piece else self.STDOUT, piece[1:]
            if channel == self.ERROR:
                status += piece
                if _is_json(status):
                    break
            elif piece:
                yield channel, piece
        if not status:
            raise ServiceTroubleError(f"the connection to {self._place} was closed before the command ended")
        self.exit_code = _exit_code(status, self._place)

    def _messages(self) -> Iterator[tuple[bool, bytes]]:
        """The payloads of data frames, and whether each one begins a message."""
        while True:
            head = self._read(2)
            kind, length = head[0] & 15, head[1] & 127
            if length == 126:
                length = struct.unpack(">H", self._read(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", self._read(8))[0]
            if length > _MOST_FRAME or head[1] & 128:
                raise ServiceTroubleError(f"{self._server} sent a frame that does not follow RFC 6455")
            payload = self._read(length)
            if kind == _CLOSE:
                return
            if kind == _PING:
                self._send(_PONG, payload)
            elif kind in (0, 1, _BINARY):
                yield kind != 0, payload

    def _read(self, count: int) -> bytes:
        """Read exactly this many bytes."""
        pieces, left = [], count
        while left:
            piece, self._rest = self._rest[:left], self._rest[left:]
            if not piece:
                self._rest = self._received()
                continue
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _received(self) -> bytes:
        while True:
            try:
                piece = self._socket.recv(_PIECE)
            except TimeoutError:
                if time.monotonic() - self._heard > _SILENT_SECONDS:
                    raise ServiceTroubleError(
                        f"{self._server} has been silent for {_SILENT_SECONDS:.0f} seconds"
                    ) from None
                self._send(_PING, b"")
                continue
            except OSError as error:
                raise ServiceTroubleError(unreachable(self._server, error)) from None
            if not piece:
                raise ServiceTroubleError(f"the connection to {self._place} broke off")
            self._heard = time.monotonic()
            return piece

    def _send(self, kind: int, payload: bytes) -> None:
        mask, count = os.urandom(4), len(payload)
        size = bytes([128 | count]) if count < 126 else bytes([128 | 126]) + struct.pack(">H", count)
        key = int.from_bytes((mask * (count // 4 + 1))[:count], "big")
        hidden = (int.from_bytes(payload, "big") ^ key).to_bytes(count, "big")
        with suppress(OSError):  # the command may have ended; reading tells whether the connection broke
            self._socket.sendall(bytes([128 | kind]) + size + mask + hidden)


def _opened(
    api: Api, place: "Place", command: Sequence[str], *, reads_stdin: bool
) -> tuple[socket.socket, bytes]:
    """A connection after its handshake, and the bytes that have already arrived."""
    path = _path_of(place, command, reads_stdin=reads_stdin)
    identity = api.identity()
    for last in (False, True):
        connection, status = _connected(api.access), 0
        try:
            status, reason, rest = _shaken(connection, api.access, path, identity)
        except (OSError, http.client.HTTPException) as error:
            raise ServiceTroubleError(unreachable(api.access.server, error)) from None
        finally:
            if status != 101:
                connection.close()
        if status == 101:
            connection.settimeout(_PING_SECONDS)
            return connection, rest
        renewed = api.identity(refused=identity.get("Authorization", "").removeprefix("Bearer "))
        if status != 401 or renewed == identity or last:
            raise _refusal(api, place, status, reason)
        identity = renewed
    raise AssertionError("the second attempt returns or raises")


def _path_of(place: "Place", command: Sequence[str], *, reads_stdin: bool) -> str:
    query = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    query += [("stdin", "true")] if reads_stdin else []
    query += [("container", place.container)] if place.container else []
    pods = f"/api/v1/namespaces/{quote(place.namespace, safe='')}/pods"
    return f"{pods}/{quote(place.pod, safe='')}/exec?{urlencode(query)}"


def _connected(access: Access) -> socket.socket:
    """A connection to the API server, through its proxy if it has one, and with TLS if it uses it."""
    server, proxy = urlsplit(access.server), urlsplit(proxy_of(access))
    port = server.port or (443 if server.scheme == "https" else 80)
    host = server.hostname or ""
    connection = http.client.HTTPConnection(host, port, timeout=_PING_SECONDS)
    if proxy.hostname:
        connection = http.client.HTTPConnection(proxy.hostname, proxy.port or 80, timeout=_PING_SECONDS)
        connection.set_tunnel(host, port, headers=proxy_headers(proxy_of(access)))
    try:
        connection.connect()
        plain: socket.socket = connection.sock
        for level, option, value in KEEP_ALIVE:
            plain.setsockopt(level, option, value)
        if server.scheme != "https":
            return plain
        return ssl_context(access).wrap_socket(plain, server_hostname=access.server_name or host)
    except (OSError, ssl.SSLError, http.client.HTTPException) as error:
        connection.close()
        raise ServiceTroubleError(unreachable(access.server, error)) from None


def _shaken(
    connection: socket.socket, access: Access, path: str, identity: dict[str, str]
) -> tuple[int, str, bytes]:
    """Status and text of the answer to the handshake, and the bytes after it."""
    key = base64.b64encode(os.urandom(16)).decode()
    server = urlsplit(access.server)
    headers = [
        ("Host", server.netloc.rpartition("@")[2]),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Protocol", _PROTOCOL),
        ("User-Agent", "trainyard"),
        *identity.items(),
        *access.impersonated,
    ]
    lines = [
        f"GET {server.path.rstrip('/')}{path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    head, rest = _head_of(connection)
    first, *fields = head.split("\r\n")
    status = int(first.split()[1]) if len(first.split()) > 1 and first.split()[1].isdecimal() else 0
    named = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    if status != 101:
        with suppress(OSError):
            while len(rest) < int(named.get("content-length", "0") or 0) < _MOST_HEAD:
                rest += connection.recv(_PIECE) or _broken()
        return status, message_in(rest), b""
    proof = hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
    if named.get("sec-websocket-accept") != base64.b64encode(proof).decode():
        raise ServiceError(
            f"{access.server} does not answer Kubernetes' WebSocket handshake; is there a proxy in between?"
        )
    return status, "", rest


def _head_of(connection: socket.socket) -> tuple[str, bytes]:
    found = b""
    while b"\r\n\r\n" not in found:
        if len(found) > _MOST_HEAD:
            raise http.client.HTTPException("the answer to the handshake has no end")
        found += connection.recv(_PIECE) or _broken()
    head, _, rest = found.partition(b"\r\n\r\n")
    return head.decode("latin-1"), rest


def _broken() -> bytes:
    raise ConnectionError("the connection was closed during the handshake")


def _refusal(api: Api, place: "Place", status: int, said: str) -> ServiceError:
    if status == 401:
        return api.unknown_caller()
    if status == 403:
        return PermissionRefusedError(f"not allowed: create pods/exec in {place.namespace}: {said}")
    kind = ServiceTroubleError if status in (0, *HEALS) else ServiceError
    return kind(f"a command cannot be run in {place} ({status}): {said}")


def _is_json(text: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _exit_code(status: bytes, place: "Place") -> int:
    """The exit code of the command, from the Status that ends the connection."""
    try:
        answer = json.loads(status)
        if answer["status"] == "Success":
            return 0
        causes = (answer.get("details") or {}).get("causes") or ()
        codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        codes, answer = [], {"message": status[:200].decode(errors="replace")}
    if not codes:
        raise ServiceError(f"a command cannot be run in {place}: {str(answer.get('message'))[:300]}")
    return codes[0]
