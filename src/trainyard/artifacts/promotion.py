"""Names for checkpoints that matter (`best`, `production`): a small object that points at one by its digest.

In a store, a name means one checkpoint of one run. A conditional put moves it: when two people move it at
once, one of them gets an error. The checkpoint is verified before it gets the name. Afterwards the
run's manifest is read again, because retention may have removed the checkpoint meanwhile.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, field, replace
from typing import Any

from pydantic.dataclasses import dataclass

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import Checkpoint, checkpoints_of, own_manifest_problem
from trainyard.artifacts.store.layout import PROMOTED, promotion_key
from trainyard.artifacts.store.object_store import Store, put_and_confirm
from trainyard.artifacts.verify.comparison import Depth, compare_objects
from trainyard.errors import ConfigError, DamagedFileError, RunConflictError, VerificationError
from trainyard.run.record_models import OF_A_FILE, Count, Number, SchemaNumber, Text, validate_record
from trainyard.run.untrusted_files import parse_json_object

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_RESERVED = ("newest", "auto", "none")


@dataclass(frozen=True, config=OF_A_FILE)
class Promotion:
    """A name, its checkpoint, and who gave it when."""

    schema: SchemaNumber = field(default=1, kw_only=True)
    name: Text
    run_number: Count
    run_id: Text
    step: Count
    digest: Text
    """The SHA-256 of the checkpoint's own manifest; empty when the name was withdrawn."""
    time: Number
    """Unix seconds."""
    by: Text
    depth: Text
    """The depth to which the checkpoint was verified before the promotion."""
    previous: dict[str, Any] = field(default_factory=dict)
    """Run number, step and digest of the checkpoint that had the name before; empty for the first."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def content(self) -> bytes:
        """The pointer's bytes as stored."""
        return (json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n").encode()


def read_promotion(store: Store, name: str) -> Promotion | None:
    """Return the checkpoint that has the name; None if there is none.

    Raises VerificationError for a damaged pointer.
    """
    if not _NAME.fullmatch(name):
        return None
    _, found = _pointer(store, name)
    return found if found and found.digest else None


def list_promotions(store: Store) -> Iterator[Promotion]:
    """Yield every promotion in the store. Raises VerificationError for a damaged pointer."""
    for found in store.list_objects(PROMOTED):
        content = store.read_object(found.key)
        if content is not None and (promotion := _parse(content, found.key)).digest:
            yield promotion


def find_promotable(
    store: Store, run_number: int, step: int | None, *, depth: Depth
) -> tuple[str, Checkpoint]:
    """Return the run's identity and its checkpoint of `step` (None: the newest), verified to `depth`.

    Raises VerificationError that names the problems of the checkpoint.
    """
    _, manifest, problems = newest_manifest(store, run_number)
    if manifest is None or problems:
        raise VerificationError("\n".join(problems))
    found = [each for each in checkpoints_of(manifest) if each.step is not None]
    match = [each for each in found if step in (None, each.step)][:1]
    if not match:
        steps = ", ".join(str(each.step) for each in reversed(found)) or "none"
        raise VerificationError(f"run {run_number} has no checkpoint of step {step}. Steps: {steps}.")
    problems = find_checkpoint_problems(store, match[0], depth=depth)
    if problems:
        raise VerificationError("\n".join([*problems, f"{match[0].prefix} was not promoted."]))
    return manifest.run_id, match[0]


def find_checkpoint_problems(store: Store, checkpoint: Checkpoint, *, depth: Depth) -> list[str]:
    """Return the problems of a stored checkpoint, by its own manifest and the run's."""
    listed = {found.key: found for found in store.list_objects(checkpoint.prefix)}
    own = own_manifest_problem(store, checkpoint)
    wrong = compare_objects(store, checkpoint.objects, listed, depth=depth)
    return [wrong[key] for key in sorted(wrong)] or ([own] if own else [])


def promote(
    store: Store, name: str, checkpoint: Checkpoint, *, run_id: str, by: str, depth: Depth
) -> Promotion:
    """Give the name to a checkpoint that `find_promotable` returned.

    Raises ConfigError for an invalid name. Raises RunConflictError when somebody moved the name or removed
    the checkpoint at the same time; in the second case the name goes back to what it was.
    """
    require_name(name)
    assert checkpoint.step is not None
    promotion = Promotion(
        name=name,
        run_number=checkpoint.run_number,
        run_id=run_id,
        step=checkpoint.step,
        digest=checkpoint.digest,
        time=time.time(),
        by=by,
        depth=str(depth),
    )
    old, before = _pointer(store, name)
    moved = _move(store, promotion, old=old, before=before)
    if not _is_held(store, moved):
        nothing = replace(moved, digest="", depth="").content
        put_and_confirm(store, promotion_key(name), old or nothing, old=moved.content)
        raise RunConflictError(
            f"{checkpoint.prefix} was removed by retention, or stored again, while it was promoted: "
            f"{name} means what it meant before. Promote another one."
        )
    return moved


def withdraw(store: Store, name: str, *, by: str) -> Promotion:
    """Withdraw the name, so that no checkpoint has it. The previous checkpoint stays on record as `previous`.

    The pointer is replaced and not deleted, so no right to delete is needed. Raises ConfigError when no
    checkpoint has the name, RunConflictError when somebody moved it at the same time.
    """
    old, had = _pointer(store, name) if _NAME.fullmatch(name) else (None, None)
    if had is None or not had.digest:
        raise ConfigError(f"--name {name}: no checkpoint has this name, so there is nothing to withdraw")
    return _move(store, replace(had, digest="", time=time.time(), by=by, depth=""), old=old, before=had)


def _pointer(store: Store, name: str) -> tuple[bytes | None, Promotion | None]:
    """Return the stored bytes of the pointer, and the parsed promotion."""
    key = promotion_key(name)
    content = store.read_object(key)
    return content, None if content is None else _parse(content, key)


def _move(store: Store, promotion: Promotion, *, old: bytes | None, before: Promotion | None) -> Promotion:
    """Replace the pointer `old`; the new one records the checkpoint that had the name before."""
    if before and before.digest:
        fields = ("run_number", "step", "digest")
        promotion = replace(promotion, previous={field: getattr(before, field) for field in fields})
    if not put_and_confirm(store, promotion_key(promotion.name), promotion.content, old=old):
        raise RunConflictError(
            f"{promotion.name} was moved by somebody else meanwhile. Check it, then try again."
        )
    return promotion


def _is_held(store: Store, promotion: Promotion) -> bool:
    """Return whether the run's manifest lists the checkpoint, and its own manifest is stored.

    Retention puts its manifest and then reads the names; this reads the manifest after the name was put.
    """
    _, manifest, _ = newest_manifest(store, promotion.run_number)
    listed = checkpoints_of(manifest) if manifest else []
    match = [each for each in listed if each.digest == promotion.digest]
    return any(each.marker is None or store.describe(each.marker.key) is not None for each in match)


def require_name(name: str) -> None:
    """Raise ConfigError when `name` cannot be given to a checkpoint."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ConfigError(
            f"{name!r}: not a valid checkpoint name; use a to z, 0 to 9 and dashes, beginning with a letter, "
            f"and none of {', '.join(_RESERVED)}"
        )


def _parse(content: bytes, key: str) -> Promotion:
    try:
        value = parse_json_object(content, key)
        if "schema" not in value:
            raise ValueError("schema is missing")
        found = validate_record(Promotion, value)
    except DamagedFileError as error:
        raise VerificationError(str(error)) from None
    except ValueError as error:
        raise VerificationError(f"{key}: not a readable pointer ({error})") from None
    if promotion_key(found.name) != key:
        raise VerificationError(f"{key}: is the pointer of {found.name!r}")
    return found
