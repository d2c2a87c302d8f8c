"""Validate objects strictly against the schemas of real CRDs: an unknown field is an error."""

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from tests.integration.control_plane import kit


@cache
def validator(file: str) -> jsonschema.Draft202012Validator:
    """Return the schema of the stored version in the CRD `file` of the kit."""
    path = kit().parent / "crds" / file
    return strict_validator(path)


def strict_validator(path: Path) -> jsonschema.Draft202012Validator:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = yaml.load(path.read_text(), Loader=loader)
    version = next(v for v in crd["spec"]["versions"] if v["storage"])
    return jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"], top=True))


def strict(schema: dict[str, Any], *, top: bool = False) -> dict[str, Any]:
    """Turn a CRD's schema into a JSON Schema that refuses unknown fields."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("nullable") and "type" in found:
        found["type"] = [found["type"], "null"]
    if "properties" in schema:
        found["properties"] = {name: strict(inner) for name, inner in schema["properties"].items()}
        if top:
            found["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    if isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = strict(schema["additionalProperties"])
    if "items" in schema:
        found["items"] = strict(schema["items"])
    return found


_KEPT = (
    "type",
    "required",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
)


def problems(file: str, body: dict[str, Any]) -> list[str]:
    return [
        f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in validator(file).iter_errors(body)
    ]
