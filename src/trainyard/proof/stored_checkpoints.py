"""Decide whether the store holds what the run wrote: compare its checkpoints with the hashes in its records.

`artifacts` verifies that the store holds what the manifest lists; here the manifest is compared with the run.
"""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from trainyard.config.registries import is_program_run
from trainyard.proof.completion import unknown_step
from trainyard.proof.learning import Curves
from trainyard.proof.recorded_facts import RecordedFacts, digest_or_none, integer_or_none, section_or_empty

if TYPE_CHECKING:
    from trainyard.artifacts.verify.inspection import StoredCheckpoint
    from trainyard.artifacts.verify.verify import Verification

_AGAIN = "; then train it again: {again}"
_NAME_IT = (
    "let the program save its weights, or name what it saves, such as out/model.npz; then train it again: "
    "{again} --set program.checkpoints=PATH"
)
_CHECKPOINT = re.compile(r"run-[0-9]+/checkpoint(?:-([0-9]{1,18}))?/")


@dataclass(frozen=True)
class CheckpointProblem:
    """A checkpoint that the store does not hold as the run wrote it."""

    text: str
    step: int | None
    """None when the run's record does not name it."""
    written: Any = None
    """SHA-256 of the manifest that the run wrote, if it is recorded."""
    _: KW_ONLY
    fix: str = ""
    """What to do before it is trained again in the program or its settings; `{again}` is that command."""


def checkpoint_problem(
    run: RecordedFacts,
    saved: Mapping[int, Any],
    checkpoints: Mapping[int, "StoredCheckpoint"],
    *,
    curves: Curves | None = None,
) -> CheckpointProblem | None:
    """Return the first checkpoint that is missing or not the run's; `saved` has its events' manifests."""
    outcome = section_or_empty(run, "outcome")
    last, named = integer_or_none(outcome.get("steps")), section_or_empty(outcome, "checkpoint")
    last = (kept_step(run, curves or Curves()) or (last,))[0]
    written = digest_or_none(named.get("manifest_sha256"))
    newest = integer_or_none(named.get("step"))
    if (unknown := unknown_step(outcome)) is not None:
        if reasons := section_or_empty(run, "observed").get("unobserved"):
            unknown = f"{unknown} (not observed: {reasons[0]})"
        return CheckpointProblem(unknown, None, fix=f"report the step of each checkpoint{_AGAIN}")
    if not named and is_program_run(run):
        return CheckpointProblem("no complete checkpoint of the program was found", None, fix=_NAME_IT)
    if last is not None and written is not None and newest is not None and newest < last:
        text = f"the newest checkpoint is of step {newest:,}, and the run ended at step {last:,}"
        return CheckpointProblem(
            text, None, fix=f"let the program save once more after its last step{_AGAIN}"
        )
    if last is None or written is None or newest != last:
        return CheckpointProblem("run.json does not name the checkpoint that the run ended with", None)
    if last not in checkpoints:
        stored = f"the newest stored one is of step {max(checkpoints):,}" if checkpoints else "none is stored"
        text = f"the checkpoint of step {last:,}, the last one, is not stored; {stored}"
        return CheckpointProblem(text, last, written)
    for step in sorted(checkpoints, reverse=True):
        names = [name for name in (written if step == last else None, saved.get(step)) if name is not None]
        difference = _difference(run, step, checkpoints[step], names)
        if difference is not None:
            return CheckpointProblem(f"the stored checkpoint of step {step:,} {difference}", step, *names[:1])
    return None


def kept_step(run: RecordedFacts, curves: Curves) -> tuple[int, str] | None:
    """Return the step of a last checkpoint that counts although steps came after it, and why; else None.

    Some loops, such as nanoGPT's, validate and save before a step, and end after one more. Others save when a
    figure of the validation is the best one so far, and stop when it gets no better.
    """
    outcome = section_or_empty(run, "outcome")
    step = integer_or_none(section_or_empty(outcome, "checkpoint").get("step"))
    last = integer_or_none(outcome.get("steps"))
    if step is None or last is None or step >= last:
        return None
    if step == curves.last_validated and last == step + 1:
        return step, "which was validated: the step after it is not saved"
    best = curves.best_step(last) if is_program_run(run) else None
    if best is not None and best[0] <= step <= best[0] + 1:  # steps may be printed from 0
        return step, f"which has the best {best[1]}: the {last - step:,} steps after it are not saved"
    return None


def _difference(run: RecordedFacts, step: int, stored: "StoredCheckpoint", written: list[Any]) -> str | None:
    if stored.problem is not None:
        return stored.problem
    if stored.run_id != run.get("run_id"):
        return f"is of run {stored.run_id}"
    if stored.step != step:
        return f"is a copy of step {stored.step:,}"
    if any(sha256 != stored.manifest_sha256 for sha256 in written):
        return "is not the one that the run wrote: its manifest has another SHA-256"
    return None


def leftover_problem(saved: Mapping[int, Any], verification: "Verification") -> str | None:
    """Return a problem if an object is listed as the leftover of a checkpoint that the run never saved."""
    for key in verification.unlisted_objects:
        match = _CHECKPOINT.match(key)
        if match is not None and int(match[1] or -1) not in saved:
            return f"{key}: listed as a leftover, but the run saved no such checkpoint; remove it"
    return None


def changed_record(judged: Mapping[str, str], verification: "Verification") -> str | None:
    """Return the first record whose bytes in the store differ from those that were judged here.

    It is called only when no other problem was found: then the record changed on disk during the proof.
    """
    for name, sha256 in judged.items():
        stored = verification.records.get(name)
        if stored != sha256:
            what = "is not stored" if stored is None else "changed while it was proven"
            return f"{name} {what}; prove again"
    return None


def store_problem(run: RecordedFacts, verification: "Verification") -> str | None:
    """Return why the verification does not show that the store holds all of this run; None when it does."""
    if verification.problems:
        more = len(verification.problems) - 1
        return verification.problems[0] + (f" (and {more} more)" if more else "")
    run_id = run.get("run_id")
    if not isinstance(run_id, str) or not run_id or verification.run_id != run_id:
        return f"the manifest is of run {verification.run_id!r}, this is run {run_id!r}"
    total = integer_or_none(verification.objects_total)
    if total is None or total < 1:
        return "the manifest lists no object"
    if integer_or_none(verification.objects_verified) != total or verification.ok is not True:
        return "the rest was not compared"
    return None
