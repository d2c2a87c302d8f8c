"""Find checkpoints among the files of a folder, and judge each one by what its format owes.

    trainyard     step-00000500/ with manifest.json, which is written last and lists sizes and digests
    verl          global_step_N/ with model, optimizer and extra state of all ranks, data.pt, and
                  latest_checkpointed_iteration.txt at N or later
    Megatron-LM   iter_0000100/ or release/ with all ranks or a DCP index, and the same tracker
    NeMo          step=N/ with weights/ as Megatron-LM writes it, and no mark step=N-unfinished beside it
    DeepSpeed     global_stepN/ with model and, with ZeRO, optimizer of all ranks; latest at N or later
    DCP           .metadata, which is written last, and every file that it names, as long as it says
    Hugging Face  an index of safetensors or bin files and every file that it names, or one file; a
                  checkpoint-N also trainer_state.json of step N, which the Trainer writes last, or
                  random_states_*.pkl, which Accelerate writes last

This is the only table of formats: `manage_checkpoints.py` uses it for volumes, `run_program.py` for the
checkpoints of other programs. A file whose own format shows that its end is missing makes a checkpoint
partial. A file that a format does not owe may be missing. Where names do not say how many ranks there were,
the writer's own count inside its files decides, if it can be read. The modification time of a file is
ignored. A folder below a checkpoint belongs to it and is not a checkpoint itself.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from pathlib import PurePosixPath

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint, Wholeness
from trainyard.programs.checkpoints.volume_listing import VolumeFile, VolumeListing, join_path
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, parse_checkpoint_manifest
from trainyard.run.directory import step_of
from trainyard.run.untrusted_files import parse_json

TRACKER = "latest_checkpointed_iteration.txt"
DEEPSPEED_TRACKER = "latest"
_METADATA = ".metadata"
_RELEASE = "release"
_VERL = re.compile(r"global_step_(\d{1,12})")
_MEGATRON = re.compile(r"iter_(\d{7,12})")
_FSDP = re.compile(r"(?P<part>\w+?)_world_size_(?P<world>\d{1,6})_rank_(?P<rank>\d{1,6})\.pt")
_MODEL_RANK = re.compile(r"mp_rank_(\d{2,4})(?:_(\d{3,4}))?(?:_(\d{3,4}))?")
_NEMO = re.compile(r"(?:.*[-_])?step=(\d{1,12})(?:\.0)?(?:-last)?")
_MODEL_STATES = re.compile(r"(?:zero_pp_rank_(?P<rank>\d{1,6})_)?mp_rank_(?P<mp>\d{2,4})_model_states\.pt")
_OPTIMIZER_STATES = re.compile(
    r"(?P<kind>(?:[a-z]+\d+_)?zero_pp|expp)_rank_(?P<rank>\d{1,6})_mp_rank_(?P<mp>\d{2,4})_optim_states\.pt"
)
_LAYERS = re.compile(r"(?P<kind>layer_\d+-model)_(?P<rank>\d{2,4})-model_states\.pt")
_EXPERTS = re.compile(
    r"(?P<kind>(?:layer_\d+_)?expert)_(?P<rank>\d{1,6})_mp_rank_(?P<mp>\d{2,4})_model_states\.pt"
)
_DEEPSPEED_FILES = (_MODEL_STATES, _OPTIMIZER_STATES, _LAYERS, _EXPERTS)
_TRAINER = re.compile(r"checkpoint-(\d{1,12})")
_TRAINER_STATE = "trainer_state.json"
_OF_TRAINER = re.compile(r"training_args\.bin|optimizer\.pt|scheduler\.pt|rng_state(?:_\d+)?\.pth")
_OF_ACCELERATE = re.compile(r"random_states_\d+\.pkl|(?:optimizer|scheduler|sampler)(?:_\d+)?\.bin")
_RANDOM_STATES = re.compile(r"random_states_(?P<rank>\d{1,6})\.pkl")
_STAGING = re.compile(r"tmp-checkpoint-\d{1,12}")
"""The folder of older Trainers, which they rename when everything is in it."""
_TRAINER_RANK = re.compile(r"rng_state_(?P<rank>\d{1,6})\.pth")
_FSDP_FOLDERS = ("pytorch_model_fsdp_0", "optimizer_0")
_DATA_OF_VERL = re.compile(r"data(?:_(?P<rank>\d{1,6}))?\.pt")
_UNFINISHED = (".incomplete", "checkpoint-is-incomplete.txt")
"""Marks that a program removes when its checkpoint is complete."""
_STEPS = (
    re.compile(r"(?:.*[-_])?(?:step|checkpoint|ckpt|iter|epoch)[-_]?(\d{1,12})"),
    re.compile(r".*-(\d{1,12})steps"),
    re.compile(r"(\d{1,12})"),
)
"""Match `step-100`, `checkpoint-500`, `llama_v3-100steps` and `100`, but not a model's size: `llama-8`."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_SINGLE = ("model.safetensors", "pytorch_model.bin", *_ADAPTERS, "pytorch_model_fsdp.bin")
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
            found.append(_without_damage(checkpoint))
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


