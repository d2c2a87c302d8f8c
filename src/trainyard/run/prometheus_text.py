"""Write figures for Prometheus: a text file that node_exporter's textfile collector reads.

    rows of metrics ──the run──> monitoring.prometheus_file
    status ──trainyard watch──> --prometheus FILE

https://prometheus.io/docs/instrumenting/exposition_formats. The two files have no figure in common, because
node_exporter refuses a figure that is in two files. The collector needs names that end in `.prom`, and files
that are replaced atomically.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.run.atomic_files import write_bytes_atomically

_TIME = "last_row_timestamp_seconds"


class Sample(NamedTuple):
    """One figure with its labels."""

    name: str
    """Without the prefix `trainyard_`."""
    value: float
    labels: Mapping[str, str]


def row_samples(row: Mapping[str, Any], run: str) -> list[Sample]:
    """Return the figures of a row of `metrics.jsonl`."""
    known = {_TIME if name == "time" else name: value for name, value in row.items()}
    return [
        Sample(name, float(value), {"run": run})
        for name, value in known.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Return the samples as text, grouped by name as the format requires."""
    lines: dict[str, list[str]] = {}
    for sample in samples:
        labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels.items())
        group = lines.setdefault(sample.name, [f"# TYPE trainyard_{sample.name} gauge"])
        group.append(f"trainyard_{sample.name}{{{labels}}} {sample.value!r}")
    return "".join(f"{line}\n" for group in lines.values() for line in group)


def write_prometheus_file(path: Path, samples: Iterable[Sample]) -> None:
    """Replace the file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, prometheus_text(samples).encode())


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
