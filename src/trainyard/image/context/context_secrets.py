"""Recognise secrets in files, which a build context and the layers of an image must not contain.

A secret is recognised by a file name, or by its form anywhere in a text file (`secret_forms`). A private key
is a secret, a certificate is not. The text of a secret is never repeated.
"""

import posixpath

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
_HARMLESS_ENDS = (".example", ".sample", ".template", ".dist")


def secret_by_name(path: str) -> str | None:
    """Return the kind of secret that the file's name marks; None for any other name."""
    name = path.rpartition("/")[2]
    if name.endswith(_HARMLESS_ENDS):
        return None
    if name.startswith(".env."):
        return _NAMES[".env"]
    if found := _NAMES.get(name) or _SUFFIXES.get(posixpath.splitext(name)[1].lower()):
        return found
    return next((what for known, what in _PATHS.items() if f"/{path}".endswith(f"/{known}")), None)


def secret_by_content(content: bytes) -> str | None:
    """Return the kind of secret in the bytes of a file; None if there is none, or if it is not text."""
    return None if b"\0" in content[:1024] else secret_value_kind(content)


def secret_in(path: str, content: bytes) -> str | None:
    """Return the kind of secret in the file, by its name or its content."""
    return secret_by_name(path) or secret_by_content(content)
