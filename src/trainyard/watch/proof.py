"""Whether a run is proven: the four parts of the proof, each with what was compared with what.

Pure: records in, a value out. It reads no file and asks no store; the verification of the store is handed in.
A fact that is missing or of the wrong type never counts as holding: a false green is the worst bug there is.
"""

import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainyard.run.commands import again_command, resume_command
from trainyard.watch.completion import completion_problem, retries
from trainyard.watch.facts import Facts, integer, section
from trainyard.watch.provenance import missing_facts, mixed_origin, provenance_line


class StoreVerdict(Protocol):
    """What verifying the store found (artifacts.verify.Verification)."""

    @property
    def objects_total(self) -> int: ...
    @property
    def objects_verified(self) -> int: ...
    @property
    def problems(self) -> tuple[str, ...]: ...
    @property
    def run_id(self) -> str: ...
    @property
    def ok(self) -> bool: ...


@dataclass(frozen=True)
class Place:
    """Where the run lies; only the commands that are proposed need it."""

    run_directory: str = "RUN_DIR"
    store: str | None = None
    run_number: int | None = None

    @property
    def resume_command(self) -> str:
        return resume_command(Path(self.run_directory))

    @property
    def sync_command(self) -> str:
        return (
            f"scripts/training_artifact_sync.py --run-dir {shlex.quote(self.run_directory)}"
            f" --store {shlex.quote(self.store or 'URL')} --run-number {self.run_number or 'auto'} --once"
        )


@dataclass(frozen=True)
class Checks:
    """What was looked at beside the records; None was not looked at."""

    compared: str = "SHA-256 equal on disk, in the store and in the manifest"
    """What the verification that is handed in compared."""
    stored_steps: frozenset[int] | None = None
    """The steps whose checkpoints the store's manifest lists."""
    store_trouble: str | None = None
    """Why the store could not be asked."""
    config_digests: frozenset[str] | None = None
    """The SHA-256 that the `config.yaml` beside the result may be on record by."""


@dataclass(frozen=True)
class Part:
    """One of the four things that are checked."""

    name: str
    """trained, network, stored or repeatable."""
    holds: bool
    evidence: str
    """What was compared with what, or what is missing."""
    next_step: str | None = None
    """The command or act that would make it hold; None when it holds."""


@dataclass(frozen=True)
class Proof:
    """The verdict on a run."""

    parts: tuple[Part, ...]

    @property
    def proven(self) -> bool:
        return len(self.parts) == 4 and all(part.holds is True for part in self.parts)

    @property
    def failing(self) -> tuple[Part, ...]:
        """The parts that do not hold, in order."""
        return tuple(part for part in self.parts if part.holds is not True)

    def to_json(self) -> dict[str, Any]:
        parts = [
            {"name": p.name, "holds": p.holds, "evidence": p.evidence, "next_step": p.next_step}
            for p in self.parts
        ]
        return {"proven": self.proven, "parts": parts, "time": time.time()}


def prove(
    run: Facts,
    rows: Iterable[Facts],
    events: Iterable[Facts],
    verification: StoreVerdict | None,
    *,
    place: Place | None = None,
    checks: Checks | None = None,
) -> Proof:
    """Judge a run by its `run.json`, its metrics and events, and what verifying the store found."""
    at, looked = place or Place(), checks or Checks()
    return Proof(
        (
            _trained(run, rows, events, at),
            _network(section(run, "hardware"), at),
            _stored(run, verification, place=at, checks=looked),
            _repeatable(run, at, looked.config_digests),
        )
    )


def _trained(run: Facts, rows: Iterable[Facts], events: Iterable[Facts], place: Place) -> Part:
    problem = completion_problem(run, rows)
    if problem is not None:
        return Part("trained", False, problem, place.resume_command)
    steps = f"{run['plan']['steps']:,}"
    return Part("trained", True, f"{steps} of {steps} steps, every loss finite, {retries(events)}")


def _network(hardware: Facts, place: Place) -> Part:
    size = integer(hardware.get("world_size"))
    if size == 1:
        return Part("network", True, "one process: no network was used")
    if size is None or size < 1:
        return Part(
            "network",
            False,
            "the world size is not on record",
            f"record it in {place.run_directory}/run.json",
        )
    return Part(
        "network",
        False,
        f"{size:,} processes, but nothing shows which network joined them",
        f"the verdict needs NCCL's log: set NCCL_DEBUG=INFO and keep it in {place.run_directory}/logs",
    )


def _stored(run: Facts, verification: StoreVerdict | None, *, place: Place, checks: Checks) -> Part:
    if checks.store_trouble is not None:
        return Part("stored", False, checks.store_trouble, place.sync_command)
    if verification is None:
        where = f"{place.store} holds nothing of this run" if place.store else "no store was named"
        return Part("stored", False, where, place.sync_command)
    total, verified = integer(verification.objects_total), integer(verification.objects_verified)
    objects = f"{0 if verified is None else verified:,} of {0 if total is None else total:,} objects"
    problem = _store_problem(run, verification) or _checkpoint_problem(run, checks.stored_steps)
    if problem is not None:
        return Part("stored", False, f"{objects} verified; {problem}", place.sync_command)
    return Part("stored", True, f"{objects}: {checks.compared}")


def _checkpoint_problem(run: Facts, stored_steps: frozenset[int] | None) -> str | None:
    """What is whole in the store must be the end of the run, not only its middle."""
    last = integer(section(run, "outcome").get("steps"))
    if stored_steps is None or last is None or last in stored_steps:
        return None
    newest = f"the newest stored one is of step {max(stored_steps):,}" if stored_steps else "none is stored"
    return f"the checkpoint of step {last:,}, the last one, is not stored; {newest}"


def _store_problem(run: Facts, verification: StoreVerdict) -> str | None:
    """Why the verification does not show that this run is whole in the store; None when it does."""
    if verification.problems:
        more = len(verification.problems) - 1
        return verification.problems[0] + (f" (and {more} more)" if more else "")
    run_id = run.get("run_id")
    if not isinstance(run_id, str) or not run_id or verification.run_id != run_id:
        return f"the manifest is of run {verification.run_id!r}, this is run {run_id!r}"
    total = integer(verification.objects_total)
    if total is None or total < 1:
        return "the manifest lists no object"
    if integer(verification.objects_verified) != total or verification.ok is not True:
        return "the rest was not compared"
    return None


def _repeatable(run: Facts, place: Place, config_digests: frozenset[str] | None) -> Part:
    missing = missing_facts(run)
    if not missing and config_digests is not None and run["config_sha256"] not in config_digests:
        return Part(
            "repeatable",
            False,
            "config.yaml is missing or no longer the run's: its SHA-256 is not the one in run.json",
            f"restore {place.run_directory}/config.yaml, for example from the store",
        )
    if not missing and (mixture := mixed_origin(run)) is not None:
        step = f"train it in one piece: {again_command(Path(place.run_directory))}"
        return Part("repeatable", False, mixture, step)
    if not missing:
        return Part("repeatable", True, provenance_line(run))
    if "commit" in missing:
        step = "train from a git repository with at least one commit, so that the code is on record"
    else:
        step = f"train again with scripts/train.py, which records it in {place.run_directory}/run.json"
    return Part("repeatable", False, f"not on record: {', '.join(missing)}", step)
