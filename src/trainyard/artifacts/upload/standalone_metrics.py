"""Read standalone files: the rows of a metrics file, and the step of a checkpoint.

Files of other trainers are read strictly: unknown content is refused by name and never stored as something
else. `standalone_checkpoint` stores the files.
"""

import re
from pathlib import Path

from trainyard.errors import CheckpointError, ConfigError, DamagedFileError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, read_manifest
from trainyard.run.records import Row
from trainyard.run.untrusted_files import parse_json, parse_json_line, read_bytes

_STEP = re.compile(r"(?:.*[-_.])?(?:step|checkpoint|ckpt)[-_=]?(\d+)(?:\D.*)?", re.ASCII | re.IGNORECASE)


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a JSON document (an object, a list, or `{"rows": […]}`) or of a JSON-lines file.

    The last line may be cut off. Raises ConfigError when the file is missing or holds anything else.
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file or directory") from None
    except DamagedFileError as error:
        raise ConfigError(f"the metrics cannot be read: {error}") from None
    try:
        value = parse_json(content, str(path))
    except DamagedFileError:
        return _lines(path, content)
    rows = value.get("rows", [value]) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: is not a metrics file, which holds a JSON object or a list of objects")
    return rows


def find_step(checkpoint: Path) -> int | None:
    """Return a checkpoint's step from the manifest beside it, its name or its folder's name; else None.

    Names such as `step-00000500`, `checkpoint-500.pt` and `global_step500` contain a step.
    """
    folder = checkpoint.resolve().parent
    if (folder / MANIFEST_NAME).is_file():
        try:
            return read_manifest(folder).step
        except CheckpointError:
            pass  # another trainer's manifest
    matches = (_STEP.fullmatch(name) for name in (checkpoint.resolve().name, folder.name))
    return next((int(match[1]) for match in matches if match), None)


def _lines(path: Path, content: bytes) -> list[Row]:
    lines = content.splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = parse_json_line(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and (number < len(lines) or not rows):
            raise ConfigError(f"{path}: line {number} is not a JSON object, so it is not a metrics file")
    if not rows:
        raise ConfigError(f"{path}: is empty, so it is not a metrics file")
    return rows
