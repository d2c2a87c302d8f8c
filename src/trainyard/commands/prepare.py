"""Prepare the training data: find the files, hold some out for validation, write the tokens.

Tokens that an earlier run prepared from the same files are reused. A stream (data.hugging_face) is only
opened, and its first texts are read.

Reads:  the configuration, --set, the files of data.train_path and data.validation_path, or the source of
        Python's standard library, the dataset of data.hugging_face, the tokenizer of model.tokenizer.
Writes: data.prepared_directory/<key>/ with train.bin, validation.bin and index.json; nothing with --dry-run;
        with --json a summary on stdout; in GitHub Actions a failure in the job summary, as an annotation,
        and its first line as the step output `reason`.
Exit codes: 0 prepared; 2 the configuration is wrong, or nothing is left to train on; 4 the Hugging Face
        Hub cannot be reached.

Example: trainyard prepare --config configs/smoke.yaml
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.command import output, terminal
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode
from trainyard.gateways.github import refusal_in_summary
from trainyard.report.facts.quantities import format_count, format_data_files
from trainyard.report.terminal.phase import PhaseDisplay
from trainyard.run.sizes import format_size
from trainyard.training.weights.pretrained import load_with_weights

if TYPE_CHECKING:
    from trainyard.config.schema import Config
    from trainyard.training.data.preparation import Preparation
    from trainyard.training.data.token_files import PreparedData, TokenFile


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(
        __doc__, reads_config=True, dry_run="print the plan, write nothing", json="the result"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    return prepare_data(args.config, args.set, dry_run=args.dry_run, as_json=args.json)


def prepare_data(
    file: Path, changes: Sequence[str] = (), *, dry_run: bool = False, as_json: bool = False
) -> int:
    """Prepare the data of a configuration, report it, and return the exit code."""
    display = PhaseDisplay("data", "reading the configuration")
    with refusal_in_summary("Not started: the data could not be prepared"), terminal.show_live(display):
        text, facts = prepare(load_with_weights(file, changes).config, display, dry_run=dry_run)
    output.announce("data", text, "" if dry_run else "ok")
    if as_json:
        output.print_json(facts)
    return ExitCode.DONE


def prepare(config: "Config", display: PhaseDisplay, *, dry_run: bool) -> tuple[str, Mapping[str, Any]]:
    """Prepare the data, open the stream, or with `dry_run` plan; return the result in words and as data.

    Each branch imports only its modules.
    """
    if config.is_program:
        return "the program reads its own data; nothing to prepare", {}
    if config.data.hugging_face.dataset:
        from trainyard.training.data.hugging_face import open_stream

        display.begin(f"opening {config.data.hugging_face.dataset}")
        stream = open_stream(config.data, config.model)
        return f"{stream.name}: read while training, nothing to prepare", stream.to_json()
    if dry_run:
        from trainyard.training.data.preparation import plan_preparation

        plan = plan_preparation(config.data, config.model)
        return plan_text(plan), plan.to_json()
    from trainyard.training.data.tokenize_corpus import prepare_data

    data = prepare_data(config.data, config.model, display)
    return data_text(data), data_facts(data)


def data_text(data: "PreparedData") -> str:
    """Summarise the data: `Python 3.11 standard library: 729 files, 10.9 MB train, 1.2 MB validation`."""
    validation = "no validation" if data.validation is None else f"{amount(data.validation)} validation"
    if data.validation and data.validation_split == "within":
        validation += " (the end of it)"
    return f"{data.name}: {format_data_files(data.to_json())}, {amount(data.train)} train, {validation}"


def amount(file: "TokenFile") -> str:
    """Format an amount in bytes if a token is a byte, otherwise in tokens."""
    unit = "B" if file.dtype == "uint8" else " tokens"
    scale, prefix = (1e3, "k") if file.tokens < 1e6 else (1e6, "M")
    return f"{file.tokens / scale:,.1f} {prefix}{unit}"


def data_facts(data: "PreparedData") -> dict[str, Any]:
    return {
        **data.to_json(),
        "train_path": str(data.train.path),
        "dtype": data.train.dtype,
        "skipped": [{"reason": s.reason, "count": s.count, "examples": s.examples} for s in data.skipped],
        "reused": data.reused,
        "seconds": round(data.seconds, 3),
    }


def plan_text(plan: "Preparation") -> str:
    held_out = "the end" if plan.split == "within" else f"{len(plan.validation):,}"
    counts = (
        f"{format_count(len(plan.train), 'file')} to train on, {held_out} held out, {format_size(plan.size)}"
    )
    return f"{plan.name}: {counts} → {plan.directory}"
