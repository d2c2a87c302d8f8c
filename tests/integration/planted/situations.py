"""Every situation as a name, what to plant, and the verdict that must follow, by rule.

thing x damage x {disk, store}       what is judged or compared and is not as it was: no
field x wrong value of each record   of a record that is compared: no; all digests mended: no crash, no wait
what is owed and not listed          no
"""

import copy
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.planted.damage import DAMAGES, IN_A_BUCKET, Damage, folder, longer, missing, one_bit
from tests.integration.planted.objects import Role, Thing
from tests.integration.planted.yard import STEPS, Yard

from trainyard.artifacts.record.manifest import (
    ManifestObject,
    RunManifest,
    manifest_bytes,
    parse_run_manifest,
)
from trainyard.artifacts.record.statement import restate
from trainyard.gateways import open_store
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
    """With the run's directory."""
    store_alone: Verdict | None = None
    """Verifying without a directory; None where the store was not touched."""
    restore: Verdict | None = None
    sync: Verdict | None = None
    """Storing the run, before it is judged; None where it stays as it was stored."""


def of_things(
    yard_name: str, things: list[Thing], damages: Sequence[Damage] = DAMAGES
) -> Iterator[Situation]:
    """Each thing with each damage."""
    newest = max((each.name for each in things if each.role is Role.MANIFEST), key=len)
    for thing in things:
        for damage in damages:
            name = f"{thing.place} {thing.name}: {damage.__name__}"
            plant = _planted(thing, damage)
            if thing.place == "disk":
                verdict = _on_disk(thing.role, is_missing=damage is missing)
                yield Situation(yard_name, name, plant, verdict, verdict)
            else:
                # A newline more changes nothing that the newest manifest says, and nothing names its bytes.
                same = thing.name == newest and damage is longer
                seen = Verdict.ANY if same else Verdict.NO
                # What arrives is compared byte for byte; what else a manifest tells is not brought. Without
                # the newest one, the store is that of a run which is still going: it is brought as it was.
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


# Fields of records.

MISSING = object()


@dataclass(frozen=True)
class _Raw:
    """JSON as it is written."""

    text: str


_DIGITS = _Raw("9" * 5000)
_DEEP = _Raw("[" * 100_000 + "]" * 100_000)
_LONG_TEXT = "x" * 100_000


def wrong_values(value: object) -> Iterator[tuple[str, Any]]:
    """Wrong values to plant, by name; a number or text of the right type is not one of them."""
    yield "missing", MISSING
    yield "null", None
    yield "of another type", [] if isinstance(value, dict) else {} if not isinstance(value, str) else 7
    yield "true", True
    yield "NaN", float("nan")
    yield "infinite", float("-inf")
    yield "huge", 10**400
    yield "thousands of digits", _DIGITS
    yield "huge float", 1e308
    yield "deep", _DEEP
    yield "surrogate", "\ud800"
    yield "long text", _LONG_TEXT
    yield "a list", [{"x": [1]}]


def _other_values(value: object) -> Iterator[tuple[str, Any]]:
    """Wrong ones that are not what is there: some fields may be null, or true."""
    for name, new in wrong_values(value):
        if new is MISSING or isinstance(new, _Raw) or json.dumps(new) != json.dumps(value):
            yield name, new


def fields_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each field in a JSON value; of a list the first entry stands for all."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields_of(inner, (*at, key))
    elif isinstance(value, list) and value:
        yield from fields_of(value[0], (*at, 0))


