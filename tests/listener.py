"""A server of the tests' own that speaks bytes: it accepts on loopback, a thread a connection."""

import contextlib
import socket
import threading


class Listener:
    """Subclasses answer in `serve`; a connection that breaks ends it."""

    def __init__(self) -> None:
        """Subclasses set what `serve` needs before."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join(10)  # its descriptor may be another's after close
        self._listener.close()

    def serve(self, line: socket.socket) -> None:
        """Answer the requests of one connection."""
        raise NotImplementedError

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            self.serve(line)


def pass_on(upstream: str, head: bytes, body: bytes) -> bytes:
    """Return the answer of the server at `upstream` to a request, on a connection of its own."""
    host, _, port = upstream.removeprefix("http://").partition(":")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
    with socket.create_connection((host, int(port)), timeout=20) as server:
        server.sendall(b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n" + body)
        return b"".join(iter(lambda: server.recv(1 << 20), b""))


def read_message(client: socket.socket) -> tuple[bytes, bytes]:
    """The head and the body of one HTTP request; empty when the client hung up.

    The client may ask (`Expect`) before it sends the body.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(1 << 16)
        if not chunk:
            return b"", b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if b"expect" in fields:
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts = [body]
    left = int(fields.get(b"content-length", b"0")) - len(body)
    while left > 0 and (chunk := client.recv(min(left, 1 << 20))):
        parts.append(chunk)
        left -= len(chunk)
    return head, b"".join(parts)
