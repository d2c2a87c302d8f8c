"""Find checkpoints among the files of a volume, and judge each one by the evidence that its format has.

    trainyard     step-00000500/ with manifest.json, which is written last and lists sizes and digests
    verl          global_step_N/ with all ranks, and latest_checkpointed_iteration.txt at N or later
    Megatron-LM   iter_0000100/ or release/ with all ranks or a DCP index, and the same tracker
    DCP           .metadata, which is written last, and every file that it names
    Hugging Face  an index of safetensors or bin files and every file that it names, or one file

The modification time of a file is ignored. A folder below a checkpoint belongs to it and is not a checkpoint
itself.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from trainyard.errors import CheckpointError
from trainyard.jobs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint, Wholeness
from trainyard.jobs.checkpoints.volume_listing import VolumeFile, VolumeListing, join_path
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, parse_checkpoint_manifest
from trainyard.run.directory import step_of

TRACKER = "latest_checkpointed_iteration.txt"
_METADATA = ".metadata"
_RELEASE = "release"
_VERL = re.compile(r"global_step_(\d{1,12})")
_MEGATRON = re.compile(r"iter_(\d{7,12})")
_FSDP = re.compile(r"(?P<part>\w+?)_world_size_(?P<world>\d{1,6})_rank_(?P<rank>\d{1,6})\.pt")
_MODEL_RANK = re.compile(r"mp_rank_(?P<tensor>\d{2,4})(?:_(?P<pipeline>\d{3,4}))?")
_STEPS = (
    re.compile(r"(?:.*[-_])?(?:step|checkpoint|ckpt|iter|epoch)[-_]?(\d{1,12})"),
    re.compile(r".*-(\d{1,12})steps"),
    re.compile(r"(\d{1,12})"),
)
"""Match `step-100`, `checkpoint-500`, `llama_v3-100steps` and `100`, but not a model's size: `llama-8`."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")
_SHARD = re.compile(r"(?:model|pytorch_model)-\d{5}-of-\d{5}\.(?:safetensors|bin)")
_SHARDS_OF_DCP = re.compile(r"__\d+_\d+\.distcp")


def find_checkpoints(listing: VolumeListing) -> list[FoundCheckpoint]:
    """All checkpoints, complete or not, sorted by run and step."""
    found: list[FoundCheckpoint] = []
    for folder in sorted(listing.folders, key=lambda each: (each.count("/"), each)):
        if any(folder == other.path or folder.startswith(f"{other.path}/") for other in found):
            continue
        checkpoint = next((made for judge in _JUDGES if (made := judge(listing, folder)) is not None), None)
        if checkpoint is not None:
            found.append(_without_truncated(checkpoint))
    return sorted(found, key=lambda each: (each.run, _order(each), each.path))


