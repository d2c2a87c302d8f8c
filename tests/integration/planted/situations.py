"""Every situation as a name, what to plant, and the verdict that must follow, by rule.

thing x damage x {disk, store}       no if the thing is judged or compared
object missing from the list         no
record that was forged               no, though all digests were recomputed
"""

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.integration.planted.objects import (
    DAMAGES,
    IN_A_BUCKET,
    Damage,
    Role,
    Thing,
    folder,
    longer,
    missing,
    one_bit,
)
from tests.integration.planted.yard import STEPS, Yard

from trainyard.artifacts.record.manifest import (
    ManifestObject,
    RunManifest,
    manifest_bytes,
    parse_run_manifest,
)
from trainyard.artifacts.record.statement import restate
from trainyard.artifacts.store.store_address import open_store
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    write_manifest,
)


class Verdict(StrEnum):
    """The answers that a command may give."""

    NO = "no"
    """Exit code 1 or 2."""
    YES = "yes"
    ANY = "any"
    """Yes or no: no machine can tell, or it makes no difference. Never a crash, never a wait."""


@dataclass(frozen=True)
class Situation:
    """One thing that somebody did to a finished run."""

    yard: str
    name: str
    plant: Callable[[Yard], None]
    prove: Verdict
    verify: Verdict
    """Verifying with the run's directory."""
    store_alone: Verdict | None = None
    """Verifying without a directory; None where the store was not touched."""
    restore: Verdict | None = None
    sync: Verdict | None = None
    """Storing the run, before it is judged; None where it stays as it was stored."""


def of_things(
    yard_name: str, things: list[Thing], damages: Sequence[Damage] = DAMAGES
) -> Iterator[Situation]:
    """Each thing with each damage."""
    # The longest name: that of the manifest that lists what a run has now.
    newest = max((each.name for each in things if each.role is Role.MANIFEST), key=len, default="")
    for thing in things:
        for damage in damages:
            name = f"{thing.place} {thing.name}: {damage.__name__}"
            plant = _planted(thing, damage)
            if thing.place == "disk":
                verdict = _on_disk(thing.role, is_missing=damage is missing)
                yield Situation(yard_name, name, plant, verdict, verdict)
            else:
                # One more newline changes no fact of the newest manifest, and no record has its digest.
                same = thing.name == newest and damage is longer
                seen = Verdict.ANY if same else Verdict.NO
                # Restored files are compared byte for byte; other facts in a manifest are not. Without
                # the newest one, the store is that of an unfinished run, which is restored as it is.
                told = thing.name == newest and damage in (one_bit, missing, folder)
                brought = Verdict.ANY if same or told or thing.role in _NOT_BROUGHT else Verdict.NO
                yield Situation(yard_name, name, plant, seen, seen, seen, brought)


_NOT_BROUGHT = (Role.CLAIM, Role.EARLIER, Role.METRICS)


def _planted(thing: Thing, damage: Callable[[Path], None]) -> Callable[[Yard], None]:
    return lambda yard: damage(thing.path(yard))


def _on_disk(role: Role, *, is_missing: bool) -> Verdict:
    if role is Role.OTHER:
        return Verdict.YES
    return Verdict.YES if role is Role.LOG and is_missing else Verdict.NO


def of_mended_objects(yard_name: str, things: list[Thing]) -> Iterator[Situation]:
    """Each object of the store with each damage, and the newest manifest with its new size and digests.

    The disk, a checkpoint's own manifest or run.json may contradict it.
    """
    for thing in things:
        if thing.place == "disk" or thing.role is Role.MANIFEST:
            continue
        for damage in IN_A_BUCKET:
            if damage is not missing:
                name = f"store {thing.name}: {damage.__name__}, digests mended"
                plant = _damaged_and_listed(thing, damage)
                on_disk = Verdict.ANY if thing.role in (Role.CLAIM, Role.EARLIER) else Verdict.NO
                named = thing.role is Role.CHECKPOINT and not thing.name.endswith(MANIFEST_NAME)
                alone = Verdict.NO if named else Verdict.ANY
                yield Situation(yard_name, name, plant, on_disk, on_disk, alone, alone)


def _damaged_and_listed(thing: Thing, damage: Damage) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        damage(thing.path(yard))
        stored = open_store(yard.store).describe(thing.name)
        assert stored is not None
        entry = ManifestObject.of(stored, sha256_of_file(thing.path(yard)))

        def listed(manifest: RunManifest) -> RunManifest:
            objects = (entry if each.key == entry.key else each for each in manifest.objects)
            return restate(replace(manifest, objects=tuple(objects)))

        _rewrite_manifest(yard, listed)

    return plant


# Missing objects, unlisted objects, and records that were forged with all digests recomputed.


