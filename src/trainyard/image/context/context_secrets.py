"""Recognise secrets in files, which a build context and the layers of an image must not contain.

A secret is recognised by a file name, by its form anywhere in a text file (`secret_forms`), or by its key in
a file of settings. A private key is a secret, a certificate is not. The text of a secret is never repeated.
"""

import posixpath
import re

from trainyard.config.secret_forms import is_placeholder, secret_kind, secret_value_kind

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
    "kaggle.json": "a key of Kaggle",
}
_PATHS = {
    ".aws/credentials": "credentials of AWS",
    ".docker/config.json": "logins of registries",
    ".kube/config": "credentials of a cluster",
    ".huggingface/token": "a token of Hugging Face",
    ".cache/huggingface/token": "a token of Hugging Face",
}
_SUFFIXES = {
    ".p12": "a private key",
    ".pfx": "a private key",
    ".kdbx": "a store of passwords",
    ".tfstate": "state of Terraform, with the secrets of its resources",
}
_SETTINGS = r"(?:.*\.(?:env|ini|cfg|conf|toml|ya?ml|properties)|\.condarc|requirements[\w.-]*\.(?:txt|in))"
# Names of files of settings, the form of a secret in them, and its kind. A reference, ${TOKEN}, is none.
_IN_SETTINGS = tuple(
    (re.compile(name), re.compile(form, re.MULTILINE), what)
    for name, form, what in (
        (
            _SETTINGS,
            rb"[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'<>{}$]{1,100}:[^\s/@\"'<>{}$]{3,200}@(?!localhost|127\.)\w",
            "a password in a URL",
        ),
        (r"\.npmrc", rb"_(?:auth|authToken|password)\s*=\s*(?!\$)\S{8,}", "a login of npm"),
        (r"config\.json|\.dockercfg", rb'"auth"\s*:\s*"[A-Za-z0-9+/=]{8,}"', "logins of registries"),
        (r"config|.*\.ya?ml", rb"^\s+client-key-data:\s*\S{40,}", "credentials of a cluster"),
        (r"config", rb"^\s+token:\s*[\w.-]{16,}\s*$", "credentials of a cluster"),
        (r"\.?comet\.(?:ini|config)", rb"^\s*api_?key\s*[=:]\s*\w{16,}", "a key of Comet"),
    )
)
_VARIABLE = re.compile(rb"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
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


def secret_by_content(content: bytes, path: str = "") -> str | None:
    """Return the kind of secret in the bytes of a file; None if there is none, or if it is not text."""
    if b"\0" in content[:1024]:
        return None
    return secret_value_kind(content) or _secret_in_settings(content, path.rpartition("/")[2])


def _secret_in_settings(content: bytes, name: str) -> str | None:
    if not name or name.endswith(_HARMLESS_ENDS):
        return None
    for names, form, what in _IN_SETTINGS:
        found = form.search(content) if names.fullmatch(name) else None
        if found and not is_placeholder(found[0]):
            return what
    pairs = _VARIABLE.findall(content) if name.endswith(".env") else []
    read = (
        (key.decode(), value.decode(errors="replace")) for key, value in pairs if not is_placeholder(value)
    )
    return next((kind for key, value in read if (kind := secret_kind(key, value))), None)


def secret_in(path: str, content: bytes) -> str | None:
    """Return the kind of secret in the file, by its name or its content."""
    return secret_by_name(path) or secret_by_content(content, path)
