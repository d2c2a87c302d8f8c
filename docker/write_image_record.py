"""Write /run/image.json inside an image: what it was made from, so that a run in it can say so.

It runs at the end of a build with the environment's own Python, in the folder that holds the code. The commit
counts only while the code is still that commit's, so the digest of the code is on record as well.

    python write_image_record.py FILE NAME LOCK...      with BASE_IMAGE, EFA_INSTALLER_VERSION, GIT_COMMIT set
"""

import hashlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path("src").resolve()))

from trainyard.gateways.images.image_record import code_sha256

TELLING = (
    "torch",
    "nvidia-nccl-cu13",
    "megatron-core",
    "transformer-engine",
    "verl",
    "vllm",
    "ray",
)


def record(name: str, locks: list[Path]) -> dict[str, Any]:
    """Return the provenance of the image, without its digest, which only the finished image has."""
    installed = {each: version for each in TELLING if (version := _version(each))}
    return {
        "name": name,
        "base_image": os.environ["BASE_IMAGE"],
        "commit": os.environ.get("GIT_COMMIT") or None,
        "code": {"directory": str(Path.cwd()), "sha256": code_sha256(Path.cwd())},
        "python": platform.python_version(),
        "efa_installer": os.environ.get("EFA_INSTALLER_VERSION") or None,
        "locks": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in locks},
        "packages": installed,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    target = Path(sys.argv[1])
    text = json.dumps(record(sys.argv[2], [Path(each) for each in sys.argv[3:]]), indent=2) + "\n"
    target.write_text(text, encoding="utf-8")
    target.chmod(0o444)
