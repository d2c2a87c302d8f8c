"""Run a command in a container through the API server: a WebSocket with a channel per stream.

    handshake (GET .../exec, Upgrade) ──> messages; the first byte names stdin, stdout, stderr or error

The protocol is v4.channel.k8s.io, which every API server since Kubernetes 1.4 speaks; `websocket-client` does
the handshake and reads and writes the frames. One thread uses a connection. Pings show that it is alive, so
that a command may be silent for long but a dead connection is detected.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import websocket

from trainyard.errors import PermissionRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.http_requests import RETRIED_STATUSES
from trainyard.gateways.kubernetes.api_requests import ApiRequests, message_in, unreachable
from trainyard.gateways.kubernetes.tls import KEEP_ALIVE, proxy_of, ssl_context

if TYPE_CHECKING:
    from trainyard.jobs.state.pod_facts import Place

_PROTOCOL = "v4.channel.k8s.io"
_PING_SECONDS = 15.0
_SILENT_SECONDS = 60.0
"""After this time without a frame, pongs included, the connection is dead."""
_STDIN_PIECE = 1 << 15
_BROKEN = (
    *(OSError, websocket.WebSocketTimeoutException, websocket.WebSocketConnectionClosedException),
    *(websocket.WebSocketProxyException, websocket.WebSocketAddressException),
)


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
        while self.exit_code is None:
            kind, payload = self._receive()
            if kind == websocket.ABNF.OPCODE_CLOSE:
                raise ServiceTroubleError(
                    f"the connection to {self._place} was closed before the command ended"
                )
            channel, piece = (payload[0], payload[1:]) if payload else (self.STDOUT, b"")
            if kind in (websocket.ABNF.OPCODE_PING, websocket.ABNF.OPCODE_PONG) or not piece:
                continue
            if channel == self.ERROR:
                self.exit_code = _exit_code(piece, self._place)
            else:
                yield channel, piece

    def _receive(self) -> tuple[int, bytes]:
        """Return the kind and the payload of the next message; a ping has been answered."""
        while True:
            try:
                kind, frame = self._connection.recv_data_frame(control_frame=True)
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
            return kind, frame.data

    def _send(self, kind: int, payload: bytes) -> None:
        # The command may have ended; reading shows whether the connection broke.
        with suppress(OSError, websocket.WebSocketException):
            self._connection.send(payload, kind)


def _open(
    api: ApiRequests, place: "Place", command: Sequence[str], *, reads_stdin: bool
) -> websocket.WebSocket:
    """Return a connection after its handshake. An expired token is renewed once."""
    access, identity = api.access, api.identity()
    address = access.server.replace("http", "ws", 1) + _path_of(place, command, reads_stdin=reads_stdin)
    secure: dict[str, Any] = {}
    if address.startswith("wss:"):
        secure = {"context": ssl_context(access), "server_hostname": access.server_name or None}
    options: dict[str, Any] = {"subprotocols": [_PROTOCOL], "suppress_origin": True}
    if proxy := proxy_of(access):
        parts = urlsplit(proxy)
        options |= {"http_proxy_host": parts.hostname, "http_proxy_port": parts.port or 80}
        options["http_no_proxy"] = ["-"]  # proxy_of has applied NO_PROXY, which a kubeconfig's proxy ignores
        if parts.username:
            options["http_proxy_auth"] = (unquote(parts.username), unquote(parts.password or ""))
    for last in (False, True):
        headers = [("User-Agent", "trainyard"), *identity.items(), *access.impersonated]
        opened = websocket.WebSocket(
            sockopt=[*KEEP_ALIVE], sslopt=secure, enable_multithread=False, skip_utf8_validation=True
        )
        opened.settimeout(_PING_SECONDS)
        try:
            opened.connect(address, header=[f"{name}: {value}" for name, value in headers], **options)
            return opened
        except websocket.WebSocketBadStatusException as error:
            renewed = api.identity(refused=identity.get("Authorization", "").removeprefix("Bearer "))
            if error.status_code != 401 or renewed == identity or last:
                raise _refusal(api, place, error.status_code, message_in(error.resp_body or b"")) from None
            identity = renewed
        except _BROKEN as error:
            raise ServiceTroubleError(unreachable(access.server, error)) from None
        except websocket.WebSocketException:
            raise ServiceError(
                f"{access.server} does not answer Kubernetes' WebSocket handshake; is there a proxy in "
                "between?"
            ) from None
    raise AssertionError("the second attempt returns or raises")


def _path_of(place: "Place", command: Sequence[str], *, reads_stdin: bool) -> str:
    query = [("command", word) for word in command] + [("stdout", "true"), ("stderr", "true")]
    query += [("stdin", "true")] if reads_stdin else []
    query += [("container", place.container)] if place.container else []
    pods = f"/api/v1/namespaces/{quote(place.namespace, safe='')}/pods"
    return f"{pods}/{quote(place.pod, safe='')}/exec?{urlencode(query)}"


def _refusal(api: ApiRequests, place: "Place", status: int, message: str) -> ServiceError:
    if status == 401:
        return api.unknown_caller()
    if status == 403:
        # A WebSocket is opened by a GET, which RBAC judges as `get`; from 1.35 on it judges `create` too.
        needs = f"pods/exec in {place.namespace}, which needs the verbs get and create"
        return PermissionRefusedError(f"not allowed: {needs}: {message}")
    kind = ServiceTroubleError if status in (0, *RETRIED_STATUSES) else ServiceError
    return kind(f"a command cannot be run in {place} ({status}): {message}")


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
