"""Run a command in a container through the API server: a WebSocket with a channel per stream.

    handshake (GET .../exec, Upgrade) ──> messages; the first byte names stdin, stdout, stderr or error

The protocol is v4.channel.k8s.io, which every API server since Kubernetes 1.4 speaks; `websocket-client` does
the handshake and reads and writes the frames. One thread uses a connection. Pings show that it is alive, so
that a command may be silent for long but a dead connection is detected.
"""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

import websocket

from trainyard.errors import PermissionRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.kubernetes.api_requests import RETRIED_STATUSES, ApiRequests, message_in, unreachable
from trainyard.gateways.kubernetes.tls import KEEP_ALIVE, proxy_headers, proxy_of, ssl_context

if TYPE_CHECKING:
    from trainyard.jobs.volumes.place import Place

_PROTOCOL = "v4.channel.k8s.io"
_PING_SECONDS = 15.0
_SILENT_SECONDS = 60.0
"""After this time without a frame, pongs included, the connection is dead."""
_STDIN_PIECE = 1 << 15
_BROKEN = (websocket.WebSocketTimeoutException, websocket.WebSocketConnectionClosedException)


class Exec:
    """A command that runs in a container. Use it with `with`; leaving early closes the connection."""

    STDIN, STDOUT, STDERR, ERROR = range(4)

    def __init__(
        self, api: ApiRequests, place: "Place", command: Sequence[str], *, stdin: bytes = b""
    ) -> None:
        """Raises PermissionRefusedError, ServiceError if it is refused, ServiceTroubleError."""
        self._place, self._server = place, api.access.server
        self.exit_code: int | None = None
        """None until `streams` has ended, and if the command could not be run."""
        self._connection = _open(api, place, command, reads_stdin=bool(stdin))
        self._heard = time.monotonic()
        for start in range(0, len(stdin), _STDIN_PIECE):
            self._send(
                websocket.ABNF.OPCODE_BINARY, bytes([self.STDIN]) + stdin[start : start + _STDIN_PIECE]
            )

    def __enter__(self) -> "Exec":
        return self

    def __exit__(self, *_: object) -> None:
        self._send(websocket.ABNF.OPCODE_CLOSE, b"")
        self._connection.shutdown()

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
            kind, payload = self._receive()
            if kind == websocket.ABNF.OPCODE_CLOSE:
                return
            if kind == websocket.ABNF.OPCODE_PING:
                self._send(websocket.ABNF.OPCODE_PONG, payload)
            elif kind != websocket.ABNF.OPCODE_PONG:
                yield kind != websocket.ABNF.OPCODE_CONT, payload

    def _receive(self) -> tuple[int, bytes]:
        """Return the kind and the payload of the next frame."""
        while True:
            try:
                frame = self._connection.recv_frame()
            except websocket.WebSocketTimeoutException:
                if time.monotonic() - self._heard > _SILENT_SECONDS:
                    raise ServiceTroubleError(
                        f"{self._server} has been silent for {_SILENT_SECONDS:.0f} seconds"
                    ) from None
                self._send(websocket.ABNF.OPCODE_PING, b"")
                continue
            except websocket.WebSocketConnectionClosedException:
                raise ServiceTroubleError(f"the connection to {self._place} broke off") from None
            except websocket.WebSocketException:
                raise ServiceTroubleError(
                    f"{self._server} sent a frame that does not follow RFC 6455"
                ) from None
            except OSError as error:
                raise ServiceTroubleError(unreachable(self._server, error)) from None
            self._heard = time.monotonic()
            return frame.opcode, frame.data

    def _send(self, kind: int, payload: bytes) -> None:
        # The command may have ended; reading shows whether the connection broke.
        with suppress(OSError, websocket.WebSocketException):
            self._connection.send(payload, kind)


def _open(
    api: ApiRequests, place: "Place", command: Sequence[str], *, reads_stdin: bool
) -> websocket.WebSocket:
    """Return a connection after its handshake. An expired token is renewed once."""
    server, identity = urlsplit(api.access.server), api.identity()
    host = server.netloc.rpartition("@")[2]
    path = server.path.rstrip("/") + _path_of(place, command, reads_stdin=reads_stdin)
    for last in (False, True):
        headers = [("User-Agent", "trainyard"), *identity.items(), *api.access.impersonated]
        opened = websocket.WebSocket(enable_multithread=False, skip_utf8_validation=True)
        try:
            opened.connect(
                f"ws://{host}{path}",
                socket=_connect(api),
                host=host,
                header=[f"{name}: {value}" for name, value in headers],
                subprotocols=[_PROTOCOL],
                suppress_origin=True,
            )
            opened.settimeout(_PING_SECONDS)
            return opened
        except websocket.WebSocketBadStatusException as error:
            renewed = api.identity(refused=identity.get("Authorization", "").removeprefix("Bearer "))
            if error.status_code != 401 or renewed == identity or last:
                raise _refusal(api, place, error.status_code, message_in(error.resp_body or b"")) from None
            identity = renewed
        except (OSError, *_BROKEN) as error:
            raise ServiceTroubleError(unreachable(api.access.server, error)) from None
        except websocket.WebSocketException:
            raise ServiceError(
                f"{api.access.server} does not answer Kubernetes' WebSocket handshake; is there a proxy in "
                "between?"
            ) from None
    raise AssertionError("the second attempt returns or raises")


def _path_of(place: "Place", command: Sequence[str], *, reads_stdin: bool) -> str:
    query = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    query += [("stdin", "true")] if reads_stdin else []
    query += [("container", place.container)] if place.container else []
    pods = f"/api/v1/namespaces/{quote(place.namespace, safe='')}/pods"
    return f"{pods}/{quote(place.pod, safe='')}/exec?{urlencode(query)}"


def _connect(api: ApiRequests) -> socket.socket:
    """Return a connection to the API server, through its proxy if it has one, and with TLS if it uses it."""
    access = api.access
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


def _refusal(api: ApiRequests, place: "Place", status: int, message: str) -> ServiceError:
    if status == 401:
        return api.unknown_caller()
    if status == 403:
        # A WebSocket is opened by a GET, which RBAC judges as `get`; from 1.35 on it judges `create` too.
        needs = f"pods/exec in {place.namespace}, which needs the verbs get and create"
        return PermissionRefusedError(f"not allowed: {needs}: {message}")
    kind = ServiceTroubleError if status in (0, *RETRIED_STATUSES) else ServiceError
    return kind(f"a command cannot be run in {place} ({status}): {message}")


def _is_json(text: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


def _exit_code(status: bytes, place: "Place") -> int:
    """Return the exit code of the command, from the Status that ends the connection."""
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
