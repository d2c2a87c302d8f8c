"""Judge one stored checkpoint by the records of its run in the store, before it gets a name.

Like `stored_runs`, this module reads a store.
"""

import hashlib
import shlex
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import Checkpoint, is_loose
from trainyard.artifacts.record.evaluations import read_evaluations
from trainyard.artifacts.store.layout import evaluations_key
from trainyard.errors import VerificationError
from trainyard.proof.gates import evaluated_figures, judge_learning, thresholds_of
from trainyard.proof.learning import Curves
from trainyard.proof.recorded_events import course_of
from trainyard.proof.stored_runs import compared_run, prove_from_store
from trainyard.run.run_settings import setting, settings_of_config
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import parse_json_line

if TYPE_CHECKING:
    from trainyard.artifacts.record.manifest import RunManifest
    from trainyard.artifacts.store.object_store import Store

# Further gates that a person may require.
REQUIREMENTS = ("evaluation", "proof")


def require_learned(store: "Store", checkpoint: Checkpoint, required: Collection[str] = ()) -> None:
    """Raise VerificationError if the checkpoint fails a gate of its run, by the stored records alone.

    Its run is judged up to the checkpoint's step, without later rows. `required` are names of `REQUIREMENTS`.
    A checkpoint that was stored without the records of a run is not judged.
    """
    _, manifest, problems = newest_manifest(store, checkpoint.run_number)
    if manifest is None or problems:
        raise VerificationError("\n".join(problems))
    if is_loose(manifest):
        if required:
            raise VerificationError(
                f"{checkpoint.prefix} was not promoted: it was stored without a run to judge. Omit --require."
            )
        return
    settings = settings_of_config(_read_record(store, manifest, "config.yaml"))
    texts = (_read_record(store, manifest, name) for name in ("metrics.jsonl", "events.jsonl"))
    rows, events = ([*map(parse_json_line, text.splitlines())] for text in texts)
    saved = {"step": checkpoint.step, "manifest_sha256": checkpoint.digest}
    run = {**manifest.provenance, "outcome": {**manifest.outcome, "checkpoint": saved}}
    is_last = checkpoint.step == manifest.outcome.get("steps")
    if not is_last:  # the figures of the outcome belong to a later checkpoint
        run["outcome"] = {"checkpoint": saved}
    begins_after, curves = course_of(run, events).begins_after, Curves()
    sum(1 for _ in curves.collect(row for row in rows if _is_until(row, checkpoint.step)))
    curves.start_with(events, begins_after)
    evaluations = _verified_evaluations(store, manifest)
    wanted = setting(settings, "proof.learned.compare_with")
    compared = compared_run(run, store.url, wanted, before=checkpoint.run_number) if wanted else None
    learned = judge_learning(
        run, curves, begins_after=begins_after, settings=settings, evaluations=evaluations, compared=compared
    )
    evidence, step = (learned.evidence, learned.next_step) if learned.is_red else ("", "")
    if not evidence and "evaluation" in required:
        has_passed = thresholds_of(settings) and evaluated_figures(run, evaluations, settings)
        evidence = (
            "" if has_passed else "its run sets no evaluation.thresholds, so no evaluation can judge it"
        )
        step = "train with evaluation.thresholds"
    if not evidence and "proof" in required:
        failing = prove_from_store(store, checkpoint.run_number).failing
        named = (f"its run is not proven: {part.name}: {part.evidence}" for part in failing)
        evidence, step = "; ".join(named), "{again}"
    if evidence:
        where = f"--store {shlex.quote(store.url)} --run-number {checkpoint.run_number}"
        evaluate = f"{trainyard_command('evaluate')} {where} --step {checkpoint.step}"
        step = step.format(again="train again", evaluate=evaluate)
        raise VerificationError(
            f"{checkpoint.prefix} was not promoted: {evidence}. Next: {step}, or promote another one."
        )


def _read_record(store: "Store", manifest: "RunManifest", name: str) -> bytes:
    """Return a record of the run, empty if the run has none.

    Raises VerificationError if it is not the record that the manifest lists.
    """
    key = manifest.records_prefix + name
    listed, content = manifest.by_key().get(key), store.read_object(key)
    is_due = name == "config.yaml" and "config_sha256" in manifest.provenance
    if listed is None and content is None and not is_due:
        return b""
    if listed is None or content is None or hashlib.sha256(content).hexdigest() != listed.sha256:
        what = "is not in the manifest" if listed is None else "is missing" if content is None else "differs"
        raise VerificationError(
            f"{key} {what}: the run cannot be judged by it. trainyard store verify "
            f"--store {shlex.quote(store.url)} --run-number {manifest.run_number} lists what is damaged."
        )
    return content


def _verified_evaluations(store: "Store", manifest: "RunManifest") -> list[dict[str, Any] | None]:
    """Return the evaluations, oldest first. Raises VerificationError if one cannot be read."""
    _read_record(store, manifest, "evaluations.jsonl")
    found = read_evaluations(store, manifest)
    if None in found:
        raise VerificationError(
            f"{evaluations_key(manifest.run_number)} or evaluations.jsonl of the run has a line that cannot "
            "be read, which may be the newest evaluation"
        )
    return found


def _is_until(row: Mapping[str, Any] | None, step: int | None) -> bool:
    found = None if row is None else row.get("step")
    return isinstance(found, int) and (step is None or found <= step)
