"""Find the cause of a failed training in its logs, or report that it is unknown.

Reads:      the logs of one run or job, of any trainer; with --events the events of Kubernetes or of a run, as
            JSON or as text; - is stdin
Writes:     the class, the lines that show it, and whether a retry can succeed, on stdout; --json prints
            {"class", "evidence", "retryable"}
Exit codes: 0 the answer was printed (it may be `unknown`); 2 wrong usage, or a log that cannot be read
Example:    scripts/explain_failure.py --log rank0.log rank1.log --exit-code 1
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import ConfigError, DamagedFileError, ExitCode

MOST_BYTES = 256 << 20
"""Maximum number of bytes that are read from the end of a log."""


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--log", type=arguments.path, nargs="+", required=True, metavar="FILE", help="the logs"
    )
    parser.add_argument(
        "--exit-code", type=exit_code, metavar="N", help="exit code of the process, -9 or 137 for a signal"
    )
    parser.add_argument(
        "--events", type=arguments.path, metavar="FILE", help="events of Kubernetes, or events.jsonl"
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    return parser.parse_args(argv)


def exit_code(value: str) -> int:
    found = arguments.step(value.removeprefix("-"))
    if found is None or found > 255:
        raise arguments.refusal(value, "is not an exit code from -255 to 255")
    return -found if value.startswith("-") else found


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    output.configure_logging(args.log_level)
    from trainyard.watch.failure_logs.log_explanation import events_of, explain_logs, log_of

    logs = [log_of(str(path), text_of(path)) for path in args.log]
    if args.events is not None:
        logs.append(events_of(str(args.events), text_of(args.events)))
    found = explain_logs(logs, args.exit_code)
    if args.json:
        output.print_json(found.record())
    else:
        verdict = (
            "a retry from the newest good checkpoint can recover from it"
            if found.retryable
            else "no retry recovers from it"
        )
        print(f"{found.klass}: {verdict}")
        print("\n".join(f"  {line}" for line in found.evidence))
    return ExitCode.DONE


def text_of(path: Path) -> str:
    """Return the text of a log; invalid bytes are replaced. Raises ConfigError if it cannot be read."""
    from trainyard.run.untrusted_files import open_regular

    if str(path) == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MOST_BYTES))
            return file.read().decode(errors="replace")
    except (FileNotFoundError, DamagedFileError) as error:
        raise ConfigError(f"{error}; name the log of a run") from None
