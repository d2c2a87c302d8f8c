"""The signature of a run's manifest: where it lies, what it speaks of, and whether it holds.

It covers the manifest and, by name and SHA-256, every object that this lists, in the form of OpenSSF Model
Signing, so that a copy of the store can also be checked by others' tools. It is put before the manifest, and
named by the digest of the one it is for. Cryptography is the gateway's affair.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from trainyard.artifacts.chain import newest_manifest
from trainyard.artifacts.hashing import sha256_of_chunks
from trainyard.artifacts.layout import signature_key, signature_prefix
from trainyard.artifacts.manifest import RunManifest, parse_manifest
from trainyard.artifacts.store import Store
from trainyard.errors import VerificationError

Digests = Mapping[str, str]
"""SHA-256 in hex by key."""


class Signer(Protocol):
    """Has a private key, or an identity that a certificate can be had for."""

    def sign(self, name: str, digests: Digests) -> bytes:
        """A Sigstore bundle that says that `name` consists of these files."""
        ...


class Verifier(Protocol):
    """Knows whose signatures count."""

    def problem(self, bundle: bytes, digests: Digests) -> str | None:
        """Why the bundle does not speak for these files, None if it does."""
        ...


def signed_digests(manifest: RunManifest, key: str, sha256: str) -> dict[str, str]:
    """What the signature of a manifest with this key and digest speaks of."""
    return {key: sha256, **{entry.key: entry.sha256 for entry in manifest.objects}}


def put_signature(store: Store, signer: Signer, manifest: RunManifest, *, key: str, content: bytes) -> str:
    """Sign the manifest whose bytes are `content`, unless it is signed already; the signature's key."""
    sha256, _ = sha256_of_chunks([content])
    where = signature_key(manifest.run_number, sha256)
    if store.describe(where) is None:
        bundle = signer.sign(f"run-{manifest.run_number}", signed_digests(manifest, key, sha256))
        store.put_new(where, bundle, metadata={"run-id": manifest.run_id})
    return where


@dataclass(frozen=True)
class SignatureVerdict:
    """What is known of the signature of a run's newest manifest."""

    manifest_key: str
    signature_key: str
    """Empty when there is none."""
    checked: bool
    """Whether it was held against a key."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        """One line for people; the problems are told apart from it."""
        if not self.signature_key:
            return f"{self.manifest_key} is not signed"
        if not self.checked:
            return f"{self.manifest_key} is signed; give --public-key to check it"
        return (
            f"{self.manifest_key} and every object that it lists {'are' if self.ok else 'should be'} signed"
        )


def check_signature(store: Store, run_number: int, verifier: Verifier | None) -> SignatureVerdict:
    """Hold the signature of the newest manifest against `verifier`; without that, only look for one.

    A manifest that is not signed is a problem only for a verifier.
    """
    key, manifest, _ = newest_manifest(store, run_number)
    if manifest is None:
        return SignatureVerdict(key, "", False, ())
    return _signature_of(store, key, manifest, verifier=verifier)


def require_signed(store: Store, key: str, manifest: RunManifest, *, verifier: Verifier) -> None:
    """Raise VerificationError unless the verifier vouches for this very manifest, read from `key` before."""
    verdict = _signature_of(store, key, manifest, verifier=verifier)
    if not verdict.checked or verdict.problems:
        raise VerificationError("\n".join(verdict.problems) or f"{key}: missing in the store")


def _signature_of(
    store: Store, key: str, manifest: RunManifest, *, verifier: Verifier | None
) -> SignatureVerdict:
    run_number = manifest.run_number
    content = store.read_object(key)
    if content is None:
        return SignatureVerdict(key, "", False, ())  # verifying the objects says what is wrong
    sha256, _ = sha256_of_chunks([content])
    where = signature_key(run_number, sha256)
    bundle = store.read_object(where)
    if bundle is None:
        return SignatureVerdict(key, "", False, _unsigned(store, key, run_number) if verifier else ())
    if verifier is None:
        return SignatureVerdict(key, where, False, ())
    problem = verifier.problem(bundle, signed_digests(manifest, key, sha256))
    if problem is None and parse_manifest(content, key) != manifest:
        problem = "of another manifest than was read before"
    return SignatureVerdict(key, where, True, (f"{where}: {problem}",) if problem else ())


def _unsigned(store: Store, key: str, run_number: int) -> tuple[str, ...]:
    others = [found.key for found in store.list_objects(signature_prefix(run_number))]
    why = (
        "it was changed after it was signed, or put by somebody else" if others else "no signature is stored"
    )
    return (f"{key}: not signed as it is; {why}",)
