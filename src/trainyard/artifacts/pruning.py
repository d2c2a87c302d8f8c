"""Remove checkpoints from a store by rule: planned first, said in a further manifest, then deleted.

    plan → a manifest that no longer lists them, but says what they were → delete, each one's marker first

Killed in between, the store still verifies: what is left of a removed checkpoint is a note, and the next
pruning removes it. The rules are `retention`'s affair.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from trainyard.artifacts.chain import newest_manifest
from trainyard.artifacts.checkpoints import Checkpoint, checkpoints_of, doomed_steps
from trainyard.artifacts.comparison import Depth
from trainyard.artifacts.layout import checkpoint_step_of, run_prefix, signature_prefix
from trainyard.artifacts.manifest import PrunedCheckpoint, RunManifest, StoredManifest, read_chain
from trainyard.artifacts.numbers import used_numbers
from trainyard.artifacts.promotion import problems_of, promotions
from trainyard.artifacts.publishing import Before, put_manifest
from trainyard.artifacts.retention import Decision, Facts, Rules, decide
from trainyard.artifacts.signature import Signer
from trainyard.artifacts.statement import restated
from trainyard.artifacts.store import Store, StoredObject
from trainyard.artifacts.sync_report import size_text
from trainyard.errors import RunConflictError, ServiceError

_AT_ONCE = 8
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunPlan:
    """What becomes of one run's checkpoints."""

    run_number: int
    chain: tuple[StoredManifest, ...]
    decisions: tuple[Decision, ...] = ()
    unfinished: tuple[str, ...] = ()
    """Objects of checkpoints that an earlier pruning removed from the manifest and not from the store."""
    problem: str = ""
    """Why nothing of this run is removed."""

    @property
    def doomed(self) -> list[Decision]:
        return [each for each in self.decisions if not each.keep]

    @property
    def bytes(self) -> int:
        return sum(each.checkpoint.size for each in self.doomed)

    def to_json(self) -> dict[str, Any]:
        return {
            "run_number": self.run_number,
            "problem": self.problem,
            "bytes": self.bytes,
            "unfinished": list(self.unfinished),
            "checkpoints": [
                {
                    "step": each.checkpoint.step,
                    "bytes": each.checkpoint.size,
                    "digest": each.checkpoint.digest,
                    "keep": each.keep,
                    "reason": each.reason,
                }
                for each in self.decisions
            ],
        }

    def lines(self) -> list[str]:
        """For people: one line a checkpoint."""
        found = [f"run {self.run_number}: nothing is removed: {self.problem}"] if self.problem else []
        for each in self.decisions:
            verb = "keep  " if each.keep else "remove"
            size = size_text(each.checkpoint.size)
            found.append(f"{verb}  run {self.run_number}  {each.checkpoint.name}  {size}  {each.reason}")
        found += [f"remove  {key}  left over from an earlier pruning" for key in self.unfinished]
        return found


def plan_pruning(store: Store, numbers: Iterable[int], rules: Rules) -> list[RunPlan]:
    """Decide on the checkpoints of the runs; nothing is changed.

    Raises VerificationError when a run's manifest cannot be read: what it was started from is then unknown.
    """
    promoted, children = _promoted(store), _children(store)
    return [_plan(store, number, rules, promoted=promoted, children=children) for number in numbers]


def _plan(
    store: Store,
    number: int,
    rules: Rules,
    *,
    promoted: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[int]],
) -> RunPlan:
    _, manifest, problems = newest_manifest(store, number)
    if manifest is None or problems:
        return RunPlan(number, (), problem=problems[0])
    chain = tuple(read_chain(store, number))
    listed = {found.key: found for found in store.list_objects(run_prefix(number))}
    checkpoints = checkpoints_of(manifest)
    unfinished = _unfinished(manifest, listed)
    good = next((each for each in checkpoints if each.step is not None and _is_good(store, each)), None)
    if good is None or good.step is None:
        return RunPlan(number, chain, unfinished=unfinished, problem="no checkpoint of it verifies")
    facts = Facts(good.step, _ages(checkpoints, listed), promoted, children)
    return RunPlan(number, chain, tuple(decide(checkpoints, rules, facts)), unfinished)


def prune(store: Store, plan: RunPlan, *, by: str, rules: Rules, signer: Signer | None = None) -> list[str]:
    """Carry the plan of one run out; what was kept against the plan, because it was promoted meanwhile.

    Raises RunConflictError, with nothing removed, when the run was stored again since it was planned.
    """
    doomed = plan.doomed
    if doomed:
        chain = _vouch_for_the_rest(store, plan.chain, doomed, by=by, signer=signer)
        doomed, kept = _rescued(store, doomed, rules)
        if kept:
            _vouch_again(store, chain, kept, signer)
    else:
        kept = []
    try:
        for each in doomed:
            _delete(store, each.checkpoint)
        _delete_keys(store, plan.unfinished)
    except ServiceError as error:
        raise ServiceError(
            f"{error}\nThe manifest is right already; the same command finishes it."
        ) from error
    return [f"{each.checkpoint.prefix} was promoted meanwhile, and kept" for each in kept]


