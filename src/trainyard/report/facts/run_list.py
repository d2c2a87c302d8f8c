"""The runs of a folder or of a store as rows of a list: what a person sorts, filters and compares them by.

    folder of runs ──run.json, proof.json, dashboard.json, notes.json──> ListedEntry
    store ──artifacts.inventory.ListedRun─────────────────────────────> ListedEntry

A run of a folder is read by its small records, so that 20,000 runs take seconds. Rows of metrics are read
only for a run without a report, if they are few.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.run_notes import notes_of_directory
from trainyard.artifacts.store.layout import metrics_key
from trainyard.errors import ConfigError, DamagedFileError, VerificationError
from trainyard.report.facts.curve import average_curve
from trainyard.report.facts.history import Curve, finite_or_none, read_history
from trainyard.report.facts.proof_record import read_proof
from trainyard.report.facts.quantities import format_duration, format_loss
from trainyard.report.facts.run_facts import read_record
from trainyard.report.facts.table import wrap_table
from trainyard.run.directory import RunDirectory
from trainyard.run.suggested_commands import from_here
from trainyard.run.untrusted_files import parse_json_object
from trainyard.watch.health import silence_limit

if TYPE_CHECKING:
    from trainyard.artifacts.inventory import ListedRun
    from trainyard.artifacts.store.object_store import Store

_CURVE_POINTS = 24
# Rows beyond this size are not read for a list, nor those of more runs than these in a store.
_MOST_ROW_BYTES = 4_000_000
_MOST_CURVES = 100
_CURVES_AT_ONCE = 8


@dataclass(frozen=True)
class ListedEntry:
    """One run of a list; None and empty where nothing is known."""

    run: str
    """What commands take: the path of its directory, or its number in the store."""
    run_id: str
    created: float | None
    """Unix seconds."""
    commit: str
    status: str
    proof: str
    """`proven`, `not proven` with the parts that fail, or `not judged`."""
    steps: float | None
    loss: float | None
    validation_loss: float | None
    seconds: float | None
    checkpoints: int
    tags: tuple[str, ...]
    note: str
    curve: tuple[float, ...] = ()
    """The loss as a few means over the run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


SORTS = ("created", "steps", "loss", "validation_loss", "seconds", "run_id", "status", "proof")


def entries_of_folder(folder: Path, *, now: float) -> list[ListedEntry]:
    """Return the runs directly in `folder`. Raises ConfigError if it is no folder."""
    try:
        found = sorted(path for path in folder.iterdir() if (path / "run.json").is_file())
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be listed ({error.strerror})") from None
    return [_entry(path, now) for path in found]


def entries_of_store(runs: "Sequence[ListedRun]", store: "Store") -> list[ListedEntry]:
    """Return the runs of a store; the newest of them, and those with few rows, with a curve."""
    sizes = {each.key: each.size for each in store.list_objects("metrics/")}
    keys = {run.run_number: metrics_key(run.run_number) for run in runs[-_MOST_CURVES:]}
    read = [number for number, key in keys.items() if 0 < sizes.get(key, 0) <= _MOST_ROW_BYTES]
    with ThreadPoolExecutor(_CURVES_AT_ONCE) as pool:
        curves = dict(
            zip(read, pool.map(lambda number: _stored_curve(store, keys[number]), read), strict=True)
        )
    found = []
    for run in runs:
        names = (str(run.run_number), run.run_id, run.created, run.commit, run.status or "not known")
        figures = (run.steps, run.final_loss, run.validation_loss, run.seconds, len(run.checkpoints))
        curve = curves.get(run.run_number, ())
        found.append(ListedEntry(*names, run.proof, *figures, run.tags, run.note, curve))
    return found


def sort_entries(entries: Iterable[ListedEntry], key: str) -> list[ListedEntry]:
    """Return the runs in ascending order of a field, those without a value last; times newest first."""

    def place(entry: ListedEntry) -> tuple[bool, Any]:
        value = getattr(entry, key)
        return value is None, (-value if key == "created" else value) if value is not None else 0

    return sorted(entries, key=place)


