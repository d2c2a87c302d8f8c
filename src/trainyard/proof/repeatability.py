"""Decide whether a run can be repeated: which facts of its origin are recorded by hash, and which are not.

A dirty working tree is accepted when the hash of its difference is recorded, and is shown as dirty.
"""

from collections.abc import Callable

from trainyard.config.registries import is_program_run
from trainyard.proof.recorded_facts import (
    RecordedFacts,
    commit_or_none,
    digest_or_none,
    integer_or_none,
    section_or_empty,
)
from trainyard.run.identity import ORIGIN_KEYS, TOPOLOGY_KEYS, read_origin
from trainyard.run.run_settings import setting

_MOST_FILES = 3
"""So many files by hash are named."""
_ONLY_ROUND = {"world_size", "threads"}
"""The facts of an origin that only decide in which order numbers are added."""


def missing_facts(run: RecordedFacts) -> list[str]:
    """The names of the missing facts without which the run cannot be repeated."""
    git, parent = section_or_empty(run, "git"), section_or_empty(run, "parent")
    if is_program_run(run):
        tree = {"a clean working tree": not git or git.get("dirty") is False}
        own = {"command": digest_or_none(run.get("program_sha256")) is not None}
        end = {}
    else:
        tree = {"state of the working tree": not git or _tree_known(git)}
        own = {"seed": integer_or_none(run.get("seed")) is not None}
        end = {"digests of the final state": _final_state_known(section_or_empty(run, "outcome"))}
    known = {
        "commit": commit_or_none(git.get("commit")) is not None,
        **tree,
        "lock": digest_or_none(run.get("lock_sha256")) is not None,
        "config": digest_or_none(run.get("config_sha256")) is not None,
        "data": digest_or_none(section_or_empty(run, "data").get("fingerprint")) is not None,
        **own,
        "image": "image_digest" not in run or digest_or_none(run["image_digest"]) is not None,
        **end,
        "history of the segments": isinstance(run.get("history", []), list),
        "parent checkpoint": "parent" not in run or digest_or_none(parent.get("manifest_sha256")) is not None,
    }
    return [name for name, is_known in known.items() if not is_known]


FIXES_OF_PROGRAMS = {
    "commit": "run it in a git repository with at least one commit, or in an image that was built from one; "
    "a container needs git before the checkout",
    "a clean working tree": "commit the changes, or ignore files that do not matter in .gitignore",
    "lock": "name a file that pins each package to one version in program.lock; "
    "pip freeze > requirements.lock writes one",
    "data": "name the files that it reads in program.data, or set that to [] if it reads none",
}


def fixes_of_program(run: RecordedFacts) -> dict[str, str]:
    """Return each fact that is missing of a program, with what records it; most are known at its start."""
    return {name: fix for name, fix in FIXES_OF_PROGRAMS.items() if name in missing_facts(run)}


def changed_inputs(run: RecordedFacts) -> str | None:
    """Return which inputs of a program had other bytes at the end of its run than at the start."""
    changed = section_or_empty(run, "outcome").get("changed_inputs", [])
    if not changed:
        return None
    names = [str(name) for name in changed] if isinstance(changed, list) else ["an input"]
    return f"{' and '.join(names)} changed while the program ran"


def packages_outside_lock(run: RecordedFacts) -> str | None:
    """Return which packages a program imported with other versions than its lock pins.

    In an image whose digest is on record they are those of the image.
    """
    segments = [run, *(each for each in run.get("history", []) if isinstance(each, dict))]
    lists = [each.get("other_versions") for each in segments]
    found = [*dict.fromkeys(str(one) for each in lists if isinstance(each, list) for one in each)]
    if not found or "image_digest" in run:
        return None
    more = f", and {len(found) - _MOST_FILES} more" if len(found) > _MOST_FILES else ""
    names = "; ".join(found[:_MOST_FILES])
    return f"imported with another version than its lock pins: {names}{more}"


def mixed_origin(run: RecordedFacts) -> str | None:
    """Return how an earlier segment's origin differs from the run's; no single command repeats such a run.

    Another division of the same steps over processes and threads does not count: see `other_topology`.
    """
    return _first_difference(run, _different)


