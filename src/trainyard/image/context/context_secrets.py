"""Files that look like a secret: what a build context and an image's layers must not hold.

Names that only secrets have, and beginnings of files that only secrets have. A certificate is none, a private
key is. The text of a secret is never repeated.
"""

import re

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
_AWS = re.compile(rb"(?<![A-Za-z0-9])(?:AKIA|ASIA)(?!\w*EXAMPLE)[A-Z2-7]{16}(?![A-Za-z0-9])")
_GITHUB = re.compile(rb"(?<![A-Za-z0-9_])gh[pousr]_[A-Za-z0-9]{36}(?![A-Za-z0-9])")
_PRIVATE = re.compile(rb"\A\s*-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s")
_CONTENTS = (
    (b"PRIVATE KEY-----", _PRIVATE, "a private key"),
    (b"AKIA", _AWS, "a key of AWS"),
    (b"ASIA", _AWS, "a key of AWS"),
    *((b"gh%c_" % letter, _GITHUB, "a token of GitHub") for letter in b"pousr"),
    (b"hf_", re.compile(rb"(?<![A-Za-z0-9_])hf_[A-Za-z]{34}(?![A-Za-z0-9])"), "a token of Hugging Face"),
    (b"xox", re.compile(rb"(?<![A-Za-z0-9_])xox[bp]-\d{10,}-\d{10,}-[A-Za-z0-9]{16,}"), "a token of Slack"),
)
"""Bytes that every match holds, looked for first because that is many times as fast; the pattern."""


def secret_by_name(path: str) -> str | None:
    """What secret a file of this path holds by its name; None for any other."""
    name = path.rpartition("/")[2]
    if name.endswith(_HARMLESS_ENDS):
        return None
    if name.startswith(".env."):
        return _NAMES[".env"]
    for known, what in _PATHS.items():
        if path == known or path.endswith(f"/{known}"):
            return what
    return _NAMES.get(name) or next((what for end, what in _SUFFIXES.items() if _ends(name, end)), None)


def _ends(name: str, suffix: str) -> bool:
    """Whether the name has this suffix, and something before it."""
    return name.lower().endswith(suffix) and len(name) > len(suffix)


def secret_by_content(head: bytes) -> str | None:
    """What secret a file that begins with `head` holds; None for any other."""
    if b"\0" in head[:1024]:
        return None
    return next((what for part, pattern, what in _CONTENTS if part in head and pattern.search(head)), None)


def secret_in(path: str, head: bytes) -> str | None:
    """What secret the file holds, by its name or by its content."""
    return secret_by_name(path) or secret_by_content(head)
