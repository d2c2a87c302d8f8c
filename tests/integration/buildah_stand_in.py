#!/usr/bin/env python3
"""Stands in for buildah in tests: records each call in `buildah-calls`.

It builds nothing. A push really puts a manifest into the registry it names, and a run really runs.
STAND_IN_FAILS names a word (bud, from, push) that fails.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.docker_stand_in import push, save

HOME = Path(os.environ["HOME"])
STATE = HOME / "buildah-images.json"


def main(words: list[str]) -> int:
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    with (HOME / "buildah-calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    images = json.loads(STATE.read_text()) if STATE.is_file() else {}
    if os.environ.get("STAND_IN_FAILS") == words[0]:
        print(f"the stand-in fails at {words[0]}", file=sys.stderr)
        return 1
    if words[0] == "bud":
        given = [word.partition("=") for word in words if word.startswith("--")]
        labels = dict(value.split("=", 1) for key, _, value in given if key == "--label")
        images |= {value: labels for key, _, value in given if key == "--tag"}
    elif words[0] == "inspect":
        if words[3] not in images:
            return 1
        config = {"User": "1000", "Entrypoint": ["python"], "Labels": images[words[3]], "Env": ["A=b=c"]}
        manifest = json.dumps({"layers": [{"size": 4}, {"size": 6}]})
        image = {"architecture": "amd64", "config": config}
        print(json.dumps({"OCIv1": image, "Manifest": manifest, "FromImageID": "c" * 64}))
    elif words[0] == "tag":
        images[words[2]] = images[words[1]]
    elif words[0] == "pull":
        images[words[-1]] = {}
    elif words[0] == "from":
        print(f"{words[-1].partition(':')[0]}-working-container")
    elif words[0] == "run":
        return subprocess.run(words[words.index("--") + 1 :], check=False).returncode
    elif words[0] == "push" and words[-1].startswith("docker-archive:"):
        save(Path(words[-1].removeprefix("docker-archive:")))
    elif words[0] == "push":
        Path(options["--digestfile"]).write_text(push(words[-1].removeprefix("docker://")))
    STATE.write_text(json.dumps(images))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
