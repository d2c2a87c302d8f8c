"""Use a registry through the OCI distribution API: its manifests, its tags, and files attached to an image.

Only manifests are pulled. Their digest is computed here from the bytes, whatever a header says.
"""

import base64
import hashlib
import json
from typing import Any
from urllib.parse import urljoin

from trainyard.errors import PermissionRefusedError, ServiceError, ServiceTroubleError, VerificationError
from trainyard.gateways.images.local_builder import Login, is_loopback

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_ACCEPTED = ", ".join(
    (
        *(OCI_MANIFEST, _OCI_INDEX, "application/vnd.docker.distribution.manifest.v2+json"),
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_SECONDS = 30.0


class Registry:
    """One registry; `login` has its host, and a name and password if it needs them."""

    def __init__(self, login: Login, *, attempts: int = 5, seconds: float = _SECONDS) -> None:
        import urllib3

        self.host = login.host
        self._base = f"{'http' if is_loopback(login.host) else 'https'}://{login.host}"
        self._headers = {"User-Agent": "Trainyard"}
        if login.password:
            word = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {word}"
        retries = urllib3.Retry(
            total=attempts - 1,
            backoff_factor=0.5,
            backoff_jitter=0.5,
            status_forcelist=(429, 502, 503, 504),
            redirect=3,
        )
        self._pool = urllib3.PoolManager(timeout=seconds, retries=retries)

    def digest_of(self, repository: str, reference: str) -> str | None:
        """The digest of the manifest under a tag or digest; None if there is none.

        Raises VerificationError if the bytes have another digest than the registry says.
        """
        found = self._manifest(repository, reference)
        return found[0] if found else None

    def tag(self, repository: str, digest: str, tag: str) -> None:
        """Set `tag` to the image `digest`. Raises ServiceError if the registry refuses."""
        found = self._manifest(repository, digest)
        if found is None:
            raise ServiceError(f"{self.host}/{repository}@{digest} is not there to be tagged")
        self._put_manifest(repository, tag, found[1], found[2])

    def attach(self, repository: str, digest: str, content: bytes, media_type: str) -> str:
        """Attach a file to an image as an OCI referrer of its digest; return the digest of the attachment.

        Raises VerificationError if the registry does not hold the attachment afterwards.
        """
        subject = self._manifest(repository, digest)
        if subject is None:
            raise ServiceError(f"{self.host}/{repository}@{digest} is not there to attach a file to")
        manifest = _bytes(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "artifactType": media_type,
                "config": self._blob(repository, _EMPTY, _EMPTY_TYPE),
                "layers": [self._blob(repository, content, media_type)],
                "subject": _descriptor(subject[1], subject[2]),
            }
        )
        own = _digest(manifest)
        answer = self._put_manifest(repository, own, manifest, OCI_MANIFEST)
        if "OCI-Subject" not in answer.headers:
            self._list_referrer(repository, digest, _descriptor(manifest, OCI_MANIFEST), media_type)
        if self.digest_of(repository, own) != own:
            raise VerificationError(f"{self.host}/{repository}@{digest}: {media_type} was not kept")
        return own

    def _list_referrer(self, repository: str, digest: str, entry: dict[str, Any], media_type: str) -> None:
        """If a registry keeps no list of referrers, the list is an index under a tag (OCI 1.1, fallback)."""
        tag = digest.replace(":", "-")
        found = self._manifest(repository, tag)
        listed = json.loads(found[1]).get("manifests", []) if found else []
        others = [one for one in listed if one.get("artifactType") != media_type]
        index = {
            "schemaVersion": 2,
            "mediaType": _OCI_INDEX,
            "manifests": [*others, entry | {"artifactType": media_type}],
        }
        self._put_manifest(repository, tag, _bytes(index), _OCI_INDEX)

    def _blob(self, repository: str, content: bytes, media_type: str) -> dict[str, Any]:
        digest = _digest(content)
        if self._ask("HEAD", f"{repository}/blobs/{digest}", missing=True) is None:
            begun = self._ask("POST", f"{repository}/blobs/uploads/")
            place = urljoin(self._base, str(begun.headers["Location"]))
            headers = {"Content-Type": "application/octet-stream"}
            sent = self._ask("PATCH", place, body=content, headers=headers)
            place = urljoin(self._base, str(sent.headers.get("Location") or place))
            joint = "&" if "?" in place else "?"
            self._ask("PUT", f"{place}{joint}digest={digest}")
        return _descriptor(content, media_type)

    def _manifest(self, repository: str, reference: str) -> tuple[str, bytes, str] | None:
        """Digest, bytes and media type."""
        headers = {"Accept": _ACCEPTED}
        answer = self._ask("GET", f"{repository}/manifests/{reference}", headers=headers, missing=True)
        if answer is None:
            return None
        content = bytes(answer.data)
        digest = _digest(content)
        said = answer.headers.get("Docker-Content-Digest", digest)
        if digest != said or (reference.startswith("sha256:") and reference != digest):
            raise VerificationError(
                f"{self.host}/{repository}: the manifest of {reference} has the digest {digest}, the "
                f"registry says {said}"
            )
        return digest, content, str(answer.headers.get("Content-Type", OCI_MANIFEST))

    def _put_manifest(self, repository: str, reference: str, content: bytes, media_type: str) -> Any:
        headers = {"Content-Type": media_type}
        return self._ask("PUT", f"{repository}/manifests/{reference}", body=content, headers=headers)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        missing: bool = False,
    ) -> Any:
        import urllib3

        url = path if path.startswith("http") else f"{self._base}/v2/{path}"
        try:
            answer = self._pool.request(method, url, body=body, headers=self._headers | (headers or {}))
        except urllib3.exceptions.HTTPError as error:
            said = str(getattr(error, "reason", None) or error)  # without the URL and the name of the pool
            raise ServiceTroubleError(
                f"The registry {self.host} could not be reached: {(said.partition(': ')[2] or said)[:200]}"
            ) from None
        if answer.status == 404 and missing:
            return None
        if answer.status < 300:
            return answer
        said = answer.data[:300].decode(errors="replace")
        if answer.status in (401, 403):
            raise PermissionRefusedError(f"The registry {self.host} refuses {method} {path[:100]}: {said}")
        raise ServiceError(
            f"The registry {self.host} refused {method} {path[:100]} with {answer.status}: {said}"
        )


def _descriptor(content: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
