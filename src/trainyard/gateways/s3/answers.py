"""Answers of HTTP/1.1 as stores give them: a status, headers, and as many bytes as they say.

What is anything else is refused, and botocore asks again. Python's own client reads headers as those of a
mail, which took a third of the time of a small request, and takes the beginning of broken ones for all.
"""

import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

_MOST_HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 13
_STATUS = re.compile(rb"HTTP/1\.([01]) ([2-5]\d\d)(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})(?:[ \t]*;[^\r\n]*)?")


class Answer:
    """The status and the headers, read when it is made; the bytes behind them are still to be read.

    Raises ValueError for what no store answers, OSError when the connection ends or its time limit is over.
    """

    def __init__(self, line: socket.socket, *, method: str) -> None:
        self._line, self._ahead = line, b""
        first, *lines = self._until(b"\r\n\r\n", _MOST_HEAD_BYTES).split(b"\r\n")
        if not (status := _STATUS.fullmatch(first)):
            raise ValueError("no status of HTTP/1.1")
        self.status, self.headers = int(status[2]), _headers(lines)
        """The headers by their names in lower case."""
        encoding = self.headers.get("transfer-encoding", "")
        if encoding.lower() not in ("", "chunked"):
            raise ValueError("a transfer encoding that is not known here")
        self.is_chunked, self.length = bool(encoding), 0
        """Bytes behind the headers; 0 where they come in chunks."""
        if method != "HEAD" and not self.is_chunked:
            self.length = _length(self.headers)
        self.is_last = status[1] == b"0" or "close" in self.headers.get("connection", "").lower()
        """Whether the server ends the connection behind it."""

    def rest(self, most: int) -> bytes:
        """All bytes behind the headers. Raises ValueError when there are more than `most`."""
        if not self.is_chunked:
            if self.length > most:
                raise ValueError(f"{self.length:,} bytes")
            return self._exactly(self.length)
        parts, total = list[bytes](), 0
        while size := self._chunk_size():
            total += size
            if total > most:
                raise ValueError(f"over {most:,} bytes")
            parts.append(self._exactly(size))
            self._exactly(2)
        while self._until(b"\r\n", _MOST_HEAD_BYTES):
            pass
        return b"".join(parts)

    def body(self, seconds: float, *, whole: Callable[[socket.socket], None]) -> "Body":
        """What reads the bytes behind the headers piece by piece; `whole` gets the connection after the last.

        `seconds` is the connection's time limit. Raises ValueError where nothing says how many there are.
        """
        if self.is_chunked:
            raise ValueError("no length")
        return Body(self._line, self._ahead, self.length, seconds=seconds, whole=whole)

    def _chunk_size(self) -> int:
        if not (match := _CHUNK.fullmatch(self._until(b"\r\n", _MOST_HEAD_BYTES))):
            raise ValueError("no size of a chunk")
        return int(match[1], 16)

    def _until(self, end: bytes, most: int) -> bytes:
        """What comes before the next `end`, which is read, too."""
        while (place := self._ahead.find(end)) < 0:
            if len(self._ahead) > most:
                raise ValueError("no end")
            self._ahead += self._more()
        found, self._ahead = self._ahead[:place], self._ahead[place + len(end) :]
        return found

    def _exactly(self, count: int) -> bytes:
        parts, missing = [self._ahead[:count]], count - len(self._ahead)
        self._ahead = self._ahead[count:]
        while missing > 0:
            parts.append(self._more(missing))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _more(self, most: int = _READ_BYTES) -> bytes:
        if not (data := self._line.recv(min(most, 1 << 20))):
            raise ConnectionError("the answer broke off")
        return data


class Body:
    """The bytes of an object; its connection is used again once all are read, and closed otherwise."""

    def __init__(
        self,
        line: socket.socket,
        ahead: bytes,
        length: int,
        *,
        seconds: float,
        whole: Callable[[socket.socket], None],
    ) -> None:
        self._line, self._ahead, self._left = line, ahead[:length], length
        self._whole, self._seconds = whole, seconds
        self._waits_in_kernel = False
        """Whether its time limit is the kernel's affair now, so that one call fills all there is room for."""

    def iter_chunks(self, size: int) -> Iterator[bytes | bytearray]:
        """Blocks of `size` bytes."""
        while self._left:
            chunk = bytearray(min(size, self._left))
            count = self.readinto(memoryview(chunk))
            if not count:
                return
            yield chunk if count == len(chunk) else chunk[:count]

    def readinto(self, room: memoryview) -> int:
        """Fill `room` as far as there are bytes; less at the end, or where the answer breaks off."""
        room = room[: self._left]
        done = min(len(self._ahead), len(room))
        room[:done], self._ahead = self._ahead[:done], self._ahead[done:]
        if isinstance(self._line, ssl.SSLSocket):
            while done < len(room) and (count := self._line.recv_into(room[done:])):
                done += count
        elif done < len(room):
            done += self._in_one_call(room[done:])
        self._left -= done
        return done

    def close(self) -> None:
        """Be done with it, read or not. An answer that broke off is shorter than it said."""
        if self._left:
            self._line.close()
            return
        if self._waits_in_kernel:
            self._line.settimeout(self._seconds)
        self._whole(self._line)

    def _in_one_call(self, room: memoryview) -> int:
        """As much of `room` as comes before the end or the time limit.

        Python's own reading takes a hundred calls for a MiB, for each of which it waits for the interpreter.
        """
        if not self._waits_in_kernel:
            limit = struct.pack("ll", int(self._seconds), max(1, int(self._seconds % 1 * 1e6)))
            self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._line.settimeout(None)
            self._waits_in_kernel = True
        try:
            return self._line.recv_into(room, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError("timed out") from None


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        if not (match := _FIELD.fullmatch(line)):
            raise ValueError("a line that is no header")
        name, value = match[1].decode("ascii").lower(), match[2].decode("latin-1").rstrip(" \t")
        if name == "content-length" and headers.get(name, value) != value:
            raise ValueError("two lengths")
        headers[name] = value
    return headers


def _length(headers: dict[str, str]) -> int:
    value = headers.get("content-length", "")
    if not _LENGTH.fullmatch(value):
        raise ValueError(f"{value[:20]!r} is no length")
    return int(value)
