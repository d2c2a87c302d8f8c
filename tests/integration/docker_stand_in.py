#!/usr/bin/env python3
"""Stands in for docker in tests of the buildspec: records each call in `docker-calls`, builds nothing.

A push really puts a manifest into the registry it names; a run answers every check of the probe.
STAND_IN_FAILS names a word (build, run, push) that fails, STAND_IN_INDEX is the index that a push puts there.
STAND_IN_STORE is what `docker info` says of the image store; with STAND_IN_BUILDX there is buildx.
"""

import json
import os
import sys
from pathlib import Path

HOME = Path(os.environ["HOME"])
STATE = HOME / "docker-images.json"


def main(words: list[str]) -> int:
    with (HOME / "docker-calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    images = json.loads(STATE.read_text()) if STATE.is_file() else {}
    if os.environ.get("STAND_IN_FAILS") == words[0]:
        print(f"the stand-in fails at {words[0]}", file=sys.stderr)
        return 1
    if words[:2] == ["buildx", "build"]:
        words = words[1:]
    if words[0] == "build":
        given = [word.partition("=") for word in words if word.startswith("--")]
        labels = dict(value.split("=", 1) for key, _, value in given if key == "--label")
        images |= {value: labels for key, _, value in given if key == "--tag"}
        STATE.write_text(json.dumps(images))
        print(f"context: {sorted(path.name for path in Path(words[-1]).iterdir())}")
        for _, _, value in (one for one in given if one[0] == "--secret"):
            facts = dict(part.partition("=")[::2] for part in value.split(","))
            print(f"secret {facts['id']}: {len(os.environ[facts['env']])} bytes")
    elif words[:2] == ["image", "inspect"]:
        if words[2] not in images:
            return 1
        config = {"User": "1000", "Entrypoint": ["python"], "Labels": images[words[2]]}
        print(
            json.dumps([{"Id": "sha256:" + "c" * 64, "Config": config, "Size": 10, "Architecture": "amd64"}])
        )
    elif words[0] == "pull":
        images[words[-1]] = {}
        STATE.write_text(json.dumps(images))
    elif words[0] == "save":
        save(Path(words[2]))
    elif words[0] == "run":
        for check in json.loads(words[-1])["checks"]:
            print("TRAINYARD-PROBE " + json.dumps({"check": check, "ok": True, "says": "yes", "seconds": 1}))
    elif words[0] == "login":
        assert sys.stdin.read() == "password"
    elif words[0] == "push":
        print(f"latest: digest: {push(words[1])} size: 1")
    elif words[0] == "info":
        print(os.environ.get("STAND_IN_STORE", "[[Backing Filesystem extfs]]"))
    elif words == ["buildx", "version"]:
        return 0 if "STAND_IN_BUILDX" in os.environ else 1
    return 0


def push(target: str) -> str:
    import hashlib
    import urllib.request

    host, _, rest = target.partition("/")
    name, _, tag = rest.rpartition(":")
    more = json.loads(os.environ.get("STAND_IN_INDEX", '{"layers": []}'))
    kind = f"application/vnd.oci.image.{'index' if 'manifests' in more else 'manifest'}.v1+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind} | more).encode()
    url = f"http://{host}/v2/{name}/manifests/{tag}"
    request = urllib.request.Request(url, data=manifest, method="PUT", headers={"Content-Type": kind})
    urllib.request.urlopen(request, timeout=20).close()
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def save(target: Path) -> None:
    import tarfile
    from io import BytesIO

    empty = BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    with tarfile.open(target, "w") as archive:
        for name, content in (("manifest.json", b'[{"Layers": ["one.tar"]}]'), ("one.tar", empty.getvalue())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
