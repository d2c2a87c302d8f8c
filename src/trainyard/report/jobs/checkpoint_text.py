"""Checkpoints on a volume for a terminal: a line each, the verdict and what shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.report.cluster.table import wrap_table
from trainyard.report.facts.quantities import format_size

Json = Mapping[str, Any]


def checkpoint_lines(found: Sequence[Json], *, where: str, width: int) -> list[str]:
    """A line for each checkpoint, in the order of runs and steps."""
    if not found:
        return [f"There are no checkpoints in {where}."]
    heads = ("checkpoint", "format", "step", "size", "files", "verdict", "why")
    rows = [
        (
            each["path"],
            each["format"],
            "" if each["step"] is None else f"{each['step']:,}",
            format_size(each["bytes"]),
            str(each["files"]),
            each["verdict"],
            each["why"],
        )
        for each in found
    ]
    return wrap_table(heads, rows, width=width)


def copy_line(data: Json) -> str:
    """The result of a copy in one sentence."""
    kept = f", {data['kept_files']} of {data['files']} files were there already" if data["kept_files"] else ""
    cuts = f", after {data['cuts']} lost connections" if data["cuts"] else ""
    files = f"{data['files']} files, {format_size(data['bytes'])}"
    return f"{data['path']}: {files}, SHA-256 equal on both ends{kept}{cuts}"
