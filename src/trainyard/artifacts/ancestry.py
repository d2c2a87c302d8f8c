"""Trace a stored run's lineage: run → parent checkpoint → its run → …, and each run's data and code.

A parent is identified by the SHA-256 of its own manifest, searched among all runs of the store, and verified
there. Data and code are not in the store, so only their recorded digests are reported.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from trainyard.artifacts.promotion import find_checkpoint_problems
from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import checkpoints_of
from trainyard.artifacts.record.manifest import RunManifest, read_chain
from trainyard.artifacts.record.run_numbers import used_numbers
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.verify.comparison import Depth
from trainyard.errors import VerificationError

_AT_ONCE = 8


@dataclass(frozen=True)
class Link:
    """One origin of a run."""

    run_number: int
    """The run that has this origin."""
    kind: str
    """`parent`, `data` or `code`."""
    status: str
    """held: in the store, unchanged; broken: there, but changed; removed: by retention, on record; on record:
    its digest alone; not here: no run of this store has it; missing: the run has no record of it."""
    text: str

    def line(self) -> str:
        """Text for people."""
        return f"run {self.run_number} ← {self.kind}: {self.text} ({self.status})"


@dataclass(frozen=True)
class Lineage:
    """Every link from a run to its origins, nearest first."""

    links: tuple[Link, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(link.line() for link in self.links if link.status != "broken")

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(link.line() for link in self.links if link.status == "broken")

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "links": [asdict(link) for link in self.links]}

    def summary(self) -> str:
        """One line for people."""
        if not self.links:
            return "not known"
        parents = sum(link.kind == "parent" for link in self.links)
        states = dict.fromkeys(str(link.status) for link in self.links if link.kind != "parent")
        above = f"{parents} parent checkpoint{'s' * (parents != 1)}" if parents else "no parent checkpoint"
        return f"{above}; data and code {', '.join(states)}"


def walk_lineage(store: Store, run_number: int, *, depth: Depth) -> Lineage:
    """Follow the run's newest manifest to its origins; parents are verified to `depth`.

    The lineage is empty when the run has no readable manifest; verifying the run reports why.
    """
    manifest = newest_manifest(store, run_number)[1]
    return Lineage(tuple(_walk(store, manifest, depth)))


def _walk(store: Store, manifest: RunManifest | None, depth: Depth) -> Iterator[Link]:
    known, seen = dict[int, RunManifest](), set[str]()
    while (run := manifest) is not None:
        manifest, digest = None, run.parent_digest
        if digest is not None and digest not in seen:
            seen.add(digest)
            known = known or _manifests(store)
            status, text, manifest = _parent(store, digest, known, depth)
            yield Link(run.run_number, "parent", status, text)
        yield Link(run.run_number, "data", *_data(run.provenance.get("data")))
        yield Link(run.run_number, "code", *_code(run.provenance.get("git")))


def _parent(
    store: Store, digest: str, known: Mapping[int, RunManifest], depth: Depth
) -> tuple[str, str, RunManifest | None]:
    """Return status and text of the parent checkpoint, and its run, where the walk continues."""
    for number, manifest in known.items():
        for checkpoint in checkpoints_of(manifest):
            if checkpoint.digest == digest:
                name = f"{checkpoint.name} of run {number}"
                problems = newest_manifest(store, number)[2]
                problems = problems or find_checkpoint_problems(store, checkpoint, depth=depth)
                if problems:
                    return "broken", f"{name}: {problems[0]}", manifest
                return "held", f"{name}, {depth}", manifest
        for gone in manifest.pruned:
            if gone.digest == digest:
                return (
                    "removed",
                    f"checkpoint-{gone.step} of run {number}, by {gone.by}: {gone.reason}",
                    manifest,
                )
    return "not here", f"a checkpoint whose manifest is {digest}", None


def _manifests(store: Store) -> dict[int, RunManifest]:
    """Return the newest manifest of every run that has a readable one."""

    def newest(number: int) -> RunManifest | None:
        try:
            chain = read_chain(store, number)
        except VerificationError:
            return None
        return chain[-1].manifest if chain else None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        numbers = sorted(used_numbers(store))
        found = zip(numbers, pool.map(newest, numbers), strict=True)
        return {number: manifest for number, manifest in found if manifest is not None}


def _data(data: object) -> tuple[str, str]:
    if isinstance(data, Mapping) and data.get("fingerprint"):
        return "on record", f"fingerprint {data['fingerprint']}"
    return "missing", "no fingerprint"


def _code(git: object) -> tuple[str, str]:
    if not isinstance(git, Mapping) or not git.get("commit"):
        return "missing", "no commit"
    text = f"commit {git['commit']}"
    if git.get("dirty") and not git.get("diff_sha256"):
        return "missing", f"{text} with changes whose hash is not recorded"
    return "on record", f"{text} with changes {git['diff_sha256']}" if git.get("dirty") else text
