"""Answers of HTTP/1.1 as stores give them: a status, headers, and as many bytes as they say.

What is anything else is refused, and botocore asks again. Python's own client reads headers as those of a
mail, which took a quarter of the time of a small object, and takes the beginning of broken ones for all
(docs/decisions/0013).
"""

import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

_MOST_HEAD_BYTES = 1 << 16
_READ_BYTES = 1 << 13
_FINAL = 200
"""What is below is said ahead of the answer."""
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: [^\r\n]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})(?:[ \t]*;[^\r\n]*)?")


class Answer:
    """The status and the headers, read when it is made; the bytes behind them are still to be read.

    Raises ValueError for what no store answers, OSError when the connection ends or its time limit is over.
    """

    def __init__(self, line: socket.socket, *, method: str, seconds: float) -> None:
        """`seconds` is the connection's time limit, and that of all that is read here."""
        self._line, self._ahead, self._seconds = line, b"", seconds
        self._end = time.monotonic() + seconds
        while (found := self._status_line())[1] < _FINAL:
            self._header_lines()
        version, self.status = found
        self.headers = _headers(self._header_lines())
        """The headers by their names in lower case."""
        self._has_body = method != "HEAD"
        self.is_last = version == 0 or "close" in self.headers.get("connection", "").lower()
        """Whether the server ends the connection behind it."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing came behind what was read: the connection may be used again."""
        return not (self.is_last or self._ahead)

    @property
    def length(self) -> int:
        """Bytes of the object. Raises ValueError where nothing says how many there are."""
        if "transfer-encoding" in self.headers:
            raise ValueError("no length")
        if not _LENGTH.fullmatch(value := self.headers.get("content-length", "")):
            raise ValueError(f"{value[:20]!r} is no length")
        return int(value)

    def rest(self, most: int) -> bytes:
        """All bytes behind the headers. Raises ValueError when there are more than `most`."""
        if not self._has_body:
            return b""
        encoding = self.headers.get("transfer-encoding", "").lower()
        if encoding not in ("", "chunked"):
            raise ValueError("a transfer encoding that is not known here")
        return self._chunks(most) if encoding else self._exactly(_at_most(self.length, most))

    def body(self, *, whole: Callable[[socket.socket], None]) -> "Body":
        """What reads the bytes behind the headers piece by piece; `whole` gets the connection after the last.

        Raises ValueError where nothing says how many there are.
        """
        ahead, self._ahead = self._ahead[: self.length], self._ahead[self.length :]
        return Body(self._line, ahead, self.length, seconds=self._seconds, whole=whole)

    def _status_line(self) -> tuple[int, int]:
        """The minor version, and the status."""
        if not (match := _STATUS.fullmatch(self._next_line())):
            raise ValueError("no status of HTTP/1.1")
        return int(match[1]), int(match[2])

    def _header_lines(self) -> list[bytes]:
        lines, size = list[bytes](), 0
        while line := self._next_line():
            lines.append(line)
            size = _at_most(size + len(line), _MOST_HEAD_BYTES)
        return lines

    def _chunks(self, most: int) -> bytes:
        parts, total = list[bytes](), 0
        while size := self._chunk_size():
            total = _at_most(total + size, most)
            parts.append(self._exactly(size))
            if self._exactly(2) != b"\r\n":
                raise ValueError("a chunk that does not end where it should")
        self._header_lines()
        return b"".join(parts)

    def _chunk_size(self) -> int:
        if not (match := _CHUNK.fullmatch(self._next_line())):
            raise ValueError("no size of a chunk")
        return int(match[1], 16)

    def _next_line(self) -> bytes:
        while (place := self._ahead.find(b"\n")) < 0:
            _at_most(len(self._ahead), _MOST_HEAD_BYTES)
            self._ahead += self._more()
        found, self._ahead = self._ahead[:place], self._ahead[place + 1 :]
        if not found.endswith(b"\r"):
            raise ValueError("a line that does not end as it should")
        return found[:-1]

    def _exactly(self, count: int) -> bytes:
        parts, missing = [self._ahead[:count]], count - len(self._ahead)
        self._ahead = self._ahead[count:]
        while missing > 0:
            parts.append(self._more(missing))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _more(self, most: int = _READ_BYTES) -> bytes:
        if time.monotonic() > self._end:
            raise TimeoutError("timed out")
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
        """`ahead` is what was read of them along with the headers."""
        self._line, self._ahead, self._left = line, ahead, length
        self._whole, self._seconds = whole, seconds
        self._is_closed = False
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
        if self._is_closed:
            return
        self._is_closed = True
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


def _at_most(count: int, most: int) -> int:
    if count > most:
        raise ValueError(f"{count:,} bytes, {most:,} at most")
    return count
