"""Write the files that scripts generate from the source, or check that they are current.

    path -> text, root  ──update_generated──>  the paths that were not current

The callers make the texts. A file that is current is not written again.
"""

from collections.abc import Mapping
from pathlib import Path

from trainyard.errors import CheckFailedError
from trainyard.run.atomic_files import make_folder, write_bytes_atomically
from trainyard.run.suggested_commands import script_command


def update_generated(
    texts: Mapping[Path, str], root: Path, *, script: str, check: bool, dry_run: bool
) -> list[Path]:
    """Write each text whose file below `root` differs; return the paths that differed.

    With `check`, raises CheckFailedError that names them and the `script` that writes them. With `dry_run`,
    nothing is written.
    """
    stale = [path for path, text in texts.items() if _content_of(root / path) != text]
    if check and stale:
        names = ", ".join(map(str, stale))
        raise CheckFailedError(f"Not current: {names}. Run {script_command(script)} and commit the result.")
    for path in () if dry_run else stale:
        make_folder((root / path).parent)
        write_bytes_atomically(root / path, texts[path].encode())
    return stale


def _content_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
