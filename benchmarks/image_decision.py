#!/usr/bin/env python3
"""Time how long `build_image.py` takes to find that an unchanged content of 10,000 files is in ECR.

The peer is `git ls-files | sha256sum` over the same files. Both take turns; medians are compared. AWS is a
server on this machine that answers at once that it has the image: the network is left out. Goal: under 2 s.
CPU seconds are printed too, because a busy machine stretches only wall seconds.

Reads:   --files, --rounds
Writes:  three lines on stdout; a repository in a temporary folder, which is removed
Exit codes: 0 under the limit, 1 not
Example: benchmarks/image_decision.py --rounds 5
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "build_image.py"
LIMIT_SECONDS = 2.0
DIGEST = "sha256:" + "a" * 64
IDENTITY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
    "<Arn>arn:aws:iam::123456789012:user/a</Arn><UserId>a</UserId><Account>123456789012</Account>"
    "</GetCallerIdentityResult></GetCallerIdentityResponse>"
)


class Aws(BaseHTTPRequestHandler):
    """STS and ECR: every requested image exists."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        to_ecr = "X-Amz-Target" in self.headers
        body = (json.dumps({"imageDetails": [{"imageDigest": DIGEST}]}) if to_ecr else IDENTITY).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.1" if to_ecr else "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def make_repository(folder: Path, count: int) -> None:
    """Files of 1 to 8 kB in folders of a hundred, as code has them, all in one commit."""
    for number in range(count):
        place = folder / "src" / f"part{number // 100:03}" / f"module{number:05}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"VALUE = {number}\n" * (60 + number % 400))
    (folder / "Dockerfile").write_text(f"FROM scratch@{DIGEST}\nCOPY src /src\nUSER 1\n")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)


def seconds_of(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    taken, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{command[:3]} ended with {done.returncode}: {done.stderr[-500:]}")
    if "image_build" in command[1] and json.loads(done.stdout)["built"]:
        sys.exit("build_image.py built something")
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(name: str, taken: list[tuple[float, float]]) -> float:
    """Print one line; return the median of the wall seconds."""
    walls, cpus = zip(*taken, strict=True)
    median: float = statistics.median(walls)
    spread = f"{min(walls):.2f} to {max(walls):.2f}"
    print(f"{name:<28} {median:.2f} s ({spread}), CPU {statistics.median(cpus):.2f} s")
    return median


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Aws)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a", "AWS_REGION": "us-east-1"}
    place = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **keys, **place, "AWS_EC2_METADATA_DISABLED": "true"}
    ours = [sys.executable, str(SCRIPT), "--image", "team/code", "--json"]
    peer = ["bash", "-c", "git ls-files -z | xargs -0 sha256sum >/dev/null"]
    with tempfile.TemporaryDirectory(prefix="trainyard-decision-") as name:
        folder = Path(name)
        make_repository(folder, args.files)
        pairs = [
            (seconds_of(ours, folder, environment), seconds_of(peer, folder, environment))
            for _ in range(args.rounds)
        ]
    median = shown("build_image.py", [mine for mine, _ in pairs])
    bare = shown("git ls-files | sha256sum", [theirs for _, theirs in pairs])
    print(f"{args.files:,} files: ratio {median / bare:.1f}, limit {LIMIT_SECONDS} s")
    return 0 if median < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
