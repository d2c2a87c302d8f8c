"""Plan what retention removes from a store, and why: rules and facts in, decisions out; nothing is changed.

`pruning` carries out a plan.
"""

import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from trainyard.artifacts.promotion import find_checkpoint_problems, list_promotions
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import Checkpoint, checkpoints_of, removed_steps
from trainyard.artifacts.record.local_paths import records_of
from trainyard.artifacts.record.manifest import RunManifest, StoredManifest, read_chain
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.store.layout import checkpoint_step_of, records_version_of, run_prefix
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.artifacts.verify.comparison import Depth, compare_objects
from trainyard.errors import ConfigError
from trainyard.run.sizes import format_size

_AT_ONCE = 8
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetentionRules:
    """The rules that the user gave. `keep_last` and `keep_every` keep checkpoints until `max_age`."""

    keep_last: int | None = None
    """Keep this many of the newest checkpoints."""
    keep_every: int | None = None
    """Keep checkpoints whose step is a multiple of this."""
    max_age: float | None = None
    """Seconds; older ones are removed in spite of the two rules above. Alone, it keeps all younger ones."""

    def __post_init__(self) -> None:
        if self.keep_last is None and self.keep_every is None and self.max_age is None:
            raise ConfigError("No rule: give --keep-last, --keep-every or --max-age. Nothing was removed.")
        for name, value in (("--keep-last", self.keep_last), ("--keep-every", self.keep_every)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: must be a whole number above 0")


@dataclass(frozen=True)
class RetentionDecision:
    """The decision on a checkpoint."""

    checkpoint: Checkpoint
    keep: bool
    reason: str


def decide_retention(
    checkpoints: Sequence[Checkpoint],
    rules: RetentionRules,
    *,
    newest_good: int | None,
    ages: Mapping[int, float],
    promoted: Mapping[str, Sequence[str]],
    children: Mapping[str, Sequence[int]],
    has_failed: bool,
) -> list[RetentionDecision]:
    """Decide on each checkpoint, newest first. One whose step is unknown is always kept.

    `newest_good` is the step of the newest that verifies; `ages` are seconds since the store received it, by
    step; `promoted` are its names and `children` the runs that were started from it, by digest. Of a run that
    failed, `max_age` removes the newest checkpoint too.
    """
    known = [each for each in checkpoints if each.step is not None]
    last = {each.step for each in known[: rules.keep_last or 0]}

    def decide(checkpoint: Checkpoint) -> tuple[bool, str]:
        step = checkpoint.step
        if step is None:
            return True, "its step is not known"
        age = ages.get(step, 0.0)
        is_old = rules.max_age is not None and age > rules.max_age
        if step == newest_good and not (has_failed and is_old):
            return True, "the newest that verifies"
        if names := promoted.get(checkpoint.digest, ()):
            return True, f"promoted as {', '.join(names)}"
        if runs := children.get(checkpoint.digest, ()):
            return True, f"run {', '.join(map(str, runs))} was started from it"
        return _by_rule(step, rules, age, is_last=step in last)

    return [RetentionDecision(each, *decide(each)) for each in checkpoints]


def _by_rule(step: int, rules: RetentionRules, age: float, *, is_last: bool) -> tuple[bool, str]:
    if rules.max_age is not None and age > rules.max_age:
        return False, f"{age / 86400:.1f} days old"
    if is_last:
        return True, f"one of the last {rules.keep_last}"
    if rules.keep_every is not None and step % rules.keep_every == 0:
        return True, f"a multiple of {rules.keep_every}"
    if rules.keep_last is None and rules.keep_every is None:
        return True, f"{age / 86400:.1f} days old"
    return False, "no rule keeps it"


@dataclass(frozen=True)
class RunPruning:
    """The plan for one run's checkpoints."""

    run_number: int
    chain: tuple[StoredManifest, ...]
    decisions: tuple[RetentionDecision, ...] = ()
    unfinished: tuple[str, ...] = ()
    """Objects of checkpoints that an interrupted pruning removed from the manifest but not from the store."""
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
        return bool(self.removals or self.unfinished or self.superseded)

    @property
    def bytes(self) -> int:
        return sum(each.checkpoint.size for each in self.removals) + sum(self.superseded.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "run_number": self.run_number,
            "problem": self.problem,
            "bytes": self.bytes,
            "unfinished": list(self.unfinished),
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
            size = format_size(each.checkpoint.size)
            found.append(f"{verb}  run {self.run_number}  {each.checkpoint.name}  {size}  {each.reason}")
        if self.superseded:
            size = format_size(sum(self.superseded.values()))
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
    unfinished = _unfinished_removals(manifest, listed, promoted)
    known = [each for each in checkpoints if each.step is not None]
    good = next((each for each in known if _is_good(store, each)), None)
    if known and good is None:
        problem = "no checkpoint of it verifies"
        return RunPruning(number, chain, unfinished=unfinished, problem=problem)
    decisions = decide_retention(
        checkpoints,
        rules,
        newest_good=None if good is None else good.step,
        ages=_ages(checkpoints, listed),
        promoted=promoted,
        children=children,
        has_failed=manifest.outcome.get("status") == "failed",
    )
    superseded = _superseded_records(store, manifest, listed)
    return RunPruning(number, chain, tuple(decisions), unfinished, superseded)


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


def _unfinished_removals(
    manifest: RunManifest, listed: Mapping[str, StoredObject], promoted: Container[str]
) -> tuple[str, ...]:
    """Return removed checkpoints' objects stored before the removal; newer ones belong to a repeated step.

    Those of a checkpoint that was promoted while an interrupted pruning removed it stay.
    """
    removals = removed_steps(manifest)
    gone = [each for each in manifest.pruned if each.step in removals and each.digest not in promoted]
    since = {each.step: each.time for each in gone}
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
    if wrong := compare_objects(store, own, listed, depth=Depth.LISTING):
        _logger.warning("%s; records of earlier manifests are kept", next(iter(wrong.values())))
        return {}
    kept = {entry.key for entry in own}
    old = {key: records_version_of(key) for key in listed.keys() - kept}
    return {key: listed[key].size for key, version in old.items() if version and version <= manifest.version}
