"""Write a note or tags on a run; `trainyard runs` and the index of `trainyard report` show them.

A note is no record of the run: it is in no manifest and changes no proof.

Reads:      RUN, a run directory, or with --store a run number; its notes
Writes:     notes.json in the run directory, or notes/run-N.json in the store, by a conditional put
Exit codes: 0 written; 2 wrong usage, no such run; 4 the store cannot be reached, or somebody else wrote the
            notes at the same time
Example:    trainyard note runs/20261120-214501-7c1f "warm-up was too short" --tag baseline
"""

import argparse
import time
from collections.abc import Sequence

from trainyard.artifacts.record.run_notes import RunNotes, change_directory, change_store
from trainyard.artifacts.record.run_numbers import runs_in_question
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import ExitCode
from trainyard.run.run_advice import require_run


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, dry_run="print the notes, write nothing", json="the notes")
    parser.add_argument("run", metavar="RUN", help="a run directory, or with --store a run number")
    parser.add_argument("text", nargs="?", default="", metavar="TEXT", help="the note")
    add_option(parser, "--tag", "TAG", "add a tag; may be repeated", action="append", default=[])
    add_option(parser, "--untag", "TAG", "remove a tag; may be repeated", action="append", default=[])
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder")
    args = parser.parse_intermixed_args(argv)
    if not (args.text or args.tag or args.untag):
        parser.error("give a TEXT, a --tag or an --untag")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)

    def change(notes: RunNotes) -> RunNotes:
        return notes.with_note(args.text, tags=args.tag, removed=args.untag, time=time.time())

    if args.store:
        store = open_store(args.store)
        (number,) = runs_in_question(store, args.run)
        notes = change_store(store, number, change, dry_run=args.dry_run)
    else:
        directory = arguments.run_directory(args.run)
        require_run(directory)
        notes = change_directory(directory, change, dry_run=args.dry_run)
    data = {"run": args.run, "notes": notes.notes, "tags": notes.tags}
    lines = [f"tags  {', '.join(notes.tags) or 'none'}", *map(_line, notes.notes)]
    output.print_result(data, lambda *_: lines, as_json=args.json)
    return ExitCode.DONE


def _line(note: dict[str, object]) -> str:
    moment = note.get("time")
    known = time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment)) if isinstance(moment, int | float) else ""
    return f"{known}  {note.get('text', '')}"
