"""The command line of the generators in tools/: write files from the source, or check that they are current.

The generators make the texts. A file that is current is not written again.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.command import arguments, output
from trainyard.command.parser import script_parser
from trainyard.errors import CheckFailedError, ExitCode


def run_generator(
    doc: str | None, file: str, texts: Callable[[], Mapping[Path, str]], argv: Sequence[str] | None
) -> ExitCode:
    """Write each text whose file below --root differs. `texts` maps paths to contents.

    With --check, raises CheckFailedError that names the files and the generator `file`; with --dry-run,
    nothing is written.
    """
    here = Path(file).resolve()
    parser = script_parser(doc)
    root = "default: this checkout"
    parser.add_argument("--root", type=arguments.path, default=here.parents[1], metavar="DIR", help=root)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file is not current")
    choice.add_argument("--dry-run", action="store_true", help="write nothing, print the paths")
    args = parser.parse_args(argv)
    contents = {args.root / path: text for path, text in texts().items()}
    stale = [path for path, text in contents.items() if not path.is_file() or path.read_text("utf-8") != text]
    names = {path: path.relative_to(args.root).as_posix() for path in stale}
    if args.check and stale:
        command = shlex.join([sys.executable, f"{here.parent.name}/{here.name}"])
        raise CheckFailedError(
            f"Not current: {', '.join(names.values())}. Run {command} and commit the result."
        )
    for path, name in names.items():
        if not args.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(contents[path], "utf-8")
        output.announce("generated", f"{name}{' would be written' if args.dry_run else ' written'}")
    if not stale:
        output.announce("generated", "everything is current", "ok")
    return ExitCode.DONE
