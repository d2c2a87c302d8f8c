#!/usr/bin/env -S python3 -IS
"""Stands in for oras in tests: the flags of `oras COMMAND --help` that we use, for a registry on loopback.

test_registry.py holds the real oras to the same results if it is on the PATH. This records each call, with
the logins it was given, in `oras-calls`.
"""

import argparse
import json
import os
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError


def parse_args(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("manifest").add_subparsers(required=True).add_parser("fetch")
    fetch.add_argument("--output", type=Path)
    tag = commands.add_parser("tag")
    for parser_of in (fetch, tag):
        parser_of.add_argument("--plain-http", action="store_true", required=True)
        parser_of.add_argument("--registry-config", type=Path)
        parser_of.add_argument("name")
    tag.add_argument("tags", nargs="+")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    args = parse_args(words)
    logins = json.loads(args.registry_config.read_text())["auths"]
    with (Path(os.environ["HOME"]) / "oras-calls").open("a") as calls:
        calls.write(json.dumps([words, logins]) + "\n")
    if os.environ.get("STAND_IN_FAILS") == "oras":
        print("Error: the stand-in fails at oras", file=sys.stderr)
        return 1
    host, _, rest = args.name.partition("/")
    repository, _, reference = rest.partition("@") if "@" in rest else rest.rpartition(":")
    base = f"http://{host}/v2/{repository}"
    try:
        content, kind = request("GET", f"{base}/manifests/{reference}")
        if args.command == "manifest":
            args.output.write_bytes(content)
        for tag in args.tags if args.command == "tag" else ():
            request("PUT", f"{base}/manifests/{tag}", content, kind)
    except HTTPError as error:
        about = (
            f"{args.name}: not found" if error.code == 404 else f"status code {error.code}: {error.read()!r}"
        )
        print(f"Error response from registry: {about}", file=sys.stderr)
        return 1
    except URLError as error:
        print(f"Error: {error.reason}", file=sys.stderr)
        return 1
    return 0


def request(
    method: str, url: str, body: bytes | None = None, kind: str = "application/octet-stream"
) -> tuple[bytes, str]:
    asked = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.read(), answer.headers.get("Content-Type", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
