"""Use a registry through the `oras` command: read a manifest, set a tag.

oras logs in and retries requests that a busy registry refused. The digest of a manifest is computed here from
its bytes. https://oras.land/docs/commands/use_oras_cli
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError, ServiceError, VerificationError
from trainyard.gateways.http_requests import is_loopback
from trainyard.gateways.images.local_builder import Login, last_line, login_file
from trainyard.gateways.process import run_program

_SECONDS = 300.0


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
                "oras is not installed; it sets the tags of an image: https://oras.land/docs/installation"
            )
        self._login, self.host = login, login.host

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """Return the manifest under a tag or a digest; None if there is none.

        Raises VerificationError if the bytes have another digest than the reference.
        """
        with login_file(self._login) as auth:
            file = auth.with_name("manifest")
            name = self._name(repository, reference)
            if not self._oras(auth, "manifest", "fetch", f"--output={file}", name, may_lack=True):
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
        with login_file(self._login) as auth:
            self._oras(auth, "tag", self._name(repository, digest), *tags)

    def _name(self, repository: str, reference: str) -> str:
        return f"{self.host}/{repository}{'@' if reference.startswith('sha256:') else ':'}{reference}"

    def _oras(self, auth: Path, *words: str, may_lack: bool = False) -> bool:
        """Run oras; with `may_lack`, return False for "not found". Raises ServiceError."""
        options = [f"--registry-config={auth}", *(["--plain-http"] if is_loopback(self.host) else [])]
        done = run_program(["oras", *words, *options], seconds=_SECONDS)
        if done.ok:
            return True
        if may_lack and done.exit_code == 1 and done.stderr.rstrip().endswith(": not found"):
            return False
        raise ServiceError(
            f"The registry {self.host} refused oras {words[0]} or could not be reached: {last_line(done)}"
        )