def newest_of_each_run(found: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The newest complete checkpoint of each run; weights without a step count as a run of their own."""
    newest: dict[str, FoundCheckpoint] = {}
    for each in sorted(found, key=_order):
        if each.is_complete:
            newest[each.run if each.step is not None else each.path] = each
    return [newest[run] for run in sorted(newest)]


def newest_step(found: Iterable[FoundCheckpoint]) -> int | None:
    """The greatest step of a complete checkpoint; None if there is none."""
    return max((each.step for each in found if each.is_complete and each.step is not None), default=None)


def _order(each: FoundCheckpoint) -> tuple[int, str]:
    return (-1 if each.step is None else each.step), each.path


def _without_truncated(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """Partial if a file's own format shows that its end is missing."""
    cut = [file.path for file in checkpoint.files if file.whole is False]
    if not cut or not checkpoint.is_complete:
        return checkpoint
    return replace(checkpoint, wholeness=Wholeness.PARTIAL, why=f"{cut[0]} is cut short")


def _trainyard(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    step = step_of(PurePosixPath(folder).name)
    if step is None:
        return None
    files = listing.below(folder)
    partial = FoundCheckpoint(CheckpointFormat.TRAINYARD, folder, step, files, f"no {MANIFEST_NAME}")
    manifest = listing.file(folder, MANIFEST_NAME)
    if manifest is None or manifest.text is None:
        return partial
    try:
        read = parse_checkpoint_manifest(manifest.text.encode(), manifest.path)
    except CheckpointError as error:
        return replace(partial, why=str(error))
    if read.step != step:
        return replace(partial, why=f"its {MANIFEST_NAME} is of step {read.step:,}")
    sizes = {file.path: file.size for file in files}
    wrong = [f.path for f in read.files if sizes.get(join_path(folder, f.path)) != f.size]
    if wrong:
        return replace(partial, why=f"{wrong[0]} is missing or has another size than the manifest says")
    digests = {join_path(folder, file.path): file.sha256 for file in read.files}
    why = f"all {len(read.files)} files of its manifest are there, with their sizes"
    return replace(partial, wholeness=Wholeness.COMPLETE, why=why, sha256=digests)


def _verl(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    match = _VERL.fullmatch(PurePosixPath(folder).name)
    if match is None:
        return None
    partial = FoundCheckpoint(CheckpointFormat.VERL, folder, int(match[1]), listing.below(folder), "")
    tracked = _tracked(listing, partial)
    roles = [role for role in ("actor", "critic") if join_path(folder, role) in listing.folders]
    if "actor" not in roles:
        return replace(tracked, wholeness=Wholeness.PARTIAL, why="it has no actor")
    for role in roles:
        if why := _missing_of_role(listing, join_path(folder, role)):
            return replace(tracked, wholeness=Wholeness.PARTIAL, why=f"{role}: {why}")
    return tracked


def _missing_of_role(listing: VolumeListing, folder: str) -> str:
    """The missing parts of an actor or critic: FSDP's files of all ranks, or Megatron's index."""
    for inner in (folder, join_path(folder, "dist_ckpt")):
        if listing.file(inner, _METADATA) is not None:
            return _missing_of_dcp(listing, inner)
    names = [PurePosixPath(file.path).name for file in listing.by_folder.get(folder, ())]
    ranks: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_FSDP.fullmatch, names)):
        ranks.setdefault((match["part"], int(match["world"])), set()).add(int(match["rank"]))
    if not any(part == "model" for part, _ in ranks):
        return "no file of a model"
    worlds = {world for _, world in ranks}
    if len(worlds) > 1:
        return f"files of {len(worlds)} world sizes"
    for (part, world), present in sorted(ranks.items()):
        if absent := set(range(world)) - present:
            return f"{part} of rank {min(absent)} of {world} is missing"
    return ""


def _megatron(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    name = PurePosixPath(folder).name
    match = _MEGATRON.fullmatch(name)
    if match is None and not (name == _RELEASE and _tracker_beside(listing, folder) is not None):
        return None
    step = int(match[1]) if match else None
    tracked = _tracked(
        listing, FoundCheckpoint(CheckpointFormat.MEGATRON, folder, step, listing.below(folder), "")
    )
    judge = _missing_of_model_ranks if listing.file(folder, _METADATA) is None else _missing_of_dcp
    why = judge(listing, folder)
    return replace(tracked, wholeness=Wholeness.PARTIAL, why=why) if why else tracked


def _missing_of_model_ranks(listing: VolumeListing, folder: str) -> str:
    prefix = "" if folder == "." else f"{folder}/"
    names = {f.path.removeprefix(prefix).split("/")[0] for f in listing.below(folder)}
    places = {
        (int(match["tensor"]), int(match["pipeline"] or 0))
        for match in filter(None, map(_MODEL_RANK.fullmatch, names))
    }
    if not places:
        return f"neither {_METADATA} nor folders of ranks"
    for tensor in range(max(t for t, _ in places) + 1):
        for pipeline in range(max(p for _, p in places) + 1):
            if (tensor, pipeline) not in places:
                return f"mp_rank_{tensor:02d}_{pipeline:03d} is missing"
    return ""


def _dcp(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    index = listing.file(folder, _METADATA)
    shards = [f for f in listing.by_folder.get(folder, ()) if _SHARDS_OF_DCP.fullmatch(_name(f))]
    if not shards and (index is None or not index.names):
        return None
    found = FoundCheckpoint(CheckpointFormat.DCP, folder, _number(folder), listing.below(folder), "")
    if why := _missing_of_dcp(listing, folder):
        return replace(found, why=why)
    assert index is not None
    why = f"all {len(index.names or ())} files that its {_METADATA} names are there"
    return replace(found, wholeness=Wholeness.COMPLETE, why=why)


def _missing_of_dcp(listing: VolumeListing, folder: str) -> str:
    index = listing.file(folder, _METADATA)
    if index is None:
        return f"no {_METADATA}, which is written last"
    if index.names is None:
        return f"its {_METADATA} cannot be read"
    if not index.names:
        return f"its {_METADATA} names no .distcp file"
    for name in index.names:
        file = listing.file(folder, name)
        if file is None or file.size == 0:
            return f"{name} is missing or empty"
    return ""


def _hugging_face(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    here = {_name(file): file for file in listing.by_folder.get(folder, ())}
    index = next((here[name] for name in _INDEXES if name in here), None)
    single = next((here[name] for name in _SINGLE if name in here), None)
    shards = any(_SHARD.fullmatch(name) for name in here)
    if index is None and single is None and not shards:
        return None
    files = tuple(here.values())
    found = FoundCheckpoint(CheckpointFormat.HUGGING_FACE, folder, _number(folder), files, "")
    if index is not None:
        return _by_index(found, index, here)
    if single is None:
        return replace(found, why="no index of its shards")
    if single.size == 0:
        return replace(found, why=f"{_name(single)} is empty")
    return replace(found, wholeness=Wholeness.COMPLETE, why=f"{_name(single)} is whole")


def _by_index(found: FoundCheckpoint, index: VolumeFile, here: dict[str, VolumeFile]) -> FoundCheckpoint:
    if not index.names:
        return replace(found, why=f"{_name(index)} cannot be read")
    for name in index.names:
        if name not in here or here[name].size == 0:
            return replace(found, why=f"{name} is missing or empty")
    why = f"all {len(index.names)} files of its index are there"
    return replace(found, wholeness=Wholeness.COMPLETE, why=why)


def _tracked(listing: VolumeListing, found: FoundCheckpoint) -> FoundCheckpoint:
    """Judge by the tracker beside it, in which the framework writes the last save that was completed."""
    tracker = _tracker_beside(listing, found.path)
    if tracker is None:
        return replace(found, why=f"no {TRACKER} marks it as complete")
    said = (tracker.text or "").strip()
    with_tracker = replace(found, trackers=(tracker,))
    if said == _RELEASE and found.step is None:
        return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{TRACKER} says {said}")
    if not (said.isascii() and said.isdecimal()):
        return replace(with_tracker, why=f"{TRACKER} says {said[:40]!r}, which is not a step")
    if found.step is None or int(said) < found.step:
        return replace(with_tracker, why=f"{TRACKER} says {int(said)}: this one is not complete")
    return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{TRACKER} says {int(said)}")


def _tracker_beside(listing: VolumeListing, folder: str) -> VolumeFile | None:
    return listing.file(str(PurePosixPath(folder).parent), TRACKER)


def _number(folder: str) -> int | None:
    """The step in a folder's name; None if it has none."""
    name = PurePosixPath(folder).name
    match = next((found for pattern in _STEPS if (found := pattern.fullmatch(name))), None)
    return int(match[1]) if match else None


def _name(file: VolumeFile) -> str:
    return PurePosixPath(file.path).name


_JUDGES: tuple[Callable[[VolumeListing, str], FoundCheckpoint | None], ...] = (
    _trainyard,
    _verl,
    _megatron,
    _dcp,
    _hugging_face,
)


def choose_checkpoint(
    found: Iterable[FoundCheckpoint], path: str = "", step: int | None = None
) -> FoundCheckpoint:
    """Choose a complete checkpoint: the one at this path, of this step, or the newest.

    Raises CheckpointError if there is none, or if several runs have one.
    """
    known = list(found)
    if path:
        named = [each for each in known if each.path == path.strip("/")]
        if not named:
            raise CheckpointError(f"{path}: no checkpoint; list shows those that are there")
        if not named[0].is_complete:
            raise CheckpointError(f"{named[0].path} is not complete: {named[0].why}")
        return named[0]
    if step is not None:
        known = [each for each in known if each.step == step]
    candidates = newest_of_each_run(known)
    if not candidates:
        wanted = "" if step is None else f" of step {step:,}"
        partial = f"; {known[-1].path} is not: {known[-1].why}" if known else ""
        raise CheckpointError(f"no complete checkpoint{wanted}{partial}")
    if len(candidates) > 1:
        names = ", ".join(each.path for each in candidates[:5])
        raise CheckpointError(f"several runs have checkpoints: name one with --checkpoint ({names})")
    return candidates[0]
