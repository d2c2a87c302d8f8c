"""Files that look like a secret: what a build context and an image's layers must not hold.

Names that only secrets have, and beginnings of files that only secrets have. A certificate is none, a private
key is. The text of a secret is never repeated.
"""

import re
from pathlib import PurePosixPath

HEAD_BYTES = 64 * 1024
"""How much of a file is looked at."""
_NAMES = {
    ".env": "environment variables of a deployment",
    ".netrc": "logins",
    ".git-credentials": "logins of git",
    ".pypirc": "logins of a package index",
    "id_rsa": "a private key of SSH",
    "id_dsa": "a private key of SSH",
    "id_ecdsa": "a private key of SSH",
    "id_ed25519": "a private key of SSH",
    "kubeconfig": "credentials of a cluster",
}
_PATHS = {
    ".aws/credentials": "credentials of AWS",
    ".docker/config.json": "logins of registries",
    ".kube/config": "credentials of a cluster",
    ".huggingface/token": "a token of Hugging Face",
    ".cache/huggingface/token": "a token of Hugging Face",
}
_SUFFIXES = {".p12": "a private key", ".pfx": "a private key", ".kdbx": "a store of passwords"}
_HARMLESS_ENDS = (".example", ".sample", ".template", ".dist")
_CONTENTS = (
    (re.compile(rb"\A\s*-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s"), "a private key"),
    (re.compile(rb"(?<![A-Za-z0-9])(?:AKIA|ASIA)(?!\w*EXAMPLE)[A-Z2-7]{16}(?![A-Za-z0-9])"), "a key of AWS"),
    (re.compile(rb"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36}(?![A-Za-z0-9])"), "a token of GitHub"),
    (re.compile(rb"(?<![A-Za-z0-9_])hf_[A-Za-z]{34}(?![A-Za-z0-9])"), "a token of Hugging Face"),
    (re.compile(rb"(?<![A-Za-z0-9_])xox[bp]-\d{10,}-\d{10,}-[A-Za-z0-9]{16,}"), "a token of Slack"),
)


def secret_by_name(path: str) -> str | None:
    """What secret a file of this path holds by its name; None for any other."""
    name = PurePosixPath(path).name
    if name.endswith(_HARMLESS_ENDS):
        return None
    if name.startswith(".env."):
        return _NAMES[".env"]
    for known, what in _PATHS.items():
        if path == known or path.endswith(f"/{known}"):
            return what
    return _NAMES.get(name) or _SUFFIXES.get(PurePosixPath(name).suffix.lower())


def secret_by_content(head: bytes) -> str | None:
    """What secret a file that begins with `head` holds; None for any other."""
    if b"\0" in head[:1024]:
        return None
    return next((what for pattern, what in _CONTENTS if pattern.search(head)), None)


def secret_in(path: str, head: bytes) -> str | None:
    """What secret the file holds, by its name or by its content."""
    return secret_by_name(path) or secret_by_content(head)
