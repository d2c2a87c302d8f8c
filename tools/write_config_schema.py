#!/usr/bin/env python3
"""Write the files that are generated from pydantic models: JSON Schemas, the reference of all keys.

Reads:  src/trainyard/config/schema.py and the models of the records (as imported).
Writes: configs/training_configuration.schema.json, docs/configuration.md and the records' schemas in
        docs/schemas, below --root.
Exit codes: 0 written, or current already; 1 with --check: a file is not current; 2 bad usage.

Example: tools/write_config_schema.py --check
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import generator
from pydantic import TypeAdapter

from trainyard.artifacts.promotion import Promotion
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.command import handler
from trainyard.config.key_lookup import leaf_keys
from trainyard.config.problems import show_value
from trainyard.config.schema import Config
from trainyard.config.section import MOST
from trainyard.jobs.job_spec import JobSpec
from trainyard.report.dashboard.json_report import SCHEMA_VERSION
from trainyard.report.facts.figures import figure_values
from trainyard.report.facts.history import MetricsHistory
from trainyard.report.facts.proof_record import ProofRecord
from trainyard.report.facts.run_facts import RunFacts
from trainyard.report.facts.status import RunState, Status
from trainyard.run.checkpoint_manifest import CheckpointManifest
from trainyard.run.node_folder import NodeFolder
from trainyard.run.record_models import Event, MetricRow, RunRecord
from trainyard.watch.goodput import Goodput

Fragment = dict[str, Any]
SCHEMA = Path("configs/training_configuration.schema.json")
REFERENCE = Path("docs/configuration.md")
RECORD_SCHEMAS = Path("docs/schemas")
_DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_RECORDS: dict[str, type] = {
    "checkpoint_manifest": CheckpointManifest,
    "event": Event,
    "job_plan": JobSpec,
    "metric_row": MetricRow,
    "node": NodeFolder,
    "promotion": Promotion,
    "proof": ProofRecord,
    "run": RunRecord,
    "run_manifest": RunManifest,
}
_EXTENDS: Fragment = {
    "description": "A configuration file, or a list of them, that this one is laid over; paths "
    "are relative to this file, and later ones win.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "null"},
    ],
}
_LINE_CHARACTERS = 110
_INTRODUCTION = """\
# Configuration

<!-- Written by tools/write_config_schema.py from src/trainyard/config/schema.py; edits here are lost. -->

`configs/training_configuration.yaml` has the keys of a run. Other files extend it and say only what differs:

```yaml
# yaml-language-server: $schema=training_configuration.schema.json
extends: training_configuration.yaml    # a path or a list of paths, relative to this file; later ones win

training:
  max_steps: 50
```

Mappings merge key by key; any other value, `null` too, replaces the one below it. `--set
training.max_steps=50` wins over all files. This prints each value with its file and line:

```
.venv/bin/trainyard config show --config configs/smoke.yaml --explain
```

Files are YAML 1.2: `5e-5` is a number, `yes` and `1:30` are text. Unknown and duplicate keys, wrong values
and combinations that cannot be trained are errors (exit code 2). Secrets come from the environment.

Each key has its default, then its other values; \\* must be given. A key whose default is `null` takes text
if nothing else is named."""
# Longer lists of choices, recipes and kinds of jobs, are tables of another page.
_MOST_CHOICES = 5
# A shorter description of a section says no more than its heading.
_TELLING_WORDS = 8
_TYPES = {"array": "list", "boolean": "bool", "integer": "int", "object": "mapping", "string": "text"}


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of every generated file, by its path relative to the root."""
    texts = {SCHEMA: _json(configuration_schema()), REFERENCE: render_config_reference()}
    return texts | {
        RECORD_SCHEMAS / f"{name}.schema.json": _json(schema) for name, schema in record_schemas().items()
    }


