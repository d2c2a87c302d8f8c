"""List the runs and checkpoints of a store: size, age and completeness.

One listing of the store says which runs there are, with their sizes, checkpoints and ages. The records of
the newest runs are read too: their verdict rests on names and sizes, and the proof of one that succeeded is
judged by the caller. Nothing is changed. Old object versions and the parts of interrupted uploads are neither
listed nor counted.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainyard.artifacts.promotion import Promotion, list_promotions
from trainyard.artifacts.record.chain import listed_objects, newest_manifest
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.record.run_notes import notes_in_store
from trainyard.artifacts.record.sync_report import Verdict
from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    identity_key,
    is_manifest,
    manifest_key,
    manifest_prefix,
)
from trainyard.artifacts.store.object_store import Store, StoredObject, snapshot
from trainyard.artifacts.verify.comparison import listing_problem
from trainyard.run.sizes import format_size

_RUNS_AT_ONCE = 8
# Runs whose proof is judged: it takes 30 ms of processor time or more for each.
MOST_JUDGED = 20
# Runs whose manifest and claim are read: two requests for each, in an S3 store.
MOST_READ = 100
NOT_JUDGED = "not judged"
NAMES_ONLY, NAMES_AND_SIZES = "names", "names and sizes"
Judge = Callable[[Store, int], Sequence[str]]
_Names = Sequence[Promotion]


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint in the store."""

    step: int | None
    bytes: int
    age_seconds: float | None
    """Seconds since the store received it; None if the store does not say."""
    promoted: tuple[str, ...]


@dataclass(frozen=True)
class ListedRun(Verdict):
    """One run in the store."""

    run_number: int
    run_id: str
    status: str
    """Status of the outcome; `running` while the run is followed, empty if no manifest says."""
    proof: str
    """`proven`; `not proven` and the parts that fail; or `not judged`, for an older run."""
    age_seconds: float | None
    """Seconds since its newest manifest was put."""
    created: float | None
    """Unix seconds, of the start of the run."""
    commit: str
    steps: float | None
    final_loss: float | None
    validation_loss: float | None
    seconds: float | None
    """The time that it trained."""
    checkpoints: tuple[ListedCheckpoint, ...]
    pruned: int
    """Number of checkpoints that retention removed."""
    objects: int
    bytes: int
    """Size of every object under the run's prefix, in the manifest or not."""
    depth: str
    """Basis of the verdict: `names and sizes`, or `names` for an older run whose records were not read."""
    problems: tuple[str, ...]
    note: str
    """The newest note that somebody gave to the run."""
    tags: tuple[str, ...]


def list_runs(
    store: Store, numbers: Iterable[int], *, judge: Judge, most_read: int = MOST_READ
) -> list[ListedRun]:
    """Return the runs, oldest first.

    `judge` returns the parts of its proof that a run in the store fails. It restores the run's records, so it
    is asked for the newest runs only; of older ones only the manifest and the claim are read, and of still
    older ones nothing. Raises ServiceError when the store cannot be reached.
    """
    wanted, store = sorted(numbers), snapshot(store)
    read, judged = (frozenset(wanted[-most:]) for most in (most_read, MOST_JUDGED))
    judge_run, names = partial(judge, store), list(list_promotions(store))

    def one(number: int) -> ListedRun:
        by = judge_run if number in judged else None
        return _list_run(store, names, number, by, is_read=number in read)

    with ThreadPoolExecutor(_RUNS_AT_ONCE) as pool:
        return list(pool.map(one, wanted))


def _list_run(
    store: Store,
    names: _Names,
    number: int,
    judge: "Callable[[int], Sequence[str]] | None",
    *,
    is_read: bool,
) -> ListedRun:
    listed = listed_objects(store, number)
    manifests = {found.key: found for found in store.list_objects(manifest_prefix(number))}
    manifest, problems = None, _unlisted(number, {*listed, *manifests})
    if is_read:
        _, manifest, problems = newest_manifest(store, number)
    if manifest is not None:
        problems = problems + _missing(manifest, listed) + _archive_problems(store, manifest, listed)
    notes = notes_in_store(store, number)
    put = max((found.modified for found in manifests.values()), default=0.0)
    return ListedRun(
        run_number=number,
        run_id=manifest.run_id if manifest else "",
        status=_status(manifest),
        proof=_proof(manifest, judge, problems) if is_read else NOT_JUDGED,
        age_seconds=round(time.time() - put, 1) if put else None,
        **_figures(manifest.provenance if manifest else {}, manifest.outcome if manifest else {}),
        checkpoints=_checkpoints(number, listed, names),
        pruned=len(manifest.pruned) if manifest else 0,
        objects=len(listed) + len(manifests),
        bytes=sum(found.size for found in (*listed.values(), *manifests.values())),
        depth=NAMES_AND_SIZES if is_read else NAMES_ONLY,
        problems=tuple(problems),
        note=notes.text,
        tags=notes.tags,
    )


