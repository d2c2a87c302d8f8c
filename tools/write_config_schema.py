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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import generator, handler

SCHEMA = Path("configs/training_configuration.schema.json")
REFERENCE = Path("docs/configuration.md")
RECORD_SCHEMAS = Path("docs/schemas")


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of every generated file, by its path relative to the root."""
    from trainyard.config.json_schema import configuration_schema
    from trainyard.config.reference import render_config_reference

    texts = {SCHEMA: _json(configuration_schema()), REFERENCE: render_config_reference()}
    return texts | {
        RECORD_SCHEMAS / f"{name}.schema.json": _json(schema) for name, schema in record_schemas().items()
    }


def record_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every record that Trainyard writes, by its name."""
    from pydantic import TypeAdapter

    from trainyard.artifacts.promotion import Promotion
    from trainyard.artifacts.record.manifest import RunManifest
    from trainyard.jobs.job_plan import JobPlan
    from trainyard.report.dashboard.json_report import dashboard_schema
    from trainyard.report.facts.proof_record import ProofRecord
    from trainyard.run.checkpoint_manifest import CheckpointManifest
    from trainyard.run.node_folder import NodeFolder
    from trainyard.run.record_models import Event, MetricRow, RunRecord

    kinds: dict[str, type] = {
        "checkpoint_manifest": CheckpointManifest,
        "event": Event,
        "job_plan": JobPlan,
        "metric_row": MetricRow,
        "node": NodeFolder,
        "promotion": Promotion,
        "proof": ProofRecord,
        "run": RunRecord,
        "run_manifest": RunManifest,
    }
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in kinds.items()}
    return {name: dialect | schema for name, schema in (schemas | {"dashboard": dashboard_schema()}).items()}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