def of_plants(yard_name: str, yard: Yard, things: list[Thing]) -> Iterator[Situation]:
    """Each listed object taken out of the list, with and without its bytes; objects beside the list; listed
    leftovers; `records` that points elsewhere; records forged before they were stored.
    """
    for thing in things:
        if thing.place == "store" and thing.role is not Role.MANIFEST:
            yield from _unlisted(yard_name, yard, thing)
    for key in (*_BESIDE, "run-1/checkpoint-8/planted", "run-1/logs/.incoming/planted"):
        name = f"store {key}: beside the manifest"
        yield Situation(yard_name, name, _object_beside(key), Verdict.NO, Verdict.NO, Verdict.NO, Verdict.ANY)
        name = f"store {key}: listed as a leftover"
        seen = Verdict.ANY if key in _LIKE_A_LEFTOVER else Verdict.NO
        yield Situation(yard_name, name, _leftover(key), Verdict.NO, seen, seen, Verdict.ANY)
    for records in ("../../x/", "run-1/", "run-2/records-1/", "run-1/records-1/../"):
        plant = _manifest_with(records=records)
        yield Situation(yard_name, f"manifest with records {records}", plant, *[Verdict.NO] * 4)
    has_tensors = any(yard.run.checkpoint(STEPS).glob("*.distcp"))  # of the trainer, on this machine
    for name, forge, verdict in FORGERIES if has_tensors else ():
        yield Situation(yard_name, f"everywhere: {name}", _stored_anew(forge), verdict, Verdict.ANY)
        fetched = _stored_anew(forge, remove=True)
        yield Situation(yard_name, f"in the store alone: {name}", fetched, verdict, Verdict.ANY)


_BESIDE = (
    "run-1/records-9/run.json",
    "run-1/.incoming/planted",
    "run-1/planted",
    "run-1/checkpoint-3/planted",
)
_LIKE_A_LEFTOVER = ("run-1/checkpoint-3/planted",)
"""Of a step that the run may have saved: only its events, which a proof reads, show that it did not."""


def _unlisted(yard_name: str, yard: Yard, thing: Thing) -> Iterator[Situation]:
    # Logs and earlier records may be missing, a store alone may lack older checkpoints; ids are in no list.
    for gone in (True,) if thing.name.startswith("ids/") else (False, True):
        name = f"store {thing.name}: not listed{', and removed' if gone else ''}"
        seen = Verdict.ANY if gone and thing.role in (Role.LOG, Role.EARLIER) else Verdict.NO
        older = gone and thing.name.startswith("run-1/checkpoint-4/")
        alone = Verdict.ANY if older else seen
        verdict = Verdict.NO if thing.role is not Role.LOG else seen
        verdict = Verdict.ANY if thing.role is Role.EARLIER and gone else verdict
        yield Situation(
            yard_name, name, _unlist(thing.name, remove=gone), verdict, verdict, alone, Verdict.ANY
        )


def _object_beside(key: str) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        path = yard.store_folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("planted")

    return plant


def _leftover(key: str) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        _object_beside(key)(yard)
        _rewrite_manifest(yard, lambda manifest: replace(manifest, unlisted_objects=(key,)))

    return plant


def _manifest_with(**changes: Any) -> Callable[[Yard], None]:
    return lambda yard: _rewrite_manifest(yard, lambda manifest: replace(manifest, **changes))


def _unlist(key: str, *, remove: bool) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        if remove:
            (yard.store_folder / key).unlink()
        _rewrite_manifest(
            yard,
            lambda manifest: restate(
                replace(manifest, objects=tuple(each for each in manifest.objects if each.key != key))
            ),
        )

    return plant


def _rewrite_manifest(yard: Yard, change: Callable[[RunManifest], RunManifest]) -> None:
    """Change the newest manifest; its statement changes only if `change` restates it."""
    path = max((yard.store_folder / "manifests").iterdir(), key=lambda path: len(path.name))
    manifest = change(parse_run_manifest(path.read_bytes(), path.name))
    path.unlink()
    path.write_bytes(manifest_bytes(manifest, ""))


def _stored_anew(forge: Callable[[Yard], None], *, remove: bool = False) -> Callable[[Yard], None]:
    """Forge the run, recompute every digest on disk, and store it in the emptied store.

    With `remove`, its last checkpoint is no longer on disk: it must be downloaded to be read.
    """

    def plant(yard: Yard) -> None:
        forge(yard)
        mend(yard)
        yard.store_anew()
        if remove:
            shutil.rmtree(yard.run.checkpoint(STEPS))

    return plant