def other_topology(run: RecordedFacts) -> str | None:
    """Return how an earlier segment divided its steps over processes or threads differently from the last.

    Every step had the same samples and settings, so that repeating the run gives the same weights up to
    rounding, but not to the bit.
    """
    found = _first_difference(run, _divided)
    return found and found.replace(_named(["config_sha256"]), "another division of the global batch")


def _first_difference(
    run: RecordedFacts, differences: Callable[[RecordedFacts, RecordedFacts], list[str]]
) -> str | None:
    for segment in run.get("history", []):
        before = read_origin(segment) if isinstance(segment, dict) else {}
        if names := differences(before, read_origin(run)):
            until = segment.get("until") if isinstance(segment, dict) else "?"
            return f"until step {until} it ran with {_named(names)}"
    return None


def _different(before: RecordedFacts, after: RecordedFacts) -> list[str]:
    """The facts that differ and that change the steps."""
    same_steps = digest_or_none(before.get("computation_sha256")) is not None and (
        before.get("computation_sha256") == after.get("computation_sha256")
    )
    kept = _ONLY_ROUND | ({"config_sha256"} if same_steps else set())
    return [name for name in ORIGIN_KEYS if name not in kept and before.get(name) != after.get(name)]


def _divided(before: RecordedFacts, after: RecordedFacts) -> list[str]:
    """The facts that differ and that only add the same numbers in another order."""
    names = ("config_sha256", "world_size", "threads", *TOPOLOGY_KEYS)
    return [name for name in names if before.get(name) != after.get(name)]


def _named(keys: list[str]) -> str:
    names = ORIGIN_KEYS | TOPOLOGY_KEYS
    return " and ".join(dict.fromkeys(names[key] for key in keys))


def provenance_line(run: RecordedFacts) -> str:
    """Return the origin of a run with no missing facts, in one line with short hashes.

    The line states the exactness of a repetition if that is not to the bit.
    """
    git = section_or_empty(run, "git")
    tree = f"dirty, difference {_short(git['diff_sha256'])}" if git["dirty"] else "clean"
    if files := section_or_empty(git, "files"):
        tree += (
            f"; by hash: {', '.join(sorted(files)[:_MOST_FILES])}{' …' if len(files) > _MOST_FILES else ''}"
        )
    hashes = {
        "lock": run["lock_sha256"],
        "config": run["config_sha256"],
        "data": section_or_empty(run, "data")["fingerprint"],
        "command": run["program_sha256"] if is_program_run(run) else None,
        "image": run.get("image_digest"),
        "parent": section_or_empty(run, "parent").get("manifest_sha256"),
    }
    named = ", ".join(f"{name} {_short(value)}" for name, value in hashes.items() if value)
    if is_program_run(run):
        promise = "same inputs on record; the program's own determinism is not checked"
        return f"commit {git['commit'][:7]} ({tree}), {named}; {promise}"
    topology = other_topology(run)
    exactness = "" if topology is None else f"; repeatable up to rounding, not to the bit: {topology}"
    return f"commit {git['commit'][:7]} ({tree}), {named}, seed {run['seed']}{exactness}"


def _final_state_known(outcome: RecordedFacts) -> bool:
    """Return whether the digests to compare a repetition with are recorded.

    Only a run that succeeded needs them.
    """
    digests = section_or_empty(outcome, "state_sha256")
    known = all(digest_or_none(digests.get(name)) is not None for name in ("model", "optimizer"))
    return known or outcome.get("status") != "succeeded"


def changed_seed(run: RecordedFacts, settings: RecordedFacts) -> str | None:
    """Return how the recorded seed differs from that in `config.yaml`; None when it does not."""
    requested = setting(settings, "training.seed")
    if requested is None or requested == run.get("seed") or is_program_run(run):
        return None
    return f"run.json has seed {run.get('seed')}, config.yaml has {requested}"


def _tree_known(git: RecordedFacts) -> bool:
    """Return whether the tree is recorded as clean, or as dirty with the hash of the difference."""
    dirty = git.get("dirty")
    return dirty is False or (dirty is True and digest_or_none(git.get("diff_sha256")) is not None)


def _short(value: str) -> str:
    return f"{value.removeprefix('sha256:')[:4]}…"
