"""Build the files of a release from the commit that is checked out: sdist, wheel, documents, and checksums.

Only committed files are included. The same commit gives the same bytes with the same Python and setuptools,
because every file gets the time of the commit. The wheel is imported once as a test.

Reads:   the commit, and no other file.
Writes:  --output: trainyard_ci-VERSION.tar.gz, trainyard_ci-VERSION-py3-none-any.whl,
         trainyard_ci-VERSION-docs.tar.gz, and SHA256SUMS last.
Exit codes: 0 built; 1 it could not be built, or the wheel cannot be imported; 2 the output is not empty.
Example: scripts/build_release.py --output dist
"""

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainyard.command import arguments
from trainyard.command import output as command_output
from trainyard.command.checkout import REPOSITORY_ROOT
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ConfigError
from trainyard.gateways.process import run_program
from trainyard.github.release import CHECKSUMS, checksums, write_tar
from trainyard.run.atomic_files import make_folder, write_bytes_atomically

BUILD = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[2])(sys.argv[1])"
IMPORT = "import trainyard, trainyard.report.facts.run_facts as f; print(trainyard.__version__, f.__file__)"
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--output", type=arguments.path, required=True, metavar="DIR", help="an empty or new folder"
    )
    parser.add_argument(
        "--root", type=arguments.path, default=REPOSITORY_ROOT, metavar="DIR", help="default: this checkout"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    command_output.configure_logging(args.log_level)

    if args.output.exists() and any(args.output.iterdir()):
        raise ConfigError(f"{args.output}: is not empty. A release needs an empty or a new folder.")
    make_folder(args.output)
    with tempfile.TemporaryDirectory(prefix="trainyard-release-") as work:
        source, built = Path(work) / "source", Path(work) / "built"
        moment = export(args.root, source)
        built.mkdir()
        for what in ("build_wheel", "build_sdist"):
            run(["-c", BUILD, str(built), what], cwd=source, SOURCE_DATE_EPOCH=str(moment))
        wheel, sdist = next(built.glob("*.whl")), next(built.glob("*.tar.gz"))
        check_wheel(wheel)
        (args.output / wheel.name).write_bytes(wheel.read_bytes())
        repack(sdist, args.output, moment)
        pages = {f"{p.relative_to(source)}": p for name in DOCUMENTS for p in files(source / name)}
        name = f"{stem(wheel)}-docs"
        write_tar(args.output / f"{name}.tar.gz", {f"{name}/{n}": p for n, p in pages.items()}, time=moment)
    done = sorted(args.output.iterdir())
    write_bytes_atomically(args.output / CHECKSUMS, checksums(done).encode())
    command_output.announce("release", f"{', '.join(path.name for path in done)} in {args.output}", "ok")
    return 0


def files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def export(root: Path, target: Path) -> int:
    """Write the files of the commit into `target`; return the time of the commit in Unix seconds."""
    archive = target.with_suffix(".tar")
    git = ["git", "-C", str(root)]
    for line in ([*git, "archive", f"--output={archive}", "HEAD"], [*git, "log", "-1", "--format=%ct"]):
        done = run_program(line, seconds=60)
        if not done.ok:
            raise CheckFailedError(f"The commit of {root} cannot be read: {done.stderr.strip()}")
    with tarfile.open(archive) as packed:
        extract(packed, target)
    return int(done.stdout)


def extract(packed: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive that this script made; Python has filters from 3.11.4 on."""
    options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    packed.extractall(folder, **options)  # noqa: S202


def repack(sdist: Path, output: Path, moment: int) -> None:
    """Give every file of the sdist the time of the commit, because setuptools uses the clock."""
    folder = sdist.parent / "sdist"
    with tarfile.open(sdist) as packed:
        extract(packed, folder)
    write_tar(output / sdist.name, {str(p.relative_to(folder)): p for p in files(folder)}, time=moment)


def check_wheel(wheel: Path) -> None:
    """Import the library from the wheel alone."""
    stated = run(["-c", IMPORT], cwd=wheel.parent, PYTHONPATH=str(wheel)).split()
    if f"trainyard_ci-{stated[0]}" != stem(wheel) or not stated[-1].startswith(str(wheel)):
        raise CheckFailedError(f"{wheel.name} imports as {' '.join(stated)}, which does not match its name")


def stem(wheel: Path) -> str:
    """`trainyard_ci-1.2.3`."""
    return "-".join(wheel.name.split("-")[:2])


def run(arguments: Sequence[str], *, cwd: Path, **environment: str) -> str:
    line = [sys.executable, *arguments]
    done = run_program(line, seconds=300, cwd=cwd, environment={"PATH": "/usr/bin:/bin", **environment})
    if not done.ok:
        log = (done.stdout + done.stderr)[-3000:]
        raise CheckFailedError(f"{' '.join(arguments)[:80]} ended with {done.exit_code}:\n{log}")
    return done.stdout