def _without_damage(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """Partial if a file's own format shows that its end is missing, or a mark says it is not finished."""
    if not checkpoint.is_complete or checkpoint.format is CheckpointFormat.TRAINYARD:
        return checkpoint
    staging = next((part for part in PurePosixPath(checkpoint.path).parts if _STAGING.fullmatch(part)), None)
    if staging is not None:
        why = f"{staging} has no final name yet: its save did not finish"
        return replace(checkpoint, wholeness=Wholeness.PARTIAL, why=why)
    cut = next((file.path for file in checkpoint.files if file.whole is False), None)
    mark = next((file.path for file in checkpoint.files if _name(file) in _UNFINISHED), None)
    if cut is None and mark is None:
        return checkpoint
    why = f"{cut} is cut short" if cut is not None else f"{mark} says that it is not finished"
    return replace(checkpoint, wholeness=Wholeness.PARTIAL, why=why)


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
    found = FoundCheckpoint(CheckpointFormat.VERL, folder, int(match[1]), listing.below(folder), "")
    roles = [role for role in ("actor", "critic") if join_path(folder, role) in listing.folders]
    problems: Iterator[str] = chain(
        () if "actor" in roles else ("it has no actor",),
        (f"{role}: {why}" for role in roles for why in _missing_of_role(listing, join_path(folder, role))),
        _missing_of_data(listing, folder),
    )
    return _judged(_tracked(listing, found, TRACKER), problems)


def _missing_of_role(listing: VolumeListing, folder: str) -> Iterator[str]:
    """The missing parts of an actor or critic: FSDP's files of all ranks, or Megatron's index."""
    below = ("dist_ckpt", *(f"{part}/dist_ckpt" for part in ("model", "optimizer", "extra")))
    places = (folder, *(join_path(folder, name) for name in below))
    inner = [place for place in places if _has_dcp(listing, place)]
    if inner:
        yield from chain.from_iterable(_missing_of_torch_dist(listing, each) for each in inner)
        return
    names = [_name(file) for file in listing.by_folder.get(folder, ())]
    ranks: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_FSDP.fullmatch, names)):
        ranks.setdefault((match["part"], int(match["world"])), set()).add(int(match["rank"]))
    if not any(part == "model" for part, _ in ranks):
        yield "no file of a model"
    worlds = {world for _, world in ranks}
    if len(worlds) > 1:
        yield f"files of {len(worlds)} world sizes"
    for (part, world), present in sorted(ranks.items()):
        if absent := set(range(world)) - present:
            yield f"{part} of rank {min(absent)} of {world} is missing"
    config = listing.file(folder, "fsdp_config.json")
    if config is not None and config.whole and (said := _world_of(config)) not in (None, *worlds):
        yield f"fsdp_config.json is of {said} ranks"


def _world_of(config: VolumeFile) -> int | None:
    value = parse_json((config.text or "{}").encode(), config.path)
    world = value.get("world_size") if isinstance(value, dict) else None
    return world if isinstance(world, int) else None