def with_field(value: Any, at: tuple[Any, ...], new: Any) -> str:
    """The JSON of `value` with another field at `at`."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    if new is MISSING:
        del inner[at[-1]]
        return json.dumps(changed)
    mark = "@the new value@"
    inner[at[-1]] = mark if isinstance(new, _Raw) else new
    text = json.dumps(changed)
    return text.replace(json.dumps(mark), new.text) if isinstance(new, _Raw) else text


def changes_of(thing: Thing, yard: Yard) -> Iterator[tuple[str, Callable[[], str]]]:
    """The name of each change of one field of a JSON record, or of a line of it, and what makes it."""
    content = thing.path(yard).read_text()
    if not thing.name.endswith(".jsonl"):
        value = json.loads(content)
        for at in fields_of(value):
            for name, new in _other_values(_value_at(value, at)):
                yield f"{'.'.join(map(str, at))} {name}", partial(with_field, value, at, new)
        return
    lines = content.splitlines()
    for number in {0, len(lines) // 2, len(lines) - 1}:
        value = json.loads(lines[number])
        for at in fields_of(value):
            for name, new in _other_values(_value_at(value, at)):
                change = partial(_with_line, lines, number, partial(with_field, value, at, new))
                yield f"line {number + 1} {'.'.join(map(str, at))} {name}", change


def _with_line(lines: list[str], number: int, line: Callable[[], str]) -> str:
    return "\n".join([*lines[:number], line(), *lines[number + 1 :]]) + "\n"


def of_fields(yard_name: str, yard: Yard, things: list[Thing]) -> Iterator[Situation]:
    """Each field of each JSON record of the disk and of the store, with each wrong value."""
    for thing in things:
        if thing.role in (Role.LOG, Role.OTHER) or not thing.name.endswith((".json", ".jsonl")):
            continue
        for change, content in changes_of(thing, yard):
            name = f"{thing.place} {thing.name}: {change}"
            plant = _written(thing, content)
            if thing.place == "disk":
                yield Situation(yard_name, name, plant, Verdict.NO, Verdict.NO)
            elif thing.role is Role.MANIFEST:
                verdict = Verdict.NO if _is_compared(change) else Verdict.ANY
                yield Situation(yard_name, name, plant, verdict, verdict, verdict, Verdict.ANY)
            else:
                brought = Verdict.ANY if thing.role in _NOT_BROUGHT else Verdict.NO
                yield Situation(yard_name, name, plant, Verdict.NO, Verdict.NO, Verdict.NO, brought)


def of_mended_fields(yard_name: str, yard: Yard, things: list[Thing]) -> Iterator[Situation]:
    """Each field of each JSON record of the disk with each wrong value, all digests mended, stored anew.

    Whether such a run is good, nobody can say by rule; storing and judging it ends soon, and in no crash.
    """
    for thing in things:
        if thing.place == "store" or thing.role not in (Role.RECORD, Role.CHECKPOINT):
            continue
        if thing.name.endswith((".json", ".jsonl")):
            for change, content in changes_of(thing, yard):
                plant = _written_and_mended(thing, content)
                name = f"mended {thing.name}: {change}"
                yield Situation(yard_name, name, plant, *[Verdict.ANY] * 5)


def _written_and_mended(thing: Thing, content: Callable[[], str]) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        _written(thing, content)(yard)
        if thing.role is Role.CHECKPOINT:
            mend(yard, manifests=not thing.name.endswith(MANIFEST_NAME))
        shutil.rmtree(yard.store_folder)
        yard.store_folder.mkdir()

    return plant


def of_mended_objects(yard_name: str, things: list[Thing]) -> Iterator[Situation]:
    """Each object of the store with each damage, its size and digests in the newest manifest mended.

    What the disk, a checkpoint's own manifest or run.json says of it is against that.
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


_COMPARED = ("run_id", "run_number", "schema", "objects", "outcome", "provenance", "statement", "supersedes")
_OPTIONAL = ("statement missing", "statement null", "objects.0.etag", "objects.0.store_checksum")


def _is_compared(change: str) -> bool:
    """Return whether a field of a manifest repeats a fact that is recorded elsewhere, too."""
    if change.startswith(_OPTIONAL) or change in ("statement of another type", "statement a list"):
        return False
    return change.startswith(_COMPARED)


def _written(thing: Thing, content: Callable[[], str]) -> Callable[[Yard], None]:
    def plant(yard: Yard) -> None:
        path = thing.path(yard)
        path.unlink()
        path.write_text(content(), encoding="utf-8", errors="surrogatepass")

    return plant


