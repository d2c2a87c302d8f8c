#!/usr/bin/env python3
"""Change one condition of the core at a time, and see whether its unit tests notice.

A change turns a comparison, an `and` or an `or` round, takes a `not` or a `raise` away, or returns the other
truth. The places are read from the code; each group of files gives the same number, chosen by a checksum of
file, function and text, so that a change is found again after others have moved its line. Coverage says which
tests execute the line, and only those run, on a copy of the working tree, until the first failure.

Reads:   the working tree; --before FILE: an earlier output, whose noticed changes are repeated
Writes:  a temporary copy; a line a change on stdout: verdict, change, test
Exit codes: 0 done, 1 with --before: a change that was noticed no longer is
Example: benchmarks/mutations.py --before benchmarks/mutations.tsv
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

HOUSE = Path(__file__).resolve().parent.parent
# The files of a group, below src/trainyard, and the folders of their tests, below tests/unit.
GROUPS = {
    "proof": (["proof"], ["proof"]),
    "manifest": (["artifacts/record", "run/checkpoint_manifest.py"], ["artifacts", "run"]),
    "upload": (["artifacts/upload", "artifacts/verify"], ["artifacts"]),
    "store": (["gateways/local_store", "artifacts/retention"], ["gateways/test_local_store.py", "artifacts"]),
    "resume": (["artifacts/restore", "run/situation.py", "run/run_lock.py"], ["artifacts", "run"]),
    "state machine": (["jobs/state"], ["jobs/state"]),
    "retry": (["watch/retry_decision.py", "jobs/follow", "watch/failure_logs"], ["watch", "jobs/follow"]),
    "supervisor": (["programs"], ["programs"]),
    "checks": (["cluster/checks", "cluster/fitness.py", "cluster/capacity.py"], ["cluster"]),
    "images": (["image/conflict", "image/release"], ["image"]),
}
FIRST_TESTS = 30  # a sample notices nearly every change; what it misses, all tests of the line judge
# Seconds. Tests that take longer may wait for what a change keeps from coming, or the machine may be busy.
LONGEST = 900.0
OTHERS = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One changed expression or statement of a file."""

    file: str
    function: str
    old: str
    new: str
    line: int
    start: int
    """The first byte that is replaced; `end` is the one after the last."""
    end: int

    @property
    def name(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {self.function}: {old} -> {new}"


def changes_of(path: Path, file: str) -> Iterator[Change]:
    """Yield every change of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: ast.AST, function: str) -> Iterator[Change]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}" if function else node.name
        new = _replacement_of(node) if function else None
        if new is not None and isinstance(node, ast.expr | ast.stmt):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            yield Change(file, function, source[start:end].decode(), new, node.lineno, start, end)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(ast.parse(source), "")


def _replacement_of(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in OTHERS:
            return f"({ast.unparse(ast.Compare(left, [OTHERS[type(operator)]()], [right]))})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            return f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            return f"({ast.unparse(operand)})"
        case ast.Raise(exc) if exc is not None:
            return "pass"
        case ast.Return(ast.Constant(bool() as value)):
            return f"return {not value}"
    return None


def chosen_changes(house: Path, groups: Sequence[str], of_group: int) -> list[Change]:
    """Return the changes of a campaign, by group."""
    found = []
    for names, _ in map(GROUPS.__getitem__, groups):
        paths = [house / "src/trainyard" / name for name in names]
        files = [
            each for path in paths for each in ([path] if path.is_file() else sorted(path.rglob("*.py")))
        ]
        each_change = [
            change
            for file in files
            for change in changes_of(file, str(file.relative_to(house / "src/trainyard")))
        ]
        found += sorted(each_change, key=lambda change: zlib.crc32(change.name.encode()))[:of_group]
    return found


def covering_tests(copy: Path, groups: Sequence[str], jobs: str) -> CoverageData:
    """Run the tests of the groups once; return which test executed which line."""
    folders = {f"tests/unit/{each}" for group in groups for each in GROUPS[group][1]}
    options = ["-n", jobs, "--cov=src/trainyard", "--cov-context=test", "--cov-report="]
    done = run_tests(copy, [*options, *sorted(each for each in folders if (copy / each).exists())])
    if done.returncode:
        raise SystemExit(f"the tests fail without a change:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    data = CoverageData(str(copy / ".coverage"))
    data.read()
    return data


def verdict_of(copy: Path, change: Change, data: CoverageData) -> str:
    """Make one change, run the tests that execute its line, and undo it."""
    path = copy / "src/trainyard" / change.file
    measured = next((each for each in data.measured_files() if each.endswith(f"trainyard/{change.file}")), "")
    contexts = data.contexts_by_lineno(measured).get(change.line, [])
    tests = sorted({each.partition("|")[0] for each in contexts if each})
    if not tests:
        return "not reached\t"
    source = path.read_bytes()
    path.write_bytes(source[: change.start] + change.new.encode() + source[change.end :])
    try:
        for chosen in (tests[:: -(-len(tests) // FIRST_TESTS)], tests):
            done = run_tests(copy, ["-x", "-n", "0", *chosen])
            failed = [each for each in done.stdout.splitlines() if each.startswith(("FAILED", "ERROR"))]
            if done.returncode:
                return f"noticed\t{failed[0].partition(' - ')[0].split('/')[-1] if failed else 'no test ran'}"
    except subprocess.TimeoutExpired:
        return "waited\t"
    finally:
        path.write_bytes(source)
    return "SURVIVED\t"


def run_tests(copy: Path, options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run pytest in the copy. Raises subprocess.TimeoutExpired for a single change."""
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DEBUG_TEMPROOT"] = str(copy.parent)  # another pytest would remove folders meanwhile
    limit = LONGEST if "-x" in options else None
    return subprocess.run(
        line, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=limit
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the output of an earlier campaign")
    every = "a group of files; may be repeated; default: all"
    parser.add_argument("--group", choices=GROUPS, action="append", help=every)
    parser.add_argument("--of-group", type=int, default=22, help="changes of each group (default: 22)")
    parser.add_argument("--jobs", default="2", help="processes of pytest while coverage is measured")
    args = parser.parse_args(argv)
    counts = dict.fromkeys(("noticed", "SURVIVED", "waited", "not reached", "gone"), 0)
    with tempfile.TemporaryDirectory(prefix="mutations ") as name:
        copy = Path(name) / "trainyard"
        left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
        shutil.copytree(HOUSE, copy, ignore=left_out)
        changes = chosen_changes(
            copy, args.group or list(GROUPS), args.of_group if args.before is None else 1_000_000
        )
        if args.before is not None:
            lines = [each.split("\t") for each in args.before.read_text().splitlines()]
            noticed = [line[1] for line in lines if line[0] == "noticed"]
            counts["gone"] = len(set(noticed) - {change.name for change in changes})
            changes = [change for change in changes if change.name in noticed]
        data = covering_tests(copy, args.group or list(GROUPS), args.jobs)
        for change in changes:
            verdict, _, test = verdict_of(copy, change, data).partition("\t")
            counts[verdict] += 1
            print(verdict, change.name, test, sep="\t", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=sys.stderr)
    return int(args.before is not None and counts["noticed"] < sum(counts.values()) - counts["gone"])


if __name__ == "__main__":
    sys.exit(main())