def mend(yard: Yard, *, manifests: bool = True) -> None:
    """Recompute the digests in events and outcome; with `manifests`, those in checkpoint manifests, too."""
    named = {}
    for step in yard.run.checkpoint_steps():
        path = yard.run.checkpoint(step)
        if manifests:
            before = json.loads((path / MANIFEST_NAME).read_bytes())
            (path / MANIFEST_NAME).unlink()
            files = describe_files(path)
            write_manifest(path, CheckpointManifest(step, before["run_id"], before["created"], files))
        named[step] = sha256_of_file(path / MANIFEST_NAME)
    lines = [json.loads(line) for line in yard.run.events_file.read_text().splitlines()]
    for line in lines:
        if "manifest_sha256" in line and line["step"] in named:
            line["manifest_sha256"] = named[line["step"]]
    put(yard.run.events_file, "".join(json.dumps(line) + "\n" for line in lines))
    run = json.loads(yard.run.run_file.read_bytes())
    run["outcome"]["checkpoint"]["manifest_sha256"] = named[run["outcome"]["steps"]]
    put(yard.run.run_file, json.dumps(run))


def put(path: Path, content: str) -> None:
    """Replace the file."""
    path.unlink()
    path.write_text(content)


def _other_weights(yard: Yard) -> None:
    """Flip one bit of a weight in the last checkpoint."""
    path = max(yard.run.checkpoint(8).glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[_inside_a_tensor(path)] ^= 1
    path.unlink()
    path.write_bytes(bytes(content))


def _inside_a_tensor(path: Path) -> int:
    """Return the place of a byte of the first tensor; torch.save archives tensors without compression."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes()[: _first_archive(path)])) as archive:
        info = next(each for each in archive.infolist() if "/data/" in each.filename)
        start = info.header_offset + _LOCAL_HEADER_BYTES
        names = path.read_bytes()[start - 4 : start]  # the lengths of the name and of the extra field
        lengths = int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
        return start + lengths + info.file_size // 2


_LOCAL_HEADER_BYTES = 30


def _first_archive(path: Path) -> int:
    """The length of the first of the archives that a shard consists of."""
    content = path.read_bytes()
    end = content.index(b"PK\x05\x06")
    return end + 22


def _of_another_step(yard: Yard) -> None:
    """Put the weights of an earlier checkpoint into the last one."""
    steps = yard.run.checkpoint_steps()
    for path in yard.run.checkpoint(steps[0]).glob("*.distcp"):
        target = yard.run.checkpoint(8) / path.name
        if len(steps) == 1:
            _other_weights(yard)
            return
        target.unlink()
        target.write_bytes(path.read_bytes())


def _called_another_programs(yard: Yard) -> None:
    """Change a weight, and name a recipe whose tensors we cannot read; the digests of the state stay."""
    _other_weights(yard)
    run = json.loads(yard.run.run_file.read_bytes())
    put(yard.run.run_file, json.dumps({**run, "recipe": "of another program"}))


def _other_digest(yard: Yard) -> None:
    run = json.loads(yard.run.run_file.read_bytes())
    run["outcome"]["state_sha256"]["model"] = "0" * 64
    put(yard.run.run_file, json.dumps(run))


def _other_data(yard: Yard) -> None:
    run = json.loads(yard.run.run_file.read_bytes())
    run["data"]["fingerprint"] = "0" * 64
    put(yard.run.run_file, json.dumps(run))


def _no_index(yard: Yard) -> None:
    (yard.run.checkpoint(8) / ".metadata").unlink()


def _renamed_weights(yard: Yard, name: str) -> None:
    """Let the index look for the weights under another name."""
    path = yard.run.checkpoint(STEPS) / ".metadata"
    index = pickle.loads(path.read_bytes())
    for place in index.storage_data.values():
        place.relative_path = name
    path.unlink()
    path.write_bytes(pickle.dumps(index))


def _weights_below(yard: Yard) -> None:
    """Move the weights to `below/manifest.json`, as the index says: a manifest lists that file, too."""
    (yard.run.checkpoint(STEPS) / "below").mkdir()
    file = yard.run.checkpoint(STEPS) / "__0_0.distcp"
    file.rename(yard.run.checkpoint(STEPS) / "below" / "manifest.json")
    _renamed_weights(yard, "below/manifest.json")


def _weights_elsewhere(yard: Yard) -> None:
    """The index of the last checkpoint leads out of it."""
    file = yard.run.checkpoint(STEPS) / "__0_0.distcp"
    (yard.run.checkpoints / "elsewhere.distcp").hardlink_to(file)
    _renamed_weights(yard, "../elsewhere.distcp")


FORGERIES: tuple[tuple[str, Callable[[Yard], None], Verdict], ...] = (
    ("nothing", lambda _yard: None, Verdict.YES),
    ("one bit of the weights", _other_weights, Verdict.NO),
    ("the weights of another step", _of_another_step, Verdict.NO),
    ("other weights, called those of another program", _called_another_programs, Verdict.NO),
    ("another digest of the weights", _other_digest, Verdict.NO),
    ("another fingerprint of the data", _other_data, Verdict.NO),
    ("no index of the tensors", _no_index, Verdict.NO),
    ("weights below a folder, in a file of any name", _weights_below, Verdict.YES),
    ("weights in a file of another checkpoint", _weights_elsewhere, Verdict.NO),
)
