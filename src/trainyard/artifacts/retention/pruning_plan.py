"""Plan what retention removes from a store, and why: facts are gathered, nothing is changed.

`retention_rules` holds the rules; `pruning` carries out a plan.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trainyard.artifacts.promotion import find_checkpoint_problems, list_promotions
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import Checkpoint, checkpoints_of, removed_steps
from trainyard.artifacts.record.local_paths import records_of
from trainyard.artifacts.record.manifest import RunManifest, StoredManifest, read_chain
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.record.sync_report import size_text
from trainyard.artifacts.retention.retention_rules import (
    CheckpointFacts,
    RetentionDecision,
    RetentionRules,
    decide_retention,
)
from trainyard.artifacts.store.layout import checkpoint_step_of, records_version_of, run_prefix
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.artifacts.verify.comparison import Depth, compare_objects, new_seed

_AT_ONCE = 8
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunPruning:
    """The plan for one run's checkpoints."""

    run_number: int
    chain: tuple[StoredManifest, ...]
    decisions: tuple[RetentionDecision, ...] = ()
    unfinished: tuple[str, ...] = ()
    """Objects of checkpoints that an interrupted pruning removed from the manifest but not from the store."""
    owed: tuple[Checkpoint, ...] = ()
    """Complete checkpoints that were promoted while an interrupted pruning removed them from the manifest."""
    superseded: Mapping[str, int] = field(default_factory=dict)
    """Records that only earlier manifests of the running run listed: sizes in bytes, by key."""
    problem: str = ""
    """Why nothing of this run is removed."""

    @property
    def removals(self) -> list[RetentionDecision]:
        return [each for each in self.decisions if not each.keep]

    @property
    def changes(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.removals or self.unfinished or self.owed or self.superseded)

    @property
    def bytes(self) -> int:
        return sum(each.checkpoint.size for each in self.removals) + sum(self.superseded.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "run_number": self.run_number,
            "problem": self.problem,
            "bytes": self.bytes,
            "unfinished": list(self.unfinished),
            "owed": [each.step for each in self.owed],
            "superseded": sorted(self.superseded),
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
        """Return text for people: one line per checkpoint."""
        found = [f"run {self.run_number}: nothing is removed: {self.problem}"] if self.problem else []
        for each in self.decisions:
            verb = "keep  " if each.keep else "remove"
            size = size_text(each.checkpoint.size)
            found.append(f"{verb}  run {self.run_number}  {each.checkpoint.name}  {size}  {each.reason}")
        found += [
            f"keep    {each.prefix}  promoted during an earlier pruning; listed again" for each in self.owed
        ]
        if self.superseded:
            size = size_text(sum(self.superseded.values()))
            what = f"{len(self.superseded)} records of earlier manifests"
            found.append(f"remove  run {self.run_number}  {what}  {size}  newer ones are stored")
        found += [f"remove  {key}  left over from an earlier pruning" for key in self.unfinished]
        return found


def plan_pruning(store: Store, numbers: Iterable[int], rules: RetentionRules) -> list[RunPruning]:
    """Decide on the checkpoints of the runs; nothing is changed.

    Raises VerificationError when a run's manifest cannot be read, because its parent checkpoint is then
    unknown.
    """
    promoted, children = names_by_digest(store), _children(store)
    return [_plan(store, number, rules, promoted=promoted, children=children) for number in numbers]


def _plan(
    store: Store,
    number: int,
    rules: RetentionRules,
    *,
    promoted: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[int]],
) -> RunPruning:
    _, manifest, problems = newest_manifest(store, number)
    if manifest is None or problems:
        return RunPruning(number, (), problem=problems[0])
    chain = tuple(read_chain(store, number))
    listed = {found.key: found for found in store.list_objects(run_prefix(number))}
    checkpoints = checkpoints_of(manifest)
    owed = _promoted_meanwhile(chain, listed, promoted) if rules.keep_promoted else ()
    unfinished = _unfinished_removals(manifest, listed, {each.step for each in owed})
    known = [each for each in checkpoints if each.step is not None]
    good = next((each for each in known if _is_good(store, each)), None)
    if known and good is None:
        problem = "no checkpoint of it verifies"
        return RunPruning(number, chain, unfinished=unfinished, owed=owed, problem=problem)
    newest = None if good is None else good.step
    has_failed = manifest.outcome.get("status") == "failed"
    facts = CheckpointFacts(newest, _ages(checkpoints, listed), promoted, children, has_failed)
    decisions = tuple(decide_retention(checkpoints, rules, facts))
    superseded = _superseded_records(store, manifest, listed)
    return RunPruning(number, chain, decisions, unfinished, owed, superseded)