def _figures(provenance: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a run from its records; None where they have none."""
    numbers = {name: outcome.get(name) for name in ("steps", "final_loss", "validation_loss", "seconds")}
    numbers["created"] = provenance.get("created")
    git = provenance.get("git")
    return {
        name: value if isinstance(value, int | float) and not isinstance(value, bool) else None
        for name, value in numbers.items()
    } | {"commit": str(git.get("commit") or "") if isinstance(git, Mapping) else ""}


def _unlisted(number: int, keys: Collection[str]) -> list[str]:
    """Report a run without any manifest, or without the claim of its number."""
    has_manifest, has_claim = any(map(is_manifest, keys)), identity_key(number) in keys
    problems = (
        [] if has_manifest else [f"{manifest_key(number)}: missing, so run {number} cannot be verified"]
    )
    return problems + ([] if has_claim else [f"{identity_key(number)}: missing, so the run has no owner"])


def _missing(manifest: RunManifest, listed: Mapping[str, StoredObject]) -> list[str]:
    problems = ((entry.key, listing_problem(entry, listed.get(entry.key))) for entry in manifest.objects)
    return [f"{key}: {problem}" for key, problem in problems if problem]


def _archive_problems(store: Store, manifest: RunManifest, listed: Mapping[str, StoredObject]) -> list[str]:
    """Report a run in an archive. One object is described: a listing does not say what was restored."""
    there = [listed[entry.key] for entry in manifest.objects if entry.key in listed]
    archived = [found for found in there if found.archived]
    first = store.describe(archived[0].key) if archived else None
    if first is None or not first.archived:
        return []
    return [
        f"{first.key}: is in the archive {first.archived}, and so are {len(archived) - 1} other objects of "
        "the run: they cannot be restored from there now"
    ]


def _status(manifest: RunManifest | None) -> str:
    if manifest is None:
        return ""
    return "running" if manifest.is_open else str(manifest.outcome.get("status", "no outcome"))


def _proof(
    manifest: RunManifest | None, judge: "Callable[[int], Sequence[str]] | None", problems: Sequence[str]
) -> str:
    if manifest is None or _status(manifest) != "succeeded":
        return "not proven"
    if judge is None and not problems:
        return NOT_JUDGED
    failing = ("stored",) if problems or judge is None else judge(manifest.run_number)
    return f"not proven: {', '.join(failing)}" if failing else "proven"


def _checkpoints(
    number: int, listed: Mapping[str, StoredObject], names: _Names
) -> tuple[ListedCheckpoint, ...]:
    """Return the checkpoints by the names of their files, oldest first; one of unknown step comes first."""
    parts: dict[int | None, list[StoredObject]] = {}
    for found in listed.values():
        if belongs_to_checkpoint(found.key):
            parts.setdefault(checkpoint_step_of(found.key), []).append(found)
    return tuple(
        ListedCheckpoint(
            step,
            sum(found.size for found in parts[step]),
            _age(found.modified for found in parts[step]),
            tuple(sorted(name.name for name in names if (name.run_number, name.step) == (number, step))),
        )
        for step in sorted(parts, key=lambda step: -1 if step is None else step)
    )


def _age(times: Iterable[float]) -> float | None:
    """Return the seconds since the last of the times; None if one of them is unknown (0)."""
    known = list(times)
    return round(time.time() - max(known), 1) if known and all(known) else None


def inventory_table(runs: Sequence[ListedRun]) -> str:
    """Return a table for people: one line per run, and the total size."""
    head = ("run", "run id", "proof", "training", "checkpoints", "size", "age", "verdict")
    rows: list[tuple[str, ...]] = [head, *(_row(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    total = f"{len(runs)} run{'' if len(runs) == 1 else 's'}, {format_size(sum(run.bytes for run in runs))}"
    return "\n".join(line.rstrip() for line in (*lines, total))


def _row(run: ListedRun) -> tuple[str, ...]:
    steps = [
        (f"{each.step}" if each.step is not None else "?")
        + (f" ({', '.join(each.promoted)})" if each.promoted else "")
        for each in run.checkpoints
    ]
    shown = steps if len(steps) <= 4 else [steps[0], "…", *steps[-2:]]
    shown += [step for step in steps if "(" in step and step not in shown]
    good = "not read" if run.depth == NAMES_ONLY else f"complete ({run.depth})"
    verdict = good if run.ok else f"{len(run.problems)} wrong: {run.problems[0]}"
    text = f"{len(steps)}: {', '.join(shown)}" if steps else "none"
    size, age = format_size(run.bytes), format_age(run.age_seconds)
    return str(run.run_number), run.run_id, run.proof, run.status, text, size, age, verdict


def format_age(seconds: float | None) -> str:
    """`40 s`, `25 min`, `7 h`, `12 days`."""
    if seconds is None:
        return ""
    for unit, factor in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
