"""The files that are attached to an image, read as any client of the OCI distribution API reads them."""

import json
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

_MANIFESTS = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"


def attached(host: str, repository: str, digest: str) -> dict[str, str]:
    """Media type -> digest of the attachment; from a tag where the registry keeps no referrers (OCI 1.1)."""
    for path in (f"referrers/{digest}", f"manifests/{digest.replace(':', '-')}"):
        with suppress(HTTPError):
            manifests = json.loads(_read(host, f"{repository}/{path}"))["manifests"]
            return {one["artifactType"]: one["digest"] for one in manifests}
    return {}


def read_attachment(host: str, repository: str, digest: str) -> bytes:
    """The file of the attachment with this digest."""
    manifest: dict[str, Any] = json.loads(_read(host, f"{repository}/manifests/{digest}"))
    return _read(host, f"{repository}/blobs/{manifest['layers'][0]['digest']}")


def _read(host: str, path: str) -> bytes:
    request = Request(f"http://{host}/v2/{path}", headers={"Accept": _MANIFESTS})
    with urlopen(request, timeout=20) as answer:
        content: bytes = answer.read()
        return content
