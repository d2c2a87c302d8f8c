"""Sign a run's manifest, and check the signature.

The signature covers the manifest and, by name and SHA-256, every object that the manifest lists. It uses the
OpenSSF Model Signing format, so that other tools can check a copy of the store. It is stored before the
manifest and is named after the manifest's digest. The gateways do the cryptography.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.manifest import RunManifest, parse_run_manifest
from trainyard.artifacts.record.sync_report import Verdict
from trainyard.artifacts.store.layout import signature_key, signature_prefix
from trainyard.artifacts.store.object_store import Store, sha256_of_chunks
from trainyard.errors import VerificationError

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import KeyVerifier, ModelSigner


def signed_digests(manifest: RunManifest, key: str, sha256: str) -> dict[str, str]:
    """Return the digests that the signature of a manifest with this key and digest covers."""
    return {key: sha256, **{entry.key: entry.sha256 for entry in manifest.objects}}


def put_signature(
    store: Store, signer: "ModelSigner", manifest: RunManifest, *, key: str, content: bytes
) -> str:
    """Sign the manifest whose bytes are `content`, unless it is signed already; return the signature key."""
    sha256, _ = sha256_of_chunks([content])
    where = signature_key(manifest.run_number, sha256)
    if store.describe(where) is None:
        bundle = signer.sign(f"run-{manifest.run_number}", signed_digests(manifest, key, sha256))
        store.put_new(where, bundle, metadata={"run-id": manifest.run_id})
    return where


@dataclass(frozen=True)
class SignatureVerdict(Verdict):
    """The result of checking the signature of a run's newest manifest."""

    manifest_key: str
    signature_key: str
    """Empty when there is none."""
    checked: bool
    """Whether it was checked against a key."""
    problems: tuple[str, ...]

    def text(self) -> str:
        """Return one line for people, without the problems."""
        if not self.signature_key:
            return f"{self.manifest_key} is not signed"
        if not self.checked:
            return f"{self.manifest_key} is signed; give --public-key to check it"
        return (
            f"{self.manifest_key} and every object that it lists {'are' if self.ok else 'should be'} signed"
        )


def check_signature(store: Store, run_number: int, verifier: "KeyVerifier | None") -> SignatureVerdict:
    """Check the signature of the newest manifest with `verifier`; without one, only that it is signed.

    An unsigned manifest is a problem only when a verifier is given.
    """
    key, manifest, _ = newest_manifest(store, run_number)
    if manifest is None:
        return SignatureVerdict(key, "", False, ())
    return _signature_of(store, key, manifest, verifier=verifier)


def require_signed(store: Store, key: str, manifest: RunManifest, *, verifier: "KeyVerifier") -> None:
    """Raise VerificationError unless `verifier` accepts the signature of `manifest`, read from `key`."""
    verdict = _signature_of(store, key, manifest, verifier=verifier)
    if not verdict.checked or verdict.problems:
        raise VerificationError("\n".join(verdict.problems) or f"{key}: missing in the store")


def _signature_of(
    store: Store, key: str, manifest: RunManifest, *, verifier: "KeyVerifier | None"
) -> SignatureVerdict:
    run_number = manifest.run_number
    content = store.read_object(key)
    if content is None:
        return SignatureVerdict(key, "", False, ())  # verifying the objects reports the reason
    sha256, _ = sha256_of_chunks([content])
    where = signature_key(run_number, sha256)
    bundle = store.read_object(where)
    if bundle is None:
        return SignatureVerdict(
            key, "", False, _missing_signature(store, key, run_number) if verifier else ()
        )
    if verifier is None:
        return SignatureVerdict(key, where, False, ())
    problem = verifier.problem(bundle, signed_digests(manifest, key, sha256))
    if problem is None and parse_run_manifest(content, key) != manifest:
        problem = "signs another manifest than the one read before"
    return SignatureVerdict(key, where, True, (f"{where}: {problem}",) if problem else ())


def _missing_signature(store: Store, key: str, run_number: int) -> tuple[str, ...]:
    others = [found.key for found in store.list_objects(signature_prefix(run_number))]
    why = (
        "it was changed after it was signed, or put by somebody else" if others else "no signature is stored"
    )
    return (f"{key}: these bytes are not signed; {why}",)
