"""The attachments of a pushed image: its packages (CycloneDX) and its provenance (SLSA, in-toto).

Both contain checked facts only: the lock, whose versions are in the image, and the labels of the build.
Packages of the operating system are not listed. No time is included, so the same image gives the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

BOM_TYPE = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE = "application/vnd.in-toto+json"
_BUILD_TYPE = "https://github.com/trainyard/trainyard/image/v1"


class LockedPackage(Protocol):
    """A package of a lock; see `machine.package_lock`."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...


def bill_of_materials(image: str, digest: str, pins: Sequence[LockedPackage]) -> bytes:
    """The packages of an image as CycloneDX 1.6."""
    components = [
        {
            "type": "library",
            "bom-ref": (purl := f"pkg:pypi/{quote(pin.name)}@{quote(pin.version)}"),
            "name": pin.name,
            "version": pin.version,
            "purl": purl,
        }
        for pin in sorted(pins, key=lambda pin: pin.name)
    ]
    content = digest.removeprefix("sha256:")
    subject = {"type": "container", "name": image, "hashes": [{"alg": "SHA-256", "content": content}]}
    return _bytes(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {"component": subject},
            "components": components,
        }
    )


def provenance_statement(
    image: str, digest: str, *, facts: Mapping[str, str], bases: Sequence[str], builder: str
) -> bytes:
    """The build of an image as an in-toto statement of SLSA provenance v1.

    `facts` are the caller's facts (commit, content, dockerfile); `bases` the pinned base images.
    """
    dependencies: list[dict[str, Any]] = [
        {"uri": f"docker://{name}", "digest": {"sha256": pinned}}
        for name, _, pinned in (base.partition("@sha256:") for base in bases)
        if pinned
    ]
    if facts.get("commit"):
        dependencies.append({"uri": "git+local", "digest": {"gitCommit": facts["commit"]}})
    parameters = {key: value for key, value in sorted(facts.items()) if value and key != "commit"}
    return _bytes(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": image, "digest": {"sha256": digest.removeprefix("sha256:")}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": _BUILD_TYPE,
                    "externalParameters": parameters,
                    "resolvedDependencies": dependencies,
                },
                "runDetails": {"builder": {"id": builder}},
            },
        }
    )


def _bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
