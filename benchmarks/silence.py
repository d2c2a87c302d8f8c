#!/usr/bin/env python3
"""Measure a command's longest silences, without any output, on a terminal and in a log.

The command runs under a pseudo-terminal of --columns cells, or with its output in a pipe, and the time of
each byte is recorded. A silence is the time between two bytes, before the first and after the last. Widest is
the longest line drawn, without escape codes. Goal: no silence above 2 s on a terminal.

Reads:      what the command writes; --columns N, --log (a pipe in place of the terminal), --above SECONDS
Writes:     a line per silence on stdout, with the text before it; --keep FILE keeps the command's output
Exit codes: 0 no silence above the limit, 1 there was one; 2 the command failed
Example:    benchmarks/silence.py -- .venv/bin/trainyard train --config configs/smoke.yaml
"""

import argparse
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_LINE_ENDS = re.compile(r"[\r\n]+")


def recorded(command: Sequence[str], *, columns: int, log: bool) -> tuple[list[tuple[float, bytes]], int]:
    """Run a command and return its output with times in seconds since the start, and its exit status.

    The last entry is the end of the command.
    """
    ours, theirs = os.pipe() if log else pty.openpty()
    if not log:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {"TERM": "xterm-256color", **os.environ, "COLUMNS": str(columns)}
    if not log:
        environment.pop("CI", None)
        environment.pop("COLUMNS", None)
    start, came = time.monotonic(), list[tuple[float, bytes]]()
    given = subprocess.DEVNULL if log else theirs
    process = subprocess.Popen(command, stdin=given, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    with contextlib.suppress(OSError):  # Linux reports EIO when the terminal was closed
        while piece := os.read(ours, 1 << 16):
            came.append((time.monotonic() - start, piece))
    status = process.wait()
    return [*came, (time.monotonic() - start, b"")], status


def silences(came: Sequence[tuple[float, bytes]], above: float) -> list[tuple[float, float, str]]:
    """Return length, start and preceding text of each silence longer than `above` seconds."""
    found, last, text = list[tuple[float, float, str]](), 0.0, ""
    for moment, piece in came:
        if moment - last > above:
            lines = [line for line in _LINE_ENDS.split(_ESCAPES.sub("", text)) if line.strip()]
            found.append((moment - last, last, lines[-1].strip() if lines else "(the start)"))
        last, text = moment, (text + piece.decode(errors="replace"))[-2000:]
    return sorted(found, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, default=80)
    parser.add_argument("--above", type=float, default=2.0)
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    came, status = recorded(args.command, columns=args.columns, log=args.log)
    written = b"".join(piece for _, piece in came)
    if args.keep:
        args.keep.write_bytes(written)
    found = silences(came, args.above)
    for seconds, since, text in found:
        print(f"{seconds:6.1f} s of silence from {since:6.1f} s on, after: {text[:100]}")
    lines = _LINE_ENDS.split(_ESCAPES.sub("", written.decode(errors="replace")))
    widest = max((len(line) for line in lines), default=0)
    seconds = came[-1][0]
    print(f"{seconds:6.1f} s in all, {len(found)} silences above {args.above:g} s, widest line {widest}")
    if status:
        return 2
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