def _vouch_for_the_rest(
    store: Store,
    chain: Sequence[StoredManifest],
    doomed: list[Decision],
    *,
    by: str,
    signer: Signer | None,
) -> list[StoredManifest]:
    """Put the manifest without the doomed; the chain that ends with it."""
    newest, gone = chain[-1].manifest, {entry.key for each in doomed for entry in each.checkpoint.objects}
    now = time.time()
    records = [
        PrunedCheckpoint(
            step=int(each.checkpoint.step or 0),
            digest=each.checkpoint.digest,
            size=each.checkpoint.size,
            time=now,
            by=by,
            reason=each.reason,
        )
        for each in doomed
    ]
    objects = tuple(entry for entry in newest.objects if entry.key not in gone)
    pruned = tuple(sorted((*newest.pruned, *records), key=lambda each: (each.step, each.time)))
    return _put(store, chain, replace(newest, objects=objects, pruned=pruned), signer)


def _vouch_again(
    store: Store, chain: list[StoredManifest], kept: list[Decision], signer: Signer | None
) -> None:
    """Take checkpoints back that are still there."""
    newest, back = chain[-1].manifest, [entry for each in kept for entry in each.checkpoint.objects]
    objects = tuple(sorted((*newest.objects, *back), key=lambda entry: entry.key))
    digests = {each.checkpoint.digest for each in kept}
    pruned = tuple(each for each in newest.pruned if each.digest not in digests)
    _put(store, chain, replace(newest, objects=objects, pruned=pruned), signer)


def _put(
    store: Store, chain: Sequence[StoredManifest], manifest: RunManifest, signer: Signer | None
) -> list[StoredManifest]:
    newest = chain[-1]
    if signer is None and next(iter(store.list_objects(signature_prefix(manifest.run_number))), None):
        _logger.warning("run %d was signed, and its new manifest is not: no key is set", manifest.run_number)
    following = replace(
        manifest, created=time.time(), supersedes={"key": newest.key, "sha256": newest.sha256}
    )
    try:
        put_manifest(store, restated(following), Before(list(chain), {}, {}), signer)
    except RunConflictError:
        raise RunConflictError(
            f"run {manifest.run_number} was stored again since this was planned. Nothing of it was removed; "
            "run it again."
        ) from None
    return read_chain(store, manifest.run_number, tuple(chain))


def _rescued(store: Store, doomed: list[Decision], rules: Rules) -> tuple[list[Decision], list[Decision]]:
    """What is still to go, and what somebody promoted while the manifest was put."""
    if not rules.keep_promoted:
        return doomed, []
    promoted = _promoted(store)
    kept = [each for each in doomed if each.checkpoint.digest in promoted]
    return [each for each in doomed if each not in kept], kept


def _delete(store: Store, checkpoint: Checkpoint) -> None:
    if checkpoint.marker is not None:
        store.delete(checkpoint.marker.key)
    _delete_keys(store, [entry.key for entry in checkpoint.objects if entry != checkpoint.marker])
    _logger.info("run %d: %s removed, %s", checkpoint.run_number, checkpoint.name, size_text(checkpoint.size))


def _delete_keys(store: Store, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(store.delete, keys))


def _promoted(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for promotion in promotions(store):
        found.setdefault(promotion.digest, []).append(promotion.name)
    return found


def _children(store: Store) -> dict[str, list[int]]:
    """The runs that were started from each checkpoint, by its digest."""
    found: dict[str, list[int]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        numbers = sorted(used_numbers(store))
        for number, chain in zip(numbers, pool.map(lambda n: read_chain(store, n), numbers), strict=True):
            parent = chain[-1].manifest.provenance.get("parent") if chain else None
            if not chain:
                _logger.warning("run %d has no manifest, so what it was started from is not known", number)
            if isinstance(parent, Mapping) and parent.get("manifest_sha256"):
                found.setdefault(str(parent["manifest_sha256"]), []).append(number)
    return found


def _is_good(store: Store, checkpoint: Checkpoint) -> bool:
    problems = problems_of(store, checkpoint, depth=Depth.LISTING)
    for problem in problems:
        _logger.warning("%s", problem)
    return not problems


def _ages(checkpoints: list[Checkpoint], listed: Mapping[str, StoredObject]) -> dict[int, float]:
    """Since the last of its objects was stored, by the store's clock; 0 where it does not say."""
    now, found = time.time(), {}
    for checkpoint in checkpoints:
        times = [listed[entry.key].modified for entry in checkpoint.objects if entry.key in listed]
        if checkpoint.step is not None:
            found[checkpoint.step] = now - max(times) if times and all(times) else 0.0
    return found


def _unfinished(manifest: RunManifest, listed: Mapping[str, StoredObject]) -> tuple[str, ...]:
    """Those that were stored before they were doomed: later ones belong to a step that is trained anew."""
    since = {each.step: each.time for each in manifest.pruned if each.step in doomed_steps(manifest)}
    found = ((key, checkpoint_step_of(key)) for key in listed)
    return tuple(sorted(key for key, step in found if step in since and listed[key].modified < since[step]))
