"""Read a storage claim from its object, volume and class, and build the object of a new claim."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import quote

from trainyard.cluster.resource_quantities import NotAQuantityError, parse_quantity
from trainyard.cluster.snapshot import ZONE, Volume
from trainyard.errors import ConfigError

Json = Mapping[str, Any]
_ZONES = (ZONE, "topology.ebs.csi.aws.com/zone")


def volume_of(claim: Any, ask: Callable[[str], Any]) -> Volume | None:
    """Return the volume of a claim, None without one. `ask` returns the object at a path, or None."""
    if not isinstance(claim, dict):
        return None
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    class_name = str(spec.get("storageClassName") or "")
    volume = ask(f"/api/v1/persistentvolumes/{quote(spec['volumeName'])}") if spec.get("volumeName") else None
    storage = ask(f"/apis/storage.k8s.io/v1/storageclasses/{quote(class_name)}") if class_name else None
    source = (volume or {}).get("spec") or {}
    capacity = (status.get("capacity") or {}).get("storage") or (
        ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    )
    return Volume(
        name=str((claim.get("metadata") or {}).get("name", "")),
        phase=str(status.get("phase") or ""),
        access_modes=tuple(status.get("accessModes") or spec.get("accessModes") or ()),
        storage_class=class_name,
        bytes=_bytes(capacity),
        driver=str((source.get("csi") or {}).get("driver") or (storage or {}).get("provisioner") or ""),
        waits_for_consumer=(storage or {}).get("volumeBindingMode") == "WaitForFirstConsumer",
        zones=_zones(source),
        local="hostPath" in source or "local" in source,
        terminating=bool((claim.get("metadata") or {}).get("deletionTimestamp")),
    )


def claim_body(name: str, namespace: str, *, storage_class: str, size: str) -> dict[str, Any]:
    """Build a storage claim that the pods of a job share."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": size}},
        },
    }


def require_same_claim(there: Volume, wanted: Json) -> None:
    """Raise ConfigError if the existing claim differs from the wanted one; it may be larger."""
    spec = wanted["spec"]
    size = _bytes(spec["resources"]["requests"]["storage"])
    different = []
    if spec["storageClassName"] != there.storage_class:
        different.append(f"its storage class is {there.storage_class or '(none)'}")
    if not set(spec["accessModes"]) <= set(there.access_modes):
        different.append(f"its access modes are {', '.join(there.access_modes)}")
    if there.bytes < size:
        different.append(f"it has {there.bytes / 2**30:,.0f} GiB")
    if different:
        raise ConfigError(
            f"the claim {there.name} already exists: {'; '.join(different)}. It is not changed; choose "
            "another name"
        )


def require_size(text: str) -> str:
    """Check the size of a volume. Raises ConfigError unless it is a quantity above 0."""
    try:
        found = parse_quantity(text)
    except NotAQuantityError:
        found = Fraction(0)
    if found <= 0:
        raise ConfigError(f"--size {text[:60]}: write a size such as 1200Gi")
    return text


def _bytes(text: Any) -> int:
    try:
        return int(parse_quantity(str(text))) if text else 0
    except NotAQuantityError:
        return 0


def _zones(spec: Json) -> tuple[str, ...]:
    """The zones that a volume's node affinity names."""
    required = (spec.get("nodeAffinity") or {}).get("required") or {}
    return tuple(
        str(value)
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") in _ZONES and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    )
