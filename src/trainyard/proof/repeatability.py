"""Decide whether a run can be repeated: which facts of its origin are recorded by hash, and which are not.

A dirty working tree is accepted when the hash of its difference is recorded, and is shown as dirty.
"""

from trainyard.proof.recorded_facts import RecordedFacts, commit, digest, integer, section
from trainyard.run.identity import ORIGIN_KEYS, origin_of
from trainyard.run.run_settings import setting


def missing_facts(run: RecordedFacts) -> list[str]:
    """The names of the missing facts without which the run cannot be repeated."""
    git, parent = section(run, "git"), section(run, "parent")
    known = {
        "commit": commit(git.get("commit")) is not None,
        "state of the working tree": not git or _tree_known(git),
        "lock": digest(run.get("lock_sha256")) is not None,
        "config": digest(run.get("config_sha256")) is not None,
        "data": digest(section(run, "data").get("fingerprint")) is not None,
        "seed": integer(run.get("seed")) is not None,
        "image": "image_digest" not in run or digest(run["image_digest"]) is not None,
        "digests of the final state": _final_state_known(section(run, "outcome")),
        "history of the segments": isinstance(run.get("history", []), list),
        "parent checkpoint": "parent" not in run or digest(parent.get("manifest_sha256")) is not None,
    }
    return [name for name, is_known in known.items() if not is_known]


def mixed_origin(run: RecordedFacts) -> str | None:
    """How an earlier segment's origin differs from the run's; no single command repeats such a run.

    Another device, thread count or world size sums in another order, which rounds differently and so gives
    other weights.
    """
    for segment in run.get("history", []):
        before = origin_of(segment) if isinstance(segment, dict) else {}
        different = [name for name in ORIGIN_KEYS if before.get(name) != origin_of(run).get(name)]
        if different:
            until = segment.get("until") if isinstance(segment, dict) else "?"
            return f"until step {until} it ran with {_named(different)}"
    return None


def _named(keys: list[str]) -> str:
    names = {
        "commit": "another commit",
        "diff_sha256": "another working tree",
        "lock_sha256": "another lock",
        "config_sha256": "another config",
        "image_digest": "another image",
        "device": "another device",
        "device_name": "another device",
        "threads": "other threads",
        "simd_bits": "another width of vectors",
        "torch": "another torch",
        "world_size": "another world size",
    }
    return " and ".join(dict.fromkeys(names[key] for key in keys))


def provenance_line(run: RecordedFacts) -> str:
    """The origin of a run with no missing facts, in one line with short hashes."""
    git = section(run, "git")
    tree = f"dirty, difference {_short(git['diff_sha256'])}" if git["dirty"] else "clean"
    hashes = {
        "lock": run["lock_sha256"],
        "config": run["config_sha256"],
        "data": section(run, "data")["fingerprint"],
        "image": run.get("image_digest"),
        "parent": section(run, "parent").get("manifest_sha256"),
    }
    named = ", ".join(f"{name} {_short(value)}" for name, value in hashes.items() if value)
    return f"commit {git['commit'][:7]} ({tree}), {named}, seed {run['seed']}"


def _final_state_known(outcome: RecordedFacts) -> bool:
    """Whether the digests to compare a repetition with are recorded; only a run that succeeded needs them."""
    digests = section(outcome, "state_sha256")
    known = all(digest(digests.get(name)) is not None for name in ("model", "optimizer"))
    return known or outcome.get("status") != "succeeded"


def changed_seed(run: RecordedFacts, settings: RecordedFacts) -> str | None:
    """How the recorded seed differs from that in `config.yaml`; None when it does not."""
    asked = setting(settings, "training.seed")
    if asked is None or asked == run.get("seed"):
        return None
    return f"run.json says seed {run.get('seed')}, config.yaml says {asked}"


def _tree_known(git: RecordedFacts) -> bool:
    """Whether the tree is recorded as clean, or as dirty with the hash of the difference."""
    dirty = git.get("dirty")
    return dirty is False or (dirty is True and digest(git.get("diff_sha256")) is not None)


def _short(value: str) -> str:
    return f"{value.removeprefix('sha256:')[:4]}…"
