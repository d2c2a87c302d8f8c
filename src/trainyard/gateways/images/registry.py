"""Use a registry through the `oras` command: read a manifest, set a tag, attach a record to an image.

oras logs in, retries requests that a busy registry refused, and keeps the list of attachments if a registry
has no API for it. The digest of a manifest is computed here from its bytes.
https://oras.land/docs/commands/use_oras_cli
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, ServiceError, VerificationError
from trainyard.gateways.images.local_builder import Login, auth_file, is_loopback, last_line
from trainyard.gateways.process import run_program

RECORD_TYPE = "application/vnd.trainyard.image-record.v1"
_SECONDS = 300.0
# oras sets this annotation to the present time unless it is given. With a fixed time a second push attaches
# the same bytes, and so nothing new.
_CREATED = "org.opencontainers.image.created=1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Manifest:
    """Content of a registry under a tag or digest: the manifest of an image, or an index of several."""

    digest: str
    content: Mapping[str, Any]

    @property
    def image_digests(self) -> list[str]:
        """The digests of the images: the manifest's own, or those in the index without attestations."""
        if "manifests" not in self.content:
            return [self.digest]
        return [str(one["digest"]) for one in self.content["manifests"] if not _is_attestation(one)]

    @property
    def is_attested(self) -> bool:
        """Return whether BuildKit put attestations (packages, provenance) beside the image."""
        return any(map(_is_attestation, self.content.get("manifests", ())))


def _is_attestation(entry: Mapping[str, Any]) -> bool:
    # https://docs.docker.com/build/metadata/attestations/attestation-storage/
    annotations = entry.get("annotations") or {}
    return annotations.get("vnd.docker.reference.type") == "attestation-manifest"


class Registry:
    """One registry; `login` has its host, and a name and password if it needs them."""

    def __init__(self, login: Login) -> None:
        """Raise ConfigError if oras is not installed, before anything is pushed."""
        if shutil.which("oras") is None:
            raise ConfigError(
                "oras is not installed; it tags an image and attaches its record: "
                "https://oras.land/docs/installation"
            )
        self._login, self.host = login, login.host

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest under a tag or a digest; None if there is none.

        Raises VerificationError if the bytes have another digest than the reference.
        """
        with auth_file(self._login) as auth:
            file = auth.with_name("manifest")
            name = self._name(repository, reference)
            done = self._oras(auth, "manifest", "fetch", f"--output={file}", name, may_lack=True)
            if done is None:
                return None
            content = file.read_bytes()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise VerificationError(f"{name}: the registry holds another manifest under it, {digest}")
        return Manifest(digest, json.loads(content))

    def digest_of(self, repository: str, reference: str) -> str | None:
        """Return the digest of the manifest under a tag or digest; None if there is none."""
        found = self.manifest(repository, reference)
        return found.digest if found else None

    def tag(self, repository: str, digest: str, tags: Sequence[str]) -> None:
        """Set tags to the image `digest`. Raises ServiceError if the registry refuses one."""
        with auth_file(self._login) as auth:
            self._oras(auth, "tag", self._name(repository, digest), *tags)

    def attach(
        self, repository: str, digest: str, *, facts: Mapping[str, str], files: Mapping[str, str]
    ) -> str:
        """Attach text files and facts (annotations) to an image; return the digest of the attachment."""
        words = ["attach", "--no-tty", "--format=json", f"--artifact-type={RECORD_TYPE}"]
        words += [f"--annotation={fact}" for fact in (_CREATED, *map("=".join, sorted(facts.items())))]
        words.append(self._name(repository, digest))
        with auth_file(self._login) as auth, tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder, name.replace("/", "-"))
                file.write_text(text, encoding="utf-8")
                words.append(f"{file.name}:text/plain")
            return str(json.loads(str(self._oras(auth, *words, folder=Path(folder))))["digest"])

    def _name(self, repository: str, reference: str) -> str:
        return f"{self.host}/{repository}{'@' if reference.startswith('sha256:') else ':'}{reference}"

    def _oras(
        self, auth: Path, *words: str, folder: Path | None = None, may_lack: bool = False
    ) -> str | None:
        """Return the output of oras; with `may_lack`, None for "not found". Raises ServiceError."""
        options = [f"--registry-config={auth}", *(["--plain-http"] if is_loopback(self.host) else [])]
        done = run_program(["oras", *words, *options], seconds=_SECONDS, cwd=folder)
        if done.ok:
            return done.stdout
        if may_lack and done.exit_code == 1 and done.stderr.rstrip().endswith(": not found"):
            return None
        raise ServiceError(
            f"The registry {self.host} refused oras {words[0]} or could not be reached: {last_line(done)}"
        )
