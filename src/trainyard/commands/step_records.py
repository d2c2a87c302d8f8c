"""Copy a run's report and records into a folder of limited size.

Checkpoints and the files of trackers are not copied: the store has them, and GitHub counts artifacts against
the owner's storage. A large log is cut to its beginning and end, large metrics to the last rows.

Reads:      --run-dir: run.json, config.yaml, metrics.jsonl, events.jsonl, report/, and the files in logs/
Writes:     the folder --to, which must not exist; unless --dry-run
Exit codes: 0 copied all records that exist; 2 wrong usage, or the folder exists
Example:    trainyard step records --run-dir runs/my-run --to /tmp/records
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainyard.artifacts.gathering import gather_records
from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ExitCode
from trainyard.report.facts.quantities import format_count, format_size
from trainyard.run.directory import RunDirectory


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--run-dir", type=arguments.path, required=True, metavar="DIR", help="the run")
    parser.add_argument("--to", type=arguments.path, required=True, metavar="DIR", help="the new folder")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, copy nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)

    return keep_records(args.run_dir, args.to, dry_run=args.dry_run)


def keep_records(run_dir: Path, to: Path, *, dry_run: bool = False) -> int:
    """Copy the records of a run into the new folder `to`, report it, and return the exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, "records") if dry_run else to
        gathered = gather_records(RunDirectory(run_dir), target)
    for name in gathered.shortened:
        output.announce("records", f"{name} is too large: only a part is copied", "degraded")
    for name in gathered.left_out:
        output.announce("records", f"{name} is too large and is not copied", "degraded")
    copied = "would be copied" if dry_run else f"→ {to}"
    output.announce(
        "records", f"{format_count(len(gathered.names), 'file')}, {format_size(gathered.size)} {copied}"
    )
    return ExitCode.DONE