def names_by_digest(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for promotion in list_promotions(store):
        found.setdefault(promotion.digest, []).append(promotion.name)
    return found


def _children(store: Store) -> dict[str, list[int]]:
    """Return the runs that were started from each checkpoint, by its digest."""
    found: dict[str, list[int]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        numbers = sorted(used_numbers(store))
        for number, chain in zip(numbers, pool.map(lambda n: read_chain(store, n), numbers), strict=True):
            if not chain:
                _logger.warning("run %d has no manifest, so its parent checkpoint is not known", number)
            elif parent := chain[-1].manifest.parent_digest:
                found.setdefault(parent, []).append(number)
    return found


def _is_good(store: Store, checkpoint: Checkpoint) -> bool:
    problems = find_checkpoint_problems(store, checkpoint, depth=Depth.LISTING)
    for problem in problems:
        _logger.warning("%s", problem)
    return not problems


def _ages(checkpoints: list[Checkpoint], listed: Mapping[str, StoredObject]) -> dict[int, float]:
    """Return seconds since the last object of each step was stored, by the store's clock; 0 if unknown."""
    now, found = time.time(), {}
    for checkpoint in checkpoints:
        times = [listed[entry.key].modified for entry in checkpoint.objects if entry.key in listed]
        if checkpoint.step is not None:
            found[checkpoint.step] = now - max(times) if times and all(times) else 0.0
    return found


def _promoted_meanwhile(
    chain: Sequence[StoredManifest], listed: Mapping[str, StoredObject], promoted: Mapping[str, Sequence[str]]
) -> tuple[Checkpoint, ...]:
    """Return promoted checkpoints that the newest manifest records as removed, but are still complete."""
    newest = chain[-1].manifest
    lost = promoted.keys() & {each.digest for each in newest.pruned if each.step in removed_steps(newest)}
    found = {
        each.digest: each
        for link in chain
        for each in checkpoints_of(link.manifest)
        if each.digest in lost and all(e.key in listed and listed[e.key].size == e.size for e in each.objects)
    }
    return tuple(found.values())


def _unfinished_removals(
    manifest: RunManifest, listed: Mapping[str, StoredObject], owed: Set[int | None]
) -> tuple[str, ...]:
    """Return removed checkpoints' objects stored before the removal; newer ones belong to a repeated step."""
    removals = removed_steps(manifest) - owed
    since = {each.step: each.time for each in manifest.pruned if each.step in removals}
    found = ((key, checkpoint_step_of(key)) for key in listed)
    return tuple(sorted(key for key, step in found if step in since and listed[key].modified < since[step]))


def _superseded_records(
    store: Store, manifest: RunManifest, listed: Mapping[str, StoredObject]
) -> dict[str, int]:
    """Return records of earlier manifests, listed or left over, if the newest manifest's are complete.

    Each is an old copy of a growing file. A sync that runs now only sends records of a later version.
    """
    prefix = run_prefix(manifest.run_number)
    own = [entry for entry in records_of(manifest) if entry.key.startswith(prefix)]
    if wrong := compare_objects(store, own, listed, depth=Depth.LISTING, seed=new_seed()):
        _logger.warning("%s; records of earlier manifests are kept", next(iter(wrong.values())))
        return {}
    kept = {entry.key for entry in own}
    old = {key: records_version_of(key) for key in listed.keys() - kept}
    return {key: listed[key].size for key, version in old.items() if version and version <= manifest.version}