def entry_lines(entries: Sequence[ListedEntry], *, width: int) -> list[str]:
    """Return a table for people, a row for each run."""
    heads = ("run", "verdict", "steps", "loss", "val", "time", "about")
    return wrap_table(heads, [_cells(entry) for entry in entries], width=width) or ["no runs"]


def _cells(entry: ListedEntry) -> tuple[str, ...]:
    numbers = (
        "" if value is None else form(value)
        for value, form in (
            (entry.steps, "{:,.0f}".format),
            (entry.loss, format_loss),
            (entry.validation_loss, format_loss),
            (entry.seconds, format_duration),
        )
    )
    verdict, _, parts = entry.proof.partition(": ")
    if entry.status != "succeeded":  # its proof says no more
        verdict, parts = entry.status, ""
    about = (parts, ", ".join(entry.tags), entry.note)
    return str(from_here(Path(entry.run))), verdict, *numbers, " · ".join(filter(None, about))


def _entry(path: Path, now: float) -> ListedEntry:
    layout = RunDirectory(path)
    run = read_record(layout.run_file)
    outcome = run.get("outcome")
    ended: Mapping[str, Any] = outcome if isinstance(outcome, Mapping) else {}
    git, notes = run.get("git"), notes_of_directory(path)
    steps, loss, validation_loss, seconds = (
        finite_or_none(ended.get(name)) for name in ("steps", "final_loss", "validation_loss", "seconds")
    )
    commit = str(git.get("commit") or "") if isinstance(git, Mapping) else ""
    status = str(ended.get("status") or _status(layout, now))
    names = (
        str(path),
        str(run.get("run_id") or path.name),
        finite_or_none(run.get("created")),
        commit,
        status,
    )
    figures = (steps, loss, validation_loss, seconds, len(layout.checkpoint_steps()))
    return ListedEntry(*names, _proof(layout, run), *figures, notes.tags, notes.text, _curve(layout))


def _status(layout: RunDirectory, now: float) -> str:
    """`running` or `interrupted`, by the time of the newest record of a run without an outcome."""
    times = [0.0]
    for path in (layout.run_file, layout.metrics_file, layout.events_file):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return "interrupted" if now - max(times) > silence_limit([]) else "running"


def _proof(layout: RunDirectory, run: Mapping[str, Any]) -> str:
    proof = read_proof(layout, run)
    if proof is None or proof.is_of_another_state:
        return "not judged"
    return "proven" if proof.proven else f"not proven: {', '.join(part.name for part in proof.failing)}"


def _curve(layout: RunDirectory) -> tuple[float, ...]:
    """The loss in a few means: of the curve in the run's report, else of its rows."""
    curves = read_record(layout.report / "dashboard.json").get("curves")
    loss = curves.get("loss") if isinstance(curves, Mapping) else None
    if isinstance(loss, Mapping) and isinstance(loss.get("values"), list):
        return _means(loss["values"])
    try:
        if layout.metrics_file.stat().st_size > _MOST_ROW_BYTES:
            return ()
        return _means(read_history(layout.metrics_file).curve("loss").values.tolist())
    except (OSError, DamagedFileError):
        return ()


def _stored_curve(store: "Store", key: str) -> tuple[float, ...]:
    """The loss in a few means, of the document with a run's rows; empty for a damaged one."""
    with suppress(DamagedFileError, VerificationError):
        rows = parse_json_object(store.read_object(key) or b"{}", key).get("rows")
        if isinstance(rows, list):
            return _means(row.get("loss") for row in rows if isinstance(row, dict))
    return ()


def _means(losses: Iterable[object]) -> tuple[float, ...]:
    import numpy as np

    known = [value for each in losses if (value := finite_or_none(each)) is not None]
    curve = Curve(np.arange(len(known), dtype=float), np.array(known, dtype=float))
    return tuple(float(f"{value:.4g}") for value in average_curve(curve, _CURVE_POINTS).values)
