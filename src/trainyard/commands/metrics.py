"""Print figures of a run by name: every row, or a few points of each curve.

Without a NAME the figures of the run are listed with their last values. A NAME may be a pattern: 'eval/*'.

Reads:      RUN, a run directory or its metrics.jsonl, or with --store a run number: then the run's records
Writes:     lines of figure, step and value on stdout, or JSON
Exit codes: 0 printed; 1 the run has no such figure; 2 wrong usage, no such run; 4 the store cannot be reached
Example:    trainyard metrics runs/20261120-214501-7c1f loss val_loss --points 50 --json
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

from trainyard.artifacts.record.run_numbers import runs_in_question
from trainyard.artifacts.store.store_address import open_store
from trainyard.command import arguments, output
from trainyard.command.parser import add_option, script_parser
from trainyard.errors import CheckFailedError, ExitCode
from trainyard.proof.stored_runs import restored_records
from trainyard.report.facts.curve import thin_curve
from trainyard.report.facts.run_facts import RunFacts, read_facts


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__, json="the result")
    parser.add_argument("run", metavar="RUN", help="a run directory, or with --store a run number")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a figure, such as loss, or a pattern")
    add_option(parser, "--store", "URL", "s3://bucket/prefix or file:///folder")
    points = "at most N points a figure: the lowest and highest of each stretch; default: every row"
    add_option(parser, "--points", "N", points, type=arguments.positive)
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    with facts_of(args.run, args.store) as facts:
        known = [*facts.figures, *(name for name in facts.history.columns if name not in facts.figures)]
        found = [name for name in known if any(fnmatchcase(name, pattern) for pattern in args.names)]
        if args.names and not found:
            raise CheckFailedError(
                f"{args.run} has no figure {', '.join(args.names)}; it has: {', '.join(known) or 'none'}"
            )
        last = {name: facts.history.last[name] for name in known}
        curves = {name: points_of(facts, name, args.points) for name in found}
    if args.json:
        output.print_json({"run_id": facts.name, "last": last, "metrics": curves})
    elif args.names:
        rows = ((name, *point) for name, one in curves.items() for point in zip(*one.values(), strict=True))
        output.print_text("\n".join(f"{name}\t{step:g}\t{value:.6g}" for name, step, value in rows))
    else:
        output.print_text("\n".join(f"{name}\t{value:.6g}" for name, value in last.items()))
    return ExitCode.DONE


@contextmanager
def facts_of(run: str, store_url: str | None) -> Iterator[RunFacts]:
    """Yield the facts of a run directory, or of a stored run."""
    if store_url is None:
        yield read_facts(arguments.run_directory(run))
        return
    store = open_store(store_url)
    (number,) = runs_in_question(store, run)
    with restored_records(store, number) as directory:
        yield read_facts(directory.path)


def points_of(facts: RunFacts, name: str, most: int | None) -> dict[str, list[float]]:
    """Return the steps and values of a figure."""
    curve = facts.history.curve(name)
    if most is not None and len(curve) > most:
        curve = thin_curve(curve, max(1, most // 2 - 1))
    return {"steps": curve.steps.tolist(), "values": curve.values.tolist()}