def record_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every record that Trainyard writes, by its name."""
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in _RECORDS.items()}
    return {name: _DIALECT | schema for name, schema in (schemas | {"dashboard": dashboard_schema()}).items()}


def dashboard_schema() -> dict[str, Any]:
    """The JSON Schema of the report. A figure is a number, goodput an account; both absent when not known."""
    unknown = RunFacts(
        directory=Path(),
        run={},
        history=MetricsHistory(),
        events=[],
        checkpoints=(),
        proof=None,
        config_text=None,
        state=RunState(Status.EMPTY),
        timestamp=None,
    )
    number, text, truth = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
    numbers = {"type": "array", "items": number}
    checkpoint = {"step": number, "path": text, "bytes": number, "files": number, "created": text}
    part = {"name": text, "passed": truth, "is_judged": truth, "evidence": text, "fix": text}
    figure = {"name": text, "value": number, "baseline": number, "threshold": text}
    curve = _object({"steps": numbers, "values": numbers}, ["steps", "values"])
    groups: dict[str, Any] = {
        group: _object(dict.fromkeys(figures, number)) for group, figures in figure_values(unknown).items()
    }
    account = Goodput(*[0.0] * 6).record()
    groups["timing"]["properties"]["goodput"] = _object(dict.fromkeys(account, number), list(account))
    properties: dict[str, Any] = {
        "schema_version": {"const": SCHEMA_VERSION},
        "status": {"enum": [str(status) for status in Status]},
        "status_detail": text,
        "failure": {"type": "object"},
        "timestamp": text,
        "run_id": text,
        "run_number": {"type": ["integer", "string"]},
        "run_directory": text,
        "git_sha": text,
        "git_dirty": truth,
        **groups,
        "curves": {"type": "object", "additionalProperties": curve},
        "checkpoints": {"type": "array", "items": _object(checkpoint, list(checkpoint))},
        "proof": _object(
            {
                "proven": truth,
                "parts": {"type": "array", "items": _object(part)},
                "compared_with": text,
                "figures": {"type": "array", "items": _object(figure, ["name"])},
            },
            ["proven", "parts"],
        ),
    }
    required = ["schema_version", "status", "run_id", "run_directory"]
    return {"title": "Dashboard", **_object(properties, required)}


def _object(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return shape | ({"required": list(required)} if required else {})


def configuration_schema() -> Fragment:
    """The schema that is published beside the configuration files."""
    plain = _simplify(Config.model_json_schema())
    _allow_null(plain["$defs"]["ModelConfig"]["properties"], "architecture")
    return {
        **_DIALECT,
        "title": "Trainyard configuration",
        "description": "A training configuration, or an overlay of one.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"extends": _EXTENDS, **plain["properties"]},
        "$defs": plain["$defs"],
    }


def _allow_null(properties: dict[str, Fragment], name: str) -> None:
    """Allow null for a section that the weights may fill completely (`from_weights`)."""
    section = properties[name]
    kept = {key: section.pop(key) for key in list(section) if key not in ("description", "default")}
    section["anyOf"] = [kept, {"type": "null"}]


def _simplify(schema: Fragment) -> Fragment:
    """Return `schema` without the titles that repeat the keys, and with nothing required."""
    result = {name: value for name, value in schema.items() if name not in ("title", "required")}
    for group in ("properties", "$defs"):
        if group in result:
            result[group] = {name: _simplify(value) for name, value in result[group].items()}
    return result


def render_config_reference() -> str:
    """Return the complete document."""
    return "\n".join([_INTRODUCTION, *_sections()])


@cache
def _schema_of_models() -> Fragment:
    return Config.model_json_schema()


def fragment_of(key: str) -> Fragment:
    """Return the schema of the value or section under a dotted key."""
    fragment = root = _schema_of_models()
    for name in key.split("."):
        fragment = fragment["properties"][name]
        if "$ref" in fragment:
            described = {"description": fragment["description"]} if "description" in fragment else {}
            fragment = {**root["$defs"][fragment["$ref"].rpartition("/")[2]], **described}
    return fragment


def _sections() -> Iterator[str]:
    section = None
    for key in leaf_keys():
        fragment = fragment_of(key)
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            yield from _heading(section)
        default = f"={show_value(fragment['default'])}" if "default" in fragment else ""
        if fragment.get("type") == "object":  # a mapping of names, which may be empty
            default = "={}"
        needed = "" if default else "\\*"
        values = _values(fragment, default)
        about = fragment.get("description", "")
        if len(fragment.get("enum", ())) > _MOST_CHOICES:
            about = "see [jobs](jobs.md)."
        text = f"- `{key}{default}`{needed}{values}: {about}"
        yield textwrap.fill(
            text, _LINE_CHARACTERS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    yield ""


def _heading(section: str) -> Iterator[str]:
    yield from ("", f"## {section or 'Top-level keys'}", "")
    description = fragment_of(section)["description"] if section else ""
    if len(description.split()) >= _TELLING_WORDS:
        yield from (description, "")


def _values(fragment: Fragment, default: str) -> str:
    """Return the values that a schema allows, such as `int>0`; empty where the default shows them."""
    choices = fragment.get("anyOf", [fragment])
    words = [_value(choice) for choice in choices if "null" not in default or choice.get("type") != "null"]
    hidden = not default or words[0] not in ("bool", *(["text"] if default == "=null" else []))
    return f", {' or '.join(words)}" if hidden else ""


def _value(fragment: Fragment) -> str:
    if "enum" in fragment:
        return f"`{'|'.join(map(str, fragment['enum']))}`"
    if "examples" in fragment:
        return f"text like {', '.join(f'`{example}`' for example in fragment['examples'])}"
    limits = (("exclusiveMinimum", ">"), ("minimum", "≥"), ("exclusiveMaximum", "<"), ("maximum", "≤"))
    found = [f"{sign}{fragment[name]:,}" for name, sign in limits if fragment.get(name, MOST) < MOST]
    return _TYPES.get(fragment["type"], str(fragment["type"])) + ",".join(found)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
