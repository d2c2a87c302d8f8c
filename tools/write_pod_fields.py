#!/usr/bin/env python3
"""Write the fields of a pod template, their types and the keys by which lists of them are merged.

They come from the OpenAPI document of an API server (version 3, the core group), on stdin. Ephemeral
containers are left out, because a template has none, and all metadata but labels and annotations, because
operators set it.

Reads:      stdin
Writes:     src/trainyard/config/pod_fields.json
Exit codes: 0 written; 2 stdin is not such a document
Example:    kubectl get --raw /openapi/v3/api/v1 | tools/write_pod_fields.py
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import handler
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, ExitCode

Json = dict[str, Any]
TABLE = Path(__file__).resolve().parents[1] / "src" / "trainyard" / "config" / "pod_fields.json"
ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
LEFT_OUT = ("ephemeralContainers",)
METADATA = ("annotations", "labels")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return script_parser(__doc__).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    parse_args(argv)
    try:
        document = json.load(sys.stdin)
        schemas, version = document["components"]["schemas"], document["info"]["version"]
        table = fields_of(schemas)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"stdin is not the OpenAPI document of an API server ({error!r})") from None
    source = f"Kubernetes {version}, by tools/write_pod_fields.py"
    TABLE.write_text(json.dumps({"source": source, **table}, indent=1, sort_keys=True) + "\n", "utf-8")
    return ExitCode.DONE


def fields_of(schemas: Json) -> Json:
    """Return the fields of every type that a pod template reaches, by the type's name."""
    found: Json = {}
    waiting = [ROOT]
    while waiting:
        full = waiting.pop()
        name, schema = _short(full), schemas[full]
        if name in found or "properties" not in schema:
            continue
        kept = {
            key: value
            for key, value in schema["properties"].items()
            if key not in LEFT_OUT and (name != "ObjectMeta" or key in METADATA)
        }
        found[name] = {key: _type(value, schemas, waiting) for key, value in kept.items()}
        found[name] |= {"*": needed} if (needed := schema.get("required")) else {}
    return found


def _type(schema: Json, schemas: Json, waiting: list[str]) -> str:
    """Return a type in the table's notation, which `config.pod_schema` reads."""
    full = schema.get("$ref") or next((each["$ref"] for each in schema.get("allOf", ())), "")
    full = full.rpartition("/")[2]
    if full and "properties" in schemas[full]:
        waiting.append(full)
        return _short(full)
    schema = schemas[full] if full else schema
    if schema.get("type") == "array":
        return f"{_type(schema['items'], schemas, waiting)}[{schema.get('x-kubernetes-patch-merge-key', '')}]"
    if inner := schema.get("additionalProperties"):
        return f"{_type(inner, schemas, waiting)}{{}}"
    if "enum" in schema:
        return f"={'|'.join(schema['enum'])}"
    return "|".join(each["type"] for each in schema.get("oneOf", [schema]))


def _short(full: str) -> str:
    return full.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