def _missing_of_data(listing: VolumeListing, folder: str) -> Iterator[str]:
    """The state of verl's data: one file, or a file of each data rank."""
    names = [_name(file) for file in listing.by_folder.get(folder, ())]
    found = [match for name in names if (match := _DATA_OF_VERL.fullmatch(name))]
    if not found:
        yield "data.pt is missing"
    ranks = {int(match["rank"]) for match in found if match["rank"]}
    yield from (f"data_{rank}.pt is missing" for rank in _gaps(ranks))


def _gaps(ranks: set[int], count: int = 0) -> list[int]:
    """The ranks that are missing among the first `count`, and below the greatest one."""
    return sorted(set(range(max([count, *(rank + 1 for rank in ranks)]))) - ranks)


def _megatron(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    name = PurePosixPath(folder).name
    match = _MEGATRON.fullmatch(name)
    if match is None and not (name == _RELEASE and _beside(listing, folder, TRACKER) is not None):
        return None
    step = int(match[1]) if match else None
    found = FoundCheckpoint(CheckpointFormat.MEGATRON, folder, step, listing.below(folder), "")
    judge = _missing_of_torch_dist if _has_dcp(listing, folder) else _missing_of_model_ranks
    return _judged(_tracked(listing, found, TRACKER), judge(listing, folder))


def _missing_of_torch_dist(listing: VolumeListing, folder: str) -> Iterator[str]:
    """The missing parts of a distributed checkpoint of Megatron Core: a DCP folder, and its own records.

    Its index says whether Megatron Core wrote it, and its metadata.json whether there is a common.pt.
    """
    yield from _missing_of_dcp(listing, folder)
    index, config = listing.file(folder, _METADATA), listing.file(folder, "metadata.json")
    common = listing.file(folder, "common.pt")
    if config is None and (common is not None or (index is not None and "mcore" in index.counts)):
        yield "metadata.json, which is written last, is missing"
    if config is not None and config.whole and common is None and '"common_backend"' in (config.text or ""):
        yield "common.pt is missing"


def _missing_of_model_ranks(listing: VolumeListing, folder: str) -> Iterator[str]:
    """The missing parts of Megatron's older format: a folder per tensor, pipeline and expert rank."""
    prefix = "" if folder == "." else f"{folder}/"
    held: dict[str, set[str]] = {}
    for file in listing.below(folder):
        top, _, rest = file.path.removeprefix(prefix).partition("/")
        if rest and _MODEL_RANK.fullmatch(top):
            held.setdefault(top, set()).add(rest)
    if not held:
        yield f"neither {_METADATA} nor folders of ranks"
        return
    counts = next((file.counts for file in listing.below(folder) if file.counts), {})
    yield from (f"{name} is missing" for name in _owed_ranks(held, counts) if name not in held)
    owed = {"model_optim_rng.pt", *chain.from_iterable(held.values())}
    if counts.get("use_distributed_optimizer") and not counts.get("no_save_optim"):
        owed.add("distrib_optim.pt")
    for name, files in sorted(held.items()):
        yield from (f"{name}/{file} is missing" for file in sorted(owed - files))


def _owed_ranks(held: Iterable[str], counts: Mapping[str, int]) -> Iterator[str]:
    """The folders of all ranks: as many as the writer's arguments say, or as the folders there show."""
    ranks = [
        [rank for rank in match.groups() if rank is not None]
        for match in map(_MODEL_RANK.fullmatch, held)
        if match
    ]
    width = max(map(len, ranks))
    sizes = [max(int(each[place]) for each in ranks if len(each) == width) + 1 for place in range(width)]
    known = [counts.get(f"{name}_model_parallel_size", 1) for name in ("tensor", "pipeline", "expert")]
    expected = [known[0], *(size for size in known[1:] if size > 1)]
    if len(expected) == width:
        sizes = [max(pair) for pair in zip(sizes, expected, strict=True)]
    for places in product(*map(range, sizes)):
        yield "_".join(["mp_rank", f"{places[0]:02d}", *(f"{place:03d}" for place in places[1:])])


def _nemo(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """NeMo counts steps from 0 in names. It has marks in place of a tracker."""
    name, weights = PurePosixPath(folder).name, join_path(folder, "weights")
    match = _NEMO.fullmatch(name)
    if match is None or weights not in listing.folders:
        return None
    found = FoundCheckpoint(
        CheckpointFormat.NEMO,
        folder,
        int(match[1]) + 1,
        listing.below(folder),
        f"no {name}-unfinished is beside it, and its files are there",
        wholeness=Wholeness.COMPLETE,
    )
    unfinished = _beside(listing, folder, f"{name}-unfinished")
    marks = () if unfinished is None else (f"{unfinished.path} says that it is not finished",)
    return _judged(found, chain(marks, _missing_of_torch_dist(listing, weights)))


def _deepspeed(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    names = [_name(file) for file in listing.by_folder.get(folder, ())]
    if not any(pattern.fullmatch(name) for name in names for pattern in _DEEPSPEED_FILES):
        return None
    files = listing.below(folder)
    found = FoundCheckpoint(CheckpointFormat.DEEPSPEED, folder, _number(folder), files, "")
    return _judged(_tracked(listing, found, DEEPSPEED_TRACKER), _missing_of_deepspeed(listing, folder))


def _missing_of_deepspeed(listing: VolumeListing, folder: str) -> Iterator[str]:
    """The missing files of ranks. DeepSpeed records its world and its stage of ZeRO in each model file."""
    files = listing.by_folder.get(folder, ())
    names = [_name(file) for file in files]
    counts = next((file.counts for file in files if "dp_world_size" in file.counts), {})
    models = [match for name in names if (match := _MODEL_STATES.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_STATES.fullmatch(name))]
    of_zero = [match for match in optimizers if match["kind"] != "expp"]
    if not models:
        yield "no file of a model (mp_rank_*_model_states.pt)"
        return
    world = counts.get("mics_shard_size") or counts.get("dp_world_size", 0)
    shards = [match for match in (*models, *of_zero) if match["rank"]]
    places = _gaps({int(match["mp"]) for match in (*models, *optimizers)}, counts.get("mp_world_size", 0))
    mps = sorted({*places, *(int(match["mp"]) for match in (*models, *optimizers))})
    known = {int(match["rank"]) for match in shards}
    world = max([world if shards or counts.get("stage") else 0, *(rank + 1 for rank in known)])
    model = any(match["rank"] for match in models)
    for mp in mps:
        whose = [match for match in models if int(match["mp"]) == mp]
        there = {int(match["rank"]) for match in whose if match["rank"]}
        if model:
            for rank in _gaps(there, world):
                yield f"zero_pp_rank_{rank}_mp_rank_{mp:02d}_model_states.pt of {world} ranks is missing"
        elif not whose:
            yield f"mp_rank_{mp:02d}_model_states.pt is missing"
        if of_zero or counts.get("stage"):
            there = {int(match["rank"]) for match in of_zero if int(match["mp"]) == mp}
            for rank in _gaps(there, world):
                yield f"the optimizer of rank {rank} of {world} (mp_rank_{mp:02d}) is missing"
    yield from _gaps_of_kinds(names, _LAYERS)
    yield from _gaps_of_kinds(names, _EXPERTS)
    yield from _gaps_of_kinds([name for name in names if name.startswith("expp")], _OPTIMIZER_STATES)


def _gaps_of_kinds(names: Iterable[str], pattern: "re.Pattern[str]") -> Iterator[str]:
    ranks: dict[str, set[int]] = {}
    for match in filter(None, map(pattern.fullmatch, names)):
        ranks.setdefault(match["kind"], set()).add(int(match["rank"]))
    for kind, present in sorted(ranks.items()):
        yield from (f"{kind}_{rank} is missing" for rank in _gaps(present))


def _dcp(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    index = listing.file(folder, _METADATA)
    if not _has_dcp(listing, folder):
        return None
    found = FoundCheckpoint(CheckpointFormat.DCP, folder, _number(folder), listing.below(folder), "")
    names = () if index is None else index.names or ()
    why = f"all {len(names)} files that its {_METADATA} names are there"
    return _judged(replace(found, wholeness=Wholeness.COMPLETE, why=why), _missing_of_dcp(listing, folder))


def _has_dcp(listing: VolumeListing, folder: str) -> bool:
    """Whether torch has saved here, or has begun to."""
    index = listing.file(folder, _METADATA)
    shards = (_SHARDS_OF_DCP.fullmatch(_name(file)) for file in listing.by_folder.get(folder, ()))
    return any(shards) or (index is not None and bool(index.names))


def _missing_of_dcp(listing: VolumeListing, folder: str) -> Iterator[str]:
    index = listing.file(folder, _METADATA)
    if index is None:
        yield f"no {_METADATA}, which is written last"
        return
    if index.names is None:
        yield f"its {_METADATA} cannot be read"
    elif not index.names:
        yield f"its {_METADATA} names no .distcp file"
    for name in index.names or ():
        file = listing.file(folder, name)
        if file is None or (file.size == 0 and index.ends.get(name) != 0):
            yield f"{name} is missing or empty"
        elif file.size < index.ends.get(name, 0):
            yield f"{name} is cut short: {file.size:,} bytes of {index.ends[name]:,}"


def _hugging_face(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    here = {_name(file): file for file in listing.by_folder.get(folder, ())}
    weights = any(name in here for name in (*_INDEXES, *_SINGLE)) or any(map(_SHARD.fullmatch, here))
    of_trainer = _is_of_trainer(listing, folder, here, weights=weights)
    if not weights and not of_trainer:
        return None
    files = listing.below(folder) if of_trainer else tuple(here.values())
    why, problems = _weights(listing, folder, here)
    found = FoundCheckpoint(CheckpointFormat.HUGGING_FACE, folder, _number(folder), files, why)
    found = replace(found, wholeness=Wholeness.COMPLETE)
    owed = _missing_of_trainer(listing, found, here) if of_trainer else _missing_of_accelerate(folder, here)
    return _judged(found, chain(problems, owed))


def _weights(
    listing: VolumeListing, folder: str, here: Mapping[str, VolumeFile]
) -> tuple[str, Iterable[str]]:
    """The sign that the weights are there, and what is missing of them."""
    index = next((here[name] for name in _INDEXES if name in here), None)
    if index is not None:
        return f"all {len(index.names or ())} files of its index are there", _missing_of_index(index, here)
    single = next((here[name] for name in _SINGLE if name in here), None)
    if single is not None:
        name = _name(single)
        problems = [f"{name} is empty"] if single.size == 0 else []
        lone = name in _ADAPTERS and "adapter_config.json" not in here
        return f"{name} is whole", [*problems, *(["adapter_config.json is missing"] if lone else [])]
    if any(map(_SHARD.fullmatch, here)):
        return "", ["no index of its shards"]
    tracker, fsdp = here.get(DEEPSPEED_TRACKER), join_path(folder, _FSDP_FOLDERS[0])
    if tracker is not None:
        return "its files of DeepSpeed are there", ()
    if fsdp in listing.folders:
        inner = [each for name in _FSDP_FOLDERS if (each := join_path(folder, name)) in listing.folders]
        return "its files of FSDP are there", chain.from_iterable(
            _missing_of_dcp(listing, each) for each in inner
        )
    return "", ["no weights"]


def _missing_of_index(index: VolumeFile, here: Mapping[str, VolumeFile]) -> Iterator[str]:
    if not index.names:
        yield f"{_name(index)} cannot be read"
    for name in index.names or ():
        if name not in here or here[name].size == 0:
            yield f"{name} is missing or empty"


def _is_of_trainer(listing: VolumeListing, folder: str, here: Iterable[str], *, weights: bool) -> bool:
    """Whether transformers' Trainer wrote it: by its own files, or by weights that Accelerate did not write.

    A Trainer that is killed in its first save leaves weights and nothing else.
    """
    if not _TRAINER.fullmatch(PurePosixPath(folder).name):
        return False
    if any(name == _TRAINER_STATE or _OF_TRAINER.fullmatch(name) for name in here):
        return True
    if any(join_path(folder, name) in listing.folders for name in _FSDP_FOLDERS):
        return True
    if any(map(_OF_ACCELERATE.fullmatch, here)):
        return False
    return weights or any(
        _TRAINER.fullmatch(PurePosixPath(other).name)
        and PurePosixPath(other).parent == PurePosixPath(folder).parent
        and listing.file(other, _TRAINER_STATE) is not None
        for other in listing.folders
    )


def _missing_of_accelerate(folder: str, here: Iterable[str]) -> Iterator[str]:
    """What Accelerate owes in a checkpoint-N: the state of random numbers of each process, always last."""
    ranks = {int(match["rank"]) for match in map(_RANDOM_STATES.fullmatch, here) if match}
    if not ranks and _TRAINER.fullmatch(PurePosixPath(folder).name):
        yield "random_states_0.pkl, which is written last, is missing"
    yield from (f"random_states_{rank}.pkl is missing" for rank in _gaps(ranks))


def _missing_of_trainer(
    listing: VolumeListing, found: FoundCheckpoint, here: Mapping[str, VolumeFile]
) -> Iterator[str]:
    """What the Trainer owes beside weights. It writes no optimizer with `save_only_model`."""
    state = here.get(_TRAINER_STATE)
    if state is None:
        yield f"{_TRAINER_STATE}, which is written last, is missing"
    elif state.whole and state.text != str(found.step):
        yield f"{_TRAINER_STATE} is of step {state.text or 'unknown'}"
    if DEEPSPEED_TRACKER in here:
        yield from _missing_of_tagged(listing, found.path, here[DEEPSPEED_TRACKER])
    random = {name for name in here if re.fullmatch(r"rng_state(?:_\d+)?\.pth", name)}
    ranks = {int(match["rank"]) for match in map(_TRAINER_RANK.fullmatch, random) if match}
    yield from (f"rng_state_{rank}.pth is missing" for rank in _gaps(ranks))
    elsewhere = DEEPSPEED_TRACKER in here or any("/optimizer_0/" in file.path for file in found.files)
    trained = [name for name in ("optimizer.pt", "optimizer.bin", "scheduler.pt") if name in here]
    if not (trained or random or elsewhere):
        return
    if not elsewhere and not {"optimizer.pt", "optimizer.bin"} & set(trained):
        yield "optimizer.pt is missing"
    if DEEPSPEED_TRACKER not in here and "scheduler.pt" not in here:
        yield "scheduler.pt is missing"
    if not random:
        yield "rng_state.pth is missing"


def _missing_of_tagged(listing: VolumeListing, folder: str, tracker: VolumeFile) -> Iterator[str]:
    """The missing parts of DeepSpeed's folder in a checkpoint of the Trainer, which `latest` names there."""
    tag = (tracker.text or "").strip()
    inner = _deepspeed(listing, join_path(folder, tag)) if tag and "/" not in tag else None
    if inner is None:
        yield f"{tracker.path} names {tag[:40]!r}, which is not there"
    elif not inner.is_complete:
        yield f"{tag}: {inner.why}"


def _judged(found: FoundCheckpoint, problems: Iterable[str]) -> FoundCheckpoint:
    """The checkpoint, partial if there is a problem; the first one is the reason."""
    why = next(iter(problems), None)
    return found if why is None else replace(found, wholeness=Wholeness.PARTIAL, why=why)


def _tracked(listing: VolumeListing, found: FoundCheckpoint, name: str) -> FoundCheckpoint:
    """Judge by the tracker beside it, in which the framework writes the last save that was completed."""
    tracker = _beside(listing, found.path, name)
    if tracker is None:
        return replace(found, why=f"no {name} marks it as complete")
    said = (tracker.text or "").strip()
    with_tracker = replace(found, trackers=(tracker,))
    tagged = name == DEEPSPEED_TRACKER
    if said == PurePosixPath(found.path).name if tagged else said == _RELEASE and found.step is None:
        return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{name} says {said}")
    step = _number(said) if tagged else int(said) if said.isascii() and said.isdecimal() else None
    if step is None:
        return replace(with_tracker, why=f"{name} says {said[:40]!r}, which is not a step")
    if found.step is None or step < found.step:
        return replace(with_tracker, why=f"{name} says {step}: this one is not complete")
    return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{name} says {step}")


def _beside(listing: VolumeListing, folder: str, name: str) -> VolumeFile | None:
    return listing.file(str(PurePosixPath(folder).parent), name)


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
    _nemo,
    _deepspeed,
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
