#!/usr/bin/env -S python3 -IS
"""Stands in for oras in tests: the flags of `oras COMMAND --help` that we use, for a registry on loopback.

test_registry.py holds the real oras to the same results if it is on the PATH. This records each call, with
the logins it was given, in `oras-calls`. It writes no list of referrers where a registry has no API for it.
"""

import argparse
import hashlib
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

IMAGE = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"


def parse_args(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("manifest").add_subparsers(required=True).add_parser("fetch")
    fetch.add_argument("--output", type=Path)
    tag, attach = commands.add_parser("tag"), commands.add_parser("attach")
    attach.add_argument("--artifact-type")
    attach.add_argument("--annotation", action="append", default=[])
    attach.add_argument("--no-tty", action="store_true")
    attach.add_argument("--format", choices=["json"])
    for parser_of in (fetch, tag, attach):
        parser_of.add_argument("--plain-http", action="store_true", required=True)
        parser_of.add_argument("--registry-config", type=Path)
        parser_of.add_argument("name")
    tag.add_argument("tags", nargs="+")
    attach.add_argument("files", nargs="*")
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
        elif args.command == "tag":
            for tag in args.tags:
                request("PUT", f"{base}/manifests/{tag}", content, kind)
        else:
            print(json.dumps({"digest": attach(args, base, content, kind)}))
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


def attach(args: argparse.Namespace, base: str, subject: bytes, kind: str) -> str:
    layers = []
    for file in args.files:
        name, _, media_type = file.rpartition(":")
        assert not Path(name).is_absolute()  # oras refuses it
        described = descriptor(Path(name).read_bytes(), media_type)
        put_blob(base, Path(name).read_bytes())
        layers.append(described | {"annotations": {"org.opencontainers.image.title": name}})
    put_blob(base, b"{}")
    manifest = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "artifactType": args.artifact_type,
        "config": descriptor(b"{}", EMPTY),
        "layers": layers or [descriptor(b"{}", EMPTY)],
        "subject": descriptor(subject, kind),
        "annotations": dict(one.split("=", 1) for one in args.annotation),
    }
    content = json.dumps(manifest).encode()
    digest = str(descriptor(content, IMAGE)["digest"])
    request("PUT", f"{base}/manifests/{digest}", content, IMAGE)
    return digest


def descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def put_blob(base: str, content: bytes) -> None:
    request("PUT", f"{base}/blobs/uploads/1?digest={descriptor(content, '')['digest']}", content)


def request(
    method: str, url: str, body: bytes | None = None, kind: str = "application/octet-stream"
) -> tuple[bytes, str]:
    asked = urllib.request.Request(url, data=body, method=method, headers={"Content-Type": kind})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.read(), answer.headers.get("Content-Type", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
