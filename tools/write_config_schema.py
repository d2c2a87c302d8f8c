#!/usr/bin/env python3
"""Write the files that are generated from pydantic models: JSON Schemas, the reference of all keys.

Reads:  src/trainyard/config/schema.py and the models of the records (as imported).
Writes: configs/training_configuration.schema.json, docs/configuration.md and the records' schemas in
        docs/schemas, below --root.
Exit codes: 0 written, or current already; 1 with --check: a file is not current; 2 bad usage.

Example: tools/write_config_schema.py --check
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import handler, output
from trainyard.command.parser import generator_parser
from trainyard.errors import ExitCode

SCHEMA = Path("configs/training_configuration.schema.json")
REFERENCE = Path("docs/configuration.md")
RECORD_SCHEMAS = Path("docs/schemas")
_ROOT = Path(__file__).resolve().parent.parent


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    return generator_parser(__doc__, _ROOT).parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.github.generated_files import update_generated

    script = f"tools/{Path(__file__).name}"
    stale = update_generated(generated(), args.root, script=script, check=args.check, dry_run=args.dry_run)
    for path in stale:
        output.announce("generated", f"{path}{' would be written' if args.dry_run else ' written'}")
    if not stale:
        output.announce("generated", "everything is current", "ok")
    return ExitCode.DONE


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
    return {name: dialect | TypeAdapter(kind).json_schema() for name, kind in kinds.items()}


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
