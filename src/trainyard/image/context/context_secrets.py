"""Recognise secrets in files, which a build context and the layers of an image must not contain.

A secret is recognised by a file name or by the first bytes of a file. A private key is a secret, a
certificate is not. The text of a secret is never repeated.
"""

import re

HEAD_BYTES = 64 * 1024
"""The number of bytes of a file that are searched."""
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
_PERHAPS = re.compile(
    "|".join(
        (
            r"(?:^|/)(?:" + "|".join(map(re.escape, (*_NAMES, *_PATHS))) + r")\Z",
            r"(?:^|/)\.env\.[^/]*\Z",
            r"(?i:" + "|".join(map(re.escape, _SUFFIXES)) + r")\Z",
        )
    )
)
"""Finds every path that `secret_by_name` names, and few others: most of thousands of files end here."""
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
"""Bytes that every match contains, and the pattern. Searching for the bytes first is many times as fast."""


def secret_by_name(path: str) -> str | None:
    """The kind of secret that the file's name marks; None for any other name."""
    if not _PERHAPS.search(path):
        return None
    name = path.rpartition("/")[2]
    if name.endswith(_HARMLESS_ENDS):
        return None
    if name.startswith(".env."):
        return _NAMES[".env"]
    for known, what in _PATHS.items():
        if path == known or path.endswith(f"/{known}"):
            return what
    suffix = "." + name.lower().rpartition(".")[2]
    return _NAMES.get(name) or (_SUFFIXES.get(suffix) if len(name) > len(suffix) else None)


def secret_by_content(head: bytes) -> str | None:
    """The kind of secret in a file that begins with `head`; None if there is none."""
    if b"\0" in head[:1024]:
        return None
    return next((what for part, pattern, what in _CONTENTS if part in head and pattern.search(head)), None)


def secret_in(path: str, head: bytes) -> str | None:
    """The kind of secret in the file, by its name or its content."""
    return secret_by_name(path) or secret_by_content(head)