def _value_at(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value


# What is owed, what is unlisted, and records that were forged with all digests mended.


def of_plants(yard_name: str, yard: Yard, things: list[Thing]) -> Iterator[Situation]:
    """Each listed object taken out of the list, with and without its bytes; objects beside the list; an open
    end; groups that point elsewhere; records forged before they were stored.
    """
    for thing in things:
        if thing.place == "store" and thing.role is not Role.MANIFEST:
            yield from _unlisted(yard_name, yard, thing)
    for key in (*_BESIDE, "run-1/checkpoint-8/planted", "run-1/logs/.incoming/planted"):
        name = f"store {key}: beside the manifest"
        yield Situation(yard_name, name, _object_beside(key), Verdict.NO, Verdict.NO, Verdict.NO, Verdict.ANY)
        name = f"store {key}: called a leftover"
        seen = Verdict.ANY if key in _LIKE_A_LEFTOVER else Verdict.NO
        yield Situation(yard_name, name, _leftover(key), Verdict.NO, seen, seen, Verdict.ANY)
    for records in ("../../x/", "run-1/", "run-2/records-1/", "run-1/records-1/../"):
        plant = _manifest_with(records=records)
        yield Situation(yard_name, f"manifest with records {records}", plant, *[Verdict.NO] * 4)
    for name, forge, verdict in FORGERIES if _has_tensors(yard) else ():
        yield Situation(yard_name, f"everywhere: {name}", _stored_anew(forge), verdict, Verdict.ANY)
        fetched = _stored_anew(forge, remove=True)
        yield Situation(yard_name, f"in the store alone: {name}", fetched, verdict, Verdict.ANY)


def _has_tensors(yard: Yard) -> bool:
    """Whether the last checkpoint is one of the trainer, and whole on this machine."""
    return any(yard.run.checkpoint(STEPS).glob("*.distcp"))


_BESIDE = (
    "run-1/records-9/run.json",
    "run-1/.incoming/planted",
    "run-1/planted",
    "run-1/checkpoint-3/planted",
)
_LIKE_A_LEFTOVER = ("run-1/checkpoint-3/planted",)
"""Of a step that a run may have saved: only its events, which a proof has, say that it did not."""


def _unlisted(yard_name: str, yard: Yard, thing: Thing) -> Iterator[Situation]:
    # Nothing but a checkpoint left: as stored by the flags --checkpoint and --metrics, which need no record.
    for gone in (False, True):
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
        _rewrite_manifest(yard, lambda manifest: replace(manifest, leftovers=(key,)))

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
    """The newest manifest with a change, its statement to match where the change says so."""
    path = max((yard.store_folder / "manifests").iterdir(), key=lambda path: len(path.name))
    manifest = change(parse_run_manifest(path.read_bytes(), path.name))
    path.unlink()
    path.write_bytes(manifest_bytes(manifest, ""))


def _stored_anew(forge: Callable[[Yard], None], *, remove: bool = False) -> Callable[[Yard], None]:
    """Forge the run, mend every digest on the disk, and store it as if it had never been another.

    With `remove`, its last checkpoint is no longer on disk: to be read, it must be fetched.
    """

    def plant(yard: Yard) -> None:
        forge(yard)
        mend(yard)
        yard.store_anew()
        if remove:
            shutil.rmtree(yard.run.checkpoint(STEPS))

    return plant


def mend(yard: Yard, *, manifests: bool = True) -> None:
    """Let events and outcome name the bytes that are there; with `manifests`, those of checkpoints, too."""
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
    """Another file in its place."""
    path.unlink()
    path.write_text(content)


def _other_weights(yard: Yard) -> None:
    """One bit of a weight in the last checkpoint."""
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
        names = path.read_bytes()[start - 4 : start]  # the lengths of the name and of what pads it
        lengths = int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
        return start + lengths + info.file_size // 2


_LOCAL_HEADER_BYTES = 30


def _first_archive(path: Path) -> int:
    """The length of the first of the archives that a shard consists of."""
    content = path.read_bytes()
    end = content.index(b"PK\x05\x06")
    return end + 22


def _of_another_step(yard: Yard) -> None:
    """The weights of an earlier checkpoint in the last one."""
    steps = yard.run.checkpoint_steps()
    for path in yard.run.checkpoint(steps[0]).glob("*.distcp"):
        target = yard.run.checkpoint(8) / path.name
        if len(steps) == 1:
            _other_weights(yard)
            return
        target.unlink()
        target.write_bytes(path.read_bytes())


def _called_another_programs(yard: Yard) -> None:
    """Other weights, and a recipe whose tensors nobody here can read; the digests of the state stay."""
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


def _index_that_runs_code(yard: Yard) -> None:
    path = yard.run.checkpoint(8) / ".metadata"
    path.unlink()
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(yard.path / "ran").encode() + b"'\ntR.")


def _renamed_weights(yard: Yard, name: str) -> None:
    """Let the index look for the weights under another name."""
    path = yard.run.checkpoint(STEPS) / ".metadata"
    index = pickle.loads(path.read_bytes())
    for place in index.storage_data.values():
        place.relative_path = name
    path.unlink()
    path.write_bytes(pickle.dumps(index))


def _weights_below(yard: Yard) -> None:
    """On disk they are where the index says, and every store has them: no name is left out of a manifest."""
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
    ("an index that runs code", _index_that_runs_code, Verdict.NO),
    ("weights below a folder, in a file of any name", _weights_below, Verdict.YES),
    ("weights in a file of another checkpoint", _weights_elsewhere, Verdict.NO),
)
