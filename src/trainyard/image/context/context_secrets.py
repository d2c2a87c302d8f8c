"""Recognise secrets in files, which a build context and the layers of an image must not contain.

A secret is recognised by a file name, by its form anywhere in a text file, or by its key in a file of
settings (`secret_forms`). A private key is a secret, a certificate is not. Its text is never repeated.
"""

import re

from trainyard.config.secret_forms import (
    is_placeholder,
    secret_file_kind,
    secret_kind,
    secret_setting_kind,
    secret_value_kind,
)

_VARIABLE = re.compile(rb"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_HARMLESS_ENDS = (".example", ".sample", ".template", ".dist")


def secret_by_name(path: str) -> str | None:
    """Return the kind of secret that the file's name marks; None for any other name."""
    return None if path.endswith(_HARMLESS_ENDS) else secret_file_kind(path)


def secret_by_content(content: bytes, path: str = "") -> str | None:
    """Return the kind of secret in the bytes of a file; None if there is none, or if it is not text."""
    if b"\0" in content[:1024]:
        return None
    name = path.rpartition("/")[2]
    if kind := secret_value_kind(content):
        return kind
    if not name or name.endswith(_HARMLESS_ENDS):
        return None
    if kind := secret_setting_kind(name, content):
        return kind
    pairs = _VARIABLE.findall(content) if name.endswith(".env") else []
    read = (
        (key.decode(), value.decode(errors="replace")) for key, value in pairs if not is_placeholder(value)
    )
    return next((kind for key, value in read if (kind := secret_kind(key, value))), None)


def secret_in(path: str, content: bytes) -> str | None:
    """Return the kind of secret in the file, by its name or its content."""
    return secret_by_name(path) or secret_by_content(content, path)
