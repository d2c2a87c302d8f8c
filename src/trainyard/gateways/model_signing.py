"""Sign and verify with model-signing: with a private key from a secret, and with its public key.

A signature is a Sigstore bundle over an in-toto statement of files and their digests (OpenSSF Model Signing).
It reads no files, because the digests are known. The key is never written to a disk or into a message.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError

KEY, PASSWORD = "TRAINYARD_SIGNING_KEY", "TRAINYARD_SIGNING_KEY_PASSWORD"
_NO_KEY = (
    f"{KEY}: is not a private key in PEM on the curve P-256, P-384 or P-521, or {PASSWORD} does not fit. "
    "Make a key: openssl ecparam -genkey -name prime256v1 -noout"
)


def signer_from(environment: Mapping[str, str] = os.environ) -> "ModelSigner | None":
    """Return the signer with the private key (PEM, P-256, P-384 or P-521) in TRAINYARD_SIGNING_KEY, if set.

    Raises ConfigError for a key that cannot be used.
    """
    text, password = environment.get(KEY, ""), environment.get(PASSWORD, "")
    if not text:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from model_signing import signing

    configuration: Any = signing.Config
    try:
        secret = password.encode() or None
        with _open_secret(text) as path:
            return ModelSigner(configuration().use_elliptic_key_signer(private_key=path, password=secret))
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):  # also UnicodeEncodeError
        raise ConfigError(_NO_KEY) from None


class ModelSigner:
    """Signs with the key in a configuration of model-signing."""

    def __init__(self, configuration: Any) -> None:
        self._configuration = configuration

    def sign(self, name: str, digests: Mapping[str, str]) -> bytes:
        """Return the bundle for these files."""
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            target = Path(folder) / "bundle"
            self._configuration.set_hashing_config(_KnownDigests(name, digests)).sign(folder, target)
            return target.read_bytes()


class KeyVerifier:
    """Verifies signatures with a public key. It needs no network."""

    def __init__(self, public_key: Path) -> None:
        """Raises ConfigError when the file does not hold a usable public key."""
        from model_signing import verifying

        configuration: Any = verifying.Config
        if public_key.exists() and not public_key.is_file():
            raise ConfigError(f"--public-key {public_key}: is not a regular file")
        try:
            self._configuration = configuration().use_elliptic_key_verifier(public_key=public_key)
        except OSError as error:
            raise ConfigError(f"--public-key {public_key}: cannot be read ({error.strerror})") from None
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"--public-key {public_key}: is not a public key in PEM on the curve P-256, P-384 or P-521"
            ) from None
        self._name = str(public_key)

    def problem(self, bundle: bytes, digests: Mapping[str, str]) -> str | None:
        """Return why the bundle is not a valid signature of these files; None if it is."""
        from cryptography.exceptions import InvalidSignature

        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            path = Path(folder) / "bundle"
            path.write_bytes(bundle)
            try:
                self._configuration.set_hashing_config(_KnownDigests("run", digests)).verify(folder, path)
            except InvalidSignature:
                return "the signature does not match its own statement: one of the two was changed"
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                return self._explain(str(error))
        return None

    def _explain(self, message: str) -> str:
        if message.startswith("Key mismatch"):
            return f"was made with another key than the one of {self._name}"
        if message.startswith("Signature mismatch"):
            return "is the signature of other bytes"
        return "is not a readable signature made with a key"


class _KnownDigests:
    """Replaces the hashing of model-signing, because the digests are known already."""

    def __init__(self, name: str, digests: Mapping[str, str]) -> None:
        self._name, self._digests = name, digests

    def hash(self, _model_path: object, *, files_to_hash: object = None) -> Any:  # noqa: ARG002
        from model_signing import manifest
        from model_signing._hashing.hashing import Digest

        arguments = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
        form = manifest.SerializationType.from_args(arguments)
        digests = {key: Digest("sha256", bytes.fromhex(sha256)) for key, sha256 in self._digests.items()}
        items = [form.new_item(key, digest) for key, digest in digests.items()]
        return manifest.Manifest(self._name, items, form)

    def add_ignored_paths(self, **_: object) -> None:
        """Ignore the call: every signed file is compared."""


@contextlib.contextmanager
def _open_secret(secret: str) -> Iterator[str]:
    """A path from which the secret can be read once, without writing it to a disk."""
    content = secret.encode()
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as file:
            file.write(content[: 1 << 15])  # a pipe buffers this much without a reader
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
