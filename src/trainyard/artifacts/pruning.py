"""Remove checkpoints from a store by rule: planned first, said in a further manifest, then deleted.

    plan → a manifest that no longer lists them, but says what they were → delete, each one's marker first

Killed in between, the store still verifies: what is left of a removed checkpoint is a note, and the next
pruning removes it. The rules are `retention`'s affair.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
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
    owed: tuple[Checkpoint, ...] = ()
    """Whole ones that were promoted while a pruning, cut short since, took them from the manifest."""
    problem: str = ""
    """Why nothing of this run is removed."""

    @property
    def doomed(self) -> list[Decision]:
        return [each for each in self.decisions if not each.keep]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.doomed or self.unfinished or self.owed)

    @property
    def bytes(self) -> int:
        return sum(each.checkpoint.size for each in self.doomed)

    def to_json(self) -> dict[str, Any]:
        return {
            "run_number": self.run_number,
            "problem": self.problem,
            "bytes": self.bytes,
            "unfinished": list(self.unfinished),
            "owed": [each.step for each in self.owed],
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
        found += [
            f"keep    {each.prefix}  promoted during an earlier pruning; listed again" for each in self.owed
        ]
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
    owed = _owed(chain, listed, promoted) if rules.keep_promoted else ()
    unfinished = _unfinished(manifest, listed, {each.step for each in owed})
    good = next((each for each in checkpoints if each.step is not None and _is_good(store, each)), None)
    if good is None or good.step is None:
        return RunPlan(
            number, chain, unfinished=unfinished, owed=owed, problem="no checkpoint of it verifies"
        )
    facts = Facts(good.step, _ages(checkpoints, listed), promoted, children)
    return RunPlan(number, chain, tuple(decide(checkpoints, rules, facts)), unfinished, owed)


def prune(store: Store, plan: RunPlan, *, by: str, rules: Rules, signer: Signer | None = None) -> list[str]:
    """Carry the plan of one run out; what was kept against the plan, because it was promoted meanwhile.

    Raises RunConflictError, with nothing removed, when the run was stored again since it was planned.
    """
    doomed, kept = plan.doomed, list[str]()
    if doomed:
        _vouch_for_the_rest(store, plan.chain, doomed, by=by, signer=signer)
    try:
        for each in doomed:
            # Right before its marker goes: who promotes it later looks for it after.
            if rules.keep_promoted and each.checkpoint.digest in _promoted(store):
                _vouch_again(store, plan.run_number, each.checkpoint, signer=signer)
                kept.append(f"{each.checkpoint.prefix} was promoted meanwhile, and kept")
            else:
                _delete(store, each.checkpoint)
        for owed in plan.owed:
            _vouch_again(store, plan.run_number, owed, signer=signer)
        _delete_keys(store, plan.unfinished)
    except ServiceError as error:
        raise ServiceError(
            f"{error}\nThe manifest is right already; the same command finishes it."
        ) from error
    return kept


def _vouch_for_the_rest(
    store: Store,
    chain: Sequence[StoredManifest],
    doomed: list[Decision],
    *,
    by: str,
    signer: Signer | None,
) -> None:
    """Put the manifest without the doomed."""
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
    try:
        _put(store, chain, replace(newest, objects=objects, pruned=pruned), signer=signer)
    except RunConflictError:
        raise RunConflictError(
            f"run {newest.run_number} was stored again since this was planned. Nothing of it was removed; "
            "run it again."
        ) from None


def _vouch_again(store: Store, run_number: int, checkpoint: Checkpoint, *, signer: Signer | None) -> None:
    """Take a checkpoint back that is still there, in the manifest that holds by now."""
    chain = read_chain(store, run_number)
    newest = chain[-1].manifest
    listed = {entry.key: entry for entry in checkpoint.objects} | newest.by_key()
    objects = tuple(listed[key] for key in sorted(listed))
    pruned = tuple(each for each in newest.pruned if each.digest != checkpoint.digest)
    try:
        _put(store, chain, replace(newest, objects=objects, pruned=pruned), signer=signer)
    except RunConflictError:
        raise RunConflictError(
            f"{checkpoint.prefix} was promoted meanwhile and is whole, but its run was stored again just "
            "then, so that no manifest lists it. The same command finishes it."
        ) from None


def _put(
    store: Store, chain: Sequence[StoredManifest], manifest: RunManifest, *, signer: Signer | None
) -> None:
    """Raises RunConflictError when somebody else put a manifest there meanwhile."""
    newest = chain[-1]
    if signer is None and next(iter(store.list_objects(signature_prefix(manifest.run_number))), None):
        _logger.warning("run %d was signed, and its new manifest is not: no key is set", manifest.run_number)
    following = replace(
        manifest, created=time.time(), supersedes={"key": newest.key, "sha256": newest.sha256}
    )
    put_manifest(store, restated(following), Before(list(chain), {}, {}), signer)


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


def _owed(
    chain: Sequence[StoredManifest], listed: Mapping[str, StoredObject], promoted: Mapping[str, Sequence[str]]
) -> tuple[Checkpoint, ...]:
    """Promoted checkpoints that the newest manifest says were removed, and of which every object is there."""
    newest = chain[-1].manifest
    lost = promoted.keys() & {each.digest for each in newest.pruned if each.step in doomed_steps(newest)}
    found = {
        each.digest: each
        for link in chain
        for each in checkpoints_of(link.manifest)
        if each.digest in lost and all(e.key in listed and listed[e.key].size == e.size for e in each.objects)
    }
    return tuple(found.values())


def _unfinished(
    manifest: RunManifest, listed: Mapping[str, StoredObject], owed: Set[int | None]
) -> tuple[str, ...]:
    """Those that were stored before they were doomed: later ones belong to a step that is trained anew."""
    doomed = doomed_steps(manifest) - owed
    since = {each.step: each.time for each in manifest.pruned if each.step in doomed}
    found = ((key, checkpoint_step_of(key)) for key in listed)
    return tuple(sorted(key for key, step in found if step in since and listed[key].modified < since[step]))
