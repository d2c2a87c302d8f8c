#!/usr/bin/env python3
"""Store and restore a checkpoint over a paced line, against `s5cmd cp` and `aws s3 cp` of the same files.

The store responds from memory, with the latency and bandwidth of the case. Ours are the shipped scripts: they
hash and compare every byte, send each object with a checksum, and put the manifest last. The others only
copy. Each is its own process, whose start counts; they take turns, and each round has a new store. Files are
in memory if a file system for that exists.

Reads:   TRAINYARD_PACED_STORE (see paced_store.py); --case, --rounds, --s5cmd and --aws (else those in PATH)
Writes:  temporary directories; a table on stdout
Exit codes: 0 the goals are met, 1 one is not
Example: benchmarks/store_line.py --case far --rounds 5 --s5cmd ~/.venv/bin/s5cmd
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paced_store import MIB, serving, write_run

HOUSE = Path(__file__).resolve().parent.parent
OURS = "trainyard"
PEAK_GOAL_MIB = 300


@dataclass(frozen=True)
class Case:
    """A network line and the files that are copied over it."""

    flags: tuple[str, ...]
    """Settings of the paced store."""
    files: int
    size: int
    """Size of each file, in bytes."""
    least_ratio: float = 0.0
    """Required speed relative to `s5cmd`, for upload and download."""
    line: float = 0.0
    """Speed of the line in bytes per second; 95 % of it must be used."""
    processor_seconds: float = 0.0
    """Greatest allowed CPU seconds per GiB."""


CASES = {
    "line": Case(("-latency", "5ms", "-link", "125e6"), 1, 1 << 30, line=125e6),
    "far": Case(
        ("-latency", "20ms", "-conn", "90e6", "-link", "1.25e9"), 1, 1 << 30, 0.9, processor_seconds=2
    ),
    "tls": Case(("-latency", "20ms", "-conn", "90e6", "-link", "1.25e9"), 1, 1 << 30, processor_seconds=4),
}


@dataclass(frozen=True)
class Taken:
    """Resources that a process used."""

    seconds: float
    processor: float
    peak_mib: float


Contender = Callable[[Path, int], list[str]]
"""Makes the command that copies, from the run's or target's directory and the number of the round."""


def contenders(args: argparse.Namespace, url: str, *, up: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {OURS: sync if up else restore}
    unverified = ["--no-verify-ssl"] if url.startswith("https") else []
    if s5cmd := args.s5cmd or shutil.which("s5cmd"):
        base = [s5cmd, *unverified, "--log", "error", "--endpoint-url", url, "cp"]
        found["s5cmd"] = lambda path, number: base + ends(path, f"s3://bench/s5-{number}/", up, "*")
    if aws := args.aws or shutil.which("aws"):
        line = [aws, "--endpoint-url", url, "s3", "cp", "--recursive", "--only-show-errors"]
        found["aws"] = lambda path, number: line + ends(path, f"s3://bench/aws-{number}/", up, "")
    return found


def ends(path: Path, place: str, up: bool, every: str) -> list[str]:
    return [f"{checkpoint(path)}/", place] if up else [f"{place}{every}", f"{path}/"]


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / "step-00000500"


def script(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "trainyard", *name.split(), *map(str, arguments)]


def sync(run: Path, number: int) -> list[str]:
    store = f"s3://bench/ours-{number}"
    return script("store sync", "--run-dir", run, "--store", store, "--run-number", 1, "--once")


def restore(target: Path, number: int) -> list[str]:
    return script("store restore", "--store", f"s3://bench/ours-{number}", "--run-number", 1, "--to", target)


def timed(line: Sequence[str]) -> Taken:
    # With this variable, each start of a script would compile the library again.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=kept)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(line)}: {process.returncode}\n{said[-2000:]}")
    return Taken(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def measure(case: Case, args: argparse.Namespace) -> dict[tuple[str, str], list[Taken]]:
    """Measure every contender in both directions; the first round warms up and does not count."""
    found: dict[tuple[str, str], list[Taken]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, flags = Path(name), [*case.flags]
        run = write_run(folder / "run", case.files, case.size).path
        if case is CASES["tls"]:
            flags += certified(folder)
        for number in range(args.rounds + 1):
            with serving(*flags) as url:
                for direction in ("up", "down"):
                    for who, command in contenders(args, url, up=direction == "up").items():
                        target = folder / who
                        touch_memory(folder, case.files * case.size)
                        taken = timed(command(run if direction == "up" else target, number))
                        shutil.rmtree(target, ignore_errors=True)
                        found.setdefault((direction, who), []).extend([taken] if number else [])
    return found


def touch_memory(folder: Path, size: int) -> None:
    """Write and remove a file as large as the copy, so that every contender finds the machine's memory alike.

    A virtual machine may return free memory to its host. Whoever writes next gets it back page by page, at
    3 s of processor time per GiB instead of 0.5; without this only the first contender would pay for it.
    """
    file, block = folder / "touched", bytes(MIB)
    with file.open("wb", buffering=0) as out:
        for _ in range(size // MIB):
            out.write(block)
    file.unlink()


def certified(folder: Path) -> list[str]:
    """Return the flags that make the store use TLS, and let Trainyard and aws trust its certificate."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=store"]
    line += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(line, check=True, capture_output=True)
    os.environ["AWS_CA_BUNDLE"] = str(certificate)
    return ["-cert", str(certificate), "-key", str(key)]


def judged(name: str, case: Case, found: dict[tuple[str, str], list[Taken]]) -> bool:
    """Print the figures of a case and return whether they meet its goals."""
    total, met = case.files * case.size, True
    for (direction, who), rounds in found.items():
        seconds = [taken.seconds for taken in rounds]
        median, processor = statistics.median(seconds), statistics.median(t.processor for t in rounds)
        peak = max(taken.peak_mib for taken in rounds)
        words = [
            f"{name:<6} {direction:<5} {who:<10} {median:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        ]
        words.append(f"{total / median / MIB:6.0f} MiB/s, processor {processor:5.2f} s, peak {peak:4.0f} MiB")
        if who == OURS:
            goals = list[bool]([peak < PEAK_GOAL_MIB])
            if case.line:
                share = total / case.line / median
                words.append(f"{share:.1%} of the line")
                goals.append(share >= 0.95)
            if (direction, "s5cmd") in found:
                theirs = statistics.median(taken.seconds for taken in found[direction, "s5cmd"])
                words.append(f"{theirs / median:.2f} x s5cmd")
                goals.append(theirs / median >= case.least_ratio)
            if case.processor_seconds:
                goals.append(processor <= case.processor_seconds * total / (1 << 30))
            words.append("met" if all(goals) else "NOT MET")
            met = met and all(goals)
        print("  ".join(words), flush=True)
    return met


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s5cmd")
    parser.add_argument("--aws")
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    args = parser.parse_args(argv)
    names = CASES if args.case == "all" else [args.case]
    results = [judged(name, CASES[name], measure(CASES[name], args)) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
