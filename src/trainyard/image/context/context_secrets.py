"""Recognise secrets in files, which a build context and the layers of an image must not contain.

A secret is recognised by a file name, or by its form anywhere in a text file (`secret_forms`). A private key
is a secret, a certificate is not. The text of a secret is never repeated.
"""

import re

from trainyard.config.secret_forms import secret_value_kind

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
"""Finds every path of a secret, and few others: a fast first test for contexts of thousands of files."""
_HARMLESS_ENDS = (".example", ".sample", ".template", ".dist")


def secret_by_name(path: str) -> str | None:
    """Return the kind of secret that the file's name marks; None for any other name."""
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


def secret_by_content(content: bytes) -> str | None:
    """Return the kind of secret in the bytes of a file; None if there is none, or if it is not text."""
    return None if b"\0" in content[:1024] else secret_value_kind(content)


def secret_in(path: str, content: bytes) -> str | None:
    """Return the kind of secret in the file, by its name or its content."""
    return secret_by_name(path) or secret_by_content(content)
