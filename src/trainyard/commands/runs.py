"""List the runs of a folder or of a store: status, proof, figures, tags and notes.

Reads:      FOLDER (default: runs): run.json, report/proof.json, report/dashboard.json and notes.json of the
            runs in it; with --store all manifests, claims and notes, and the records of the newest 20 runs
            that succeeded, which are judged, and the rows of the newest 100; AWS_*
Writes:     a table on stdout, or JSON
Exit codes: 0 listed; 2 no such folder, wrong usage; 4 the store cannot be reached
Example:    trainyard runs --sort loss --limit 10
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.artifacts import inventory
from trainyard.artifacts.record.run_numbers import runs_in_question
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ExitCode
from trainyard.proof.stored_runs import failing_parts
from trainyard.report.facts.run_list import (
    SORTS,
    ListedEntry,
    entries_of_folder,
    entries_of_store,
    entry_lines,
    sort_entries,
)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the result")
    folder = "the folder of the runs; default: runs"
    parser.add_argument("folder", type=arguments.path, nargs="?", metavar="FOLDER", help=folder)
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder instead")
    parser.add_argument("--sort", choices=SORTS, default="created", help="default: created, newest first")
    add_option(parser, "--tag", "TAG", "only runs with this tag")
    add_option(parser, "--limit", "N", "only the first N", type=arguments.positive)
    args = parser.parse_args(argv)
    if args.folder and args.store:
        parser.error("name a FOLDER or a --store")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    folder = args.folder or Path("runs")
    entries = sort_entries(store_entries(args.store) if args.store else folder_entries(folder), args.sort)
    kept = [entry for entry in entries if args.tag is None or args.tag in entry.tags][: args.limit]
    data = index_record(args.store or str(folder), kept)
    output.print_result(data, lambda _, width: entry_lines(kept, width=width), as_json=args.json)
    return ExitCode.DONE


def index_record(place: str, entries: Sequence[ListedEntry]) -> dict[str, Any]:
    """Return the list as data."""
    return {"place": place, "runs": [entry.to_json() for entry in entries]}


def folder_entries(folder: Path) -> list[ListedEntry]:
    """Return the runs of a folder as they are now. Raises ConfigError if it cannot be listed."""
    return entries_of_folder(folder, now=time.time())


def store_entries(url: str) -> list[ListedEntry]:
    """Return all runs of a store. Raises ServiceError when the store cannot be reached."""
    store = open_store(url)
    numbers = runs_in_question(store, None)
    found = inventory.list_runs(store, numbers, judge=failing_parts, most_read=len(numbers))
    return entries_of_store(found, store)
