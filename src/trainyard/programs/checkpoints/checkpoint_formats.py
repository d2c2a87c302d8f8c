"""Find checkpoints among the files of a folder, and judge each one by the files that its format requires.

    trainyard     step-00000500/ with manifest.json, which is written last and lists sizes and digests
    verl          global_step_N/ with model, optimizer and extra state of all ranks, data.pt, and
                  latest_checkpointed_iteration.txt at N or later
    Megatron-LM   iter_0000100/ or release/ with all ranks or a DCP index, and the same tracker
    NeMo          step=N/ with weights/ as Megatron-LM writes it, and no mark step=N-unfinished beside it
    DeepSpeed     global_stepN/ with model and, with ZeRO, optimizer of all ranks; latest at N or later
    DCP           .metadata, which is written last, and every file that it names, as long as it states
    Hugging Face  an index of safetensors or bin files and every file that it names, or one file; a
                  checkpoint-N also trainer_state.json of step N, which the Trainer writes last
    Accelerate    weights, and random_states_*.pkl, which is written last
    Lightning     N.ckpt: one file, or a folder of DCP with meta.pt or of DeepSpeed
    AutoModel     epoch_E_step_S/ with model/ and without .incomplete; S counts from 0
    OLMo-core     stepN/ with .metadata.json, which is written last, train/rank0.pt and model_and_optim/
    Composer      epE-baN-rank0.pt that latest-rank0.pt names, or an older one; or a folder of DCP
    nanoGPT       ckpt.pt, one file; its step is inside
    nanochat      model_N.pt, meta_N.json of step N, optim_N_rank*.pt of all ranks, in one folder
    one file      *.pt, *.pth, *.bin of torch.save, or *.safetensors

This is the only table of formats: `trainyard job checkpoints` uses its folders for volumes, and
`program_checkpoints` uses folders and files for the checkpoints of other programs. In every format an empty
or truncated file, a temporary name and a mark of an unfinished save make a checkpoint partial. A file that
the format does not require may be missing. If names do not show the number of ranks, the number that the
writer recorded in its files counts, if it can be read. A folder below a checkpoint belongs to it and is not a
checkpoint itself. Only `judge_checkpoint` uses the modification times of files: on a volume a copy may have
changed them. `resumable_checkpoints` says from which complete checkpoints training resumes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from pathlib import PurePosixPath

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint, Wholeness
from trainyard.programs.checkpoints.resumable_checkpoints import with_resumability
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
_AUTOMODEL = re.compile(r"epoch_\d{1,9}_step_(\d{1,12})")
_OLMO = re.compile(r"step(\d{1,12})")
_COMPOSER = re.compile(r"ep\d{1,9}-ba\d{1,12}")
_COMPOSER_FILE = re.compile(r"ep\d{1,9}-ba(?P<batch>\d{1,12})-rank(?P<rank>\d{1,6})\.pt")
_NANOCHAT = re.compile(r"(?:model|meta|optim)_(?P<number>\d{6})(?:_rank(?P<rank>\d{1,6}))?\.(?:pt|json)")
_OF_NANOCHAT = re.compile(r"meta_\d{6}\.json|optim_\d{6}_rank\d{1,6}\.pt")
"""Files that show that nanochat wrote into the folder; other programs name a file model_000100.pt too."""
_FOLDER_OF_LIGHTNING = "checkpoint"
"""Inside the folder that Lightning saves with DeepSpeed."""
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
_CHECKPOINT_OF_ACCELERATE = re.compile(r"checkpoint[-_]\d{1,12}")
_RANDOM_STATES = re.compile(r"random_states_(?P<rank>\d{1,6})\.pkl")
# Folders that older Trainers and OLMo-core rename when all files are in them.
_STAGING = re.compile(r"tmp-checkpoint-\d{1,12}|.*\d(?:-tmp|\.tmp)")
_TMP = re.compile(r".*(?:-tmp|\.tmp)")
_TEMPORARY = re.compile(
    r"\.tmp.*|.*\.tmp|tmp[a-z0-9_]{8}(?:\..*)?|.*\.incomplete|checkpoint-is-incomplete\.txt"
)
"""Names that a program gives to a file until it is written, and marks that it removes after its save."""
_NEVER_EMPTY = {".pt", ".pth", ".bin", ".pkl", ".ckpt", ".safetensors", ".json", ".metadata"}
_TRAINER_RANK = re.compile(r"rng_state_(?P<rank>\d{1,6})\.pth")
_FSDP_FOLDERS = ("pytorch_model_fsdp_0", "optimizer_0")
_DATA_OF_VERL = re.compile(r"data(?:_(?P<rank>\d{1,6}))?\.pt")
_NUMBER = re.compile(r"(?:(epoch|(?<![a-z])ep)[-_=]?)?(\d{1,12})", re.IGNORECASE)
_STEPS = (
    re.compile(r"(?:.*[-_])?(?:step|checkpoint|ckpt|iter|epoch)[-_]?(\d{1,12})"),
    re.compile(r".*-(\d{1,12})steps"),
    re.compile(r"ep\d+-ba(\d{1,12})"),
    re.compile(r".*\bstep=(\d{1,12}).*\.ckpt"),
    re.compile(r"(\d{1,12})"),
)
"""Match `step-100`, `checkpoint-500`, `llama_v3-100steps` and `100`, but not a model's size: `llama-8`."""
_CLOCK_SECONDS = 0.2
"""How much the clocks of the machines that write one checkpoint may differ."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_SINGLE = ("model.safetensors", "pytorch_model.bin", *_ADAPTERS, "pytorch_model_fsdp.bin")
_SHARD = re.compile(r"(?:model|pytorch_model)-\d{5}-of-\d{5}\.(?:safetensors|bin)")
_SHARDS_OF_DCP = re.compile(r"__\d+_\d+\.distcp")


def find_checkpoints(listing: VolumeListing) -> list[FoundCheckpoint]:
    """Return all checkpoints, complete or not, sorted by run and step."""
    found: list[FoundCheckpoint] = []
    for folder in sorted(listing.folders, key=lambda each: (each.count("/"), each)):
        if any(folder == other.path or folder.startswith(f"{other.path}/") for other in found):
            continue
        checkpoint = next((made for judge in _JUDGES if (made := judge(listing, folder)) is not None), None)
        if checkpoint is not None:
            found.append(with_resumability(listing, _without_damage(checkpoint)))
    return sorted(found, key=lambda each: (each.run, _order(each), each.path))


def judge_checkpoint(
    listing: VolumeListing,
    path: str,
    *,
    world_size: int | None = None,
    formats: Collection[CheckpointFormat] | None = None,
) -> FoundCheckpoint | None:
    """Judge the folder or file at `path`; None if no format, or none of `formats`, is recognised there.

    It also compares the times of the files, so they must be the original ones. `world_size` is the number of
    processes that wrote it.
    """
    judges = _JUDGES if path in listing.folders else _FILE_JUDGES
    for judge in judges:
        made = judge(listing, path)
        if made is not None and (formats is None or made.format in formats):
            return with_resumability(listing, _not_saved_again(_without_damage(made)), world_size)
    return None


def newest_of_each_run(found: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """Return the newest complete checkpoint of each run; weights without a step count as a run each."""
    newest: dict[str, FoundCheckpoint] = {}
    for each in sorted(found, key=_order):
        if each.is_complete:
            newest[each.run if each.step is not None else each.path] = each
    return [newest[run] for run in sorted(newest)]


def newest_step(found: Iterable[FoundCheckpoint]) -> int | None:
    """Return the greatest step of a complete checkpoint; None if there is none."""
    return max((each.step for each in found if each.is_complete and each.step is not None), default=None)


def _order(each: FoundCheckpoint) -> tuple[int, str]:
    return (-1 if each.step is None else each.step), each.path


def _without_damage(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """Return the checkpoint, as partial if a file is empty or cut short, or a name or mark is unfinished."""
    if not checkpoint.is_complete or checkpoint.format is CheckpointFormat.TRAINYARD:
        return checkpoint
    parts = PurePosixPath(checkpoint.path).parts
    own_name = (part for part in parts[-1:] if _TMP.fullmatch(part))
    staging = next(chain(filter(_STAGING.fullmatch, parts), own_name), None)
    if staging is not None:
        why = f"{staging} is still a temporary name: its save did not finish"
        return replace(checkpoint, wholeness=Wholeness.PARTIAL, why=why)
    return _judged(
        checkpoint, chain.from_iterable(_damage(checkpoint.path, each) for each in checkpoint.files)
    )


def _damage(path: str, file: VolumeFile) -> Iterator[str]:
    """The sign in one file that the checkpoint at `path` is not finished or damaged."""
    if any(map(_TEMPORARY.fullmatch, PurePosixPath(file.path.removeprefix(f"{path}/")).parts)):
        yield f"{file.path} shows that its save did not finish"
    elif file.size == 0 and (PurePosixPath(file.path).suffix in _NEVER_EMPTY or _name(file) == _METADATA):
        yield f"{file.path} is empty"
    elif file.whole is False:
        yield f"{file.path} is cut short"


def _not_saved_again(checkpoint: FoundCheckpoint) -> FoundCheckpoint:
    """Return the checkpoint, as partial if a shard is newer than its index, which is then of another save."""
    problems = (
        f"{file.path} is newer than the {_METADATA} beside it: the folder is being saved again, or was copied"
        for index in checkpoint.files
        if _name(index) == _METADATA
        for file in checkpoint.files
        if _name(file) in (index.names or ())
        and PurePosixPath(file.path).parent == PurePosixPath(index.path).parent
        and file.modified > index.modified + _CLOCK_SECONDS
    )
    return _judged(checkpoint, problems) if checkpoint.is_complete else checkpoint


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
    """Yield the missing parts of an actor or critic: FSDP's files of all ranks, or Megatron's index."""
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
        yield "no model file"
    worlds = {world for _, world in ranks}
    if len(worlds) > 1:
        yield f"files of {len(worlds)} different world sizes"
    for (part, world), present in sorted(ranks.items()):
        if absent := set(range(world)) - present:
            yield f"{part} of rank {min(absent)} of {world} is missing"
    config = listing.file(folder, "fsdp_config.json")
    if config is not None and config.whole and (stated := _world_of(config)) not in (None, *worlds):
        yield f"fsdp_config.json is of {stated} ranks"


def _world_of(config: VolumeFile) -> int | None:
    value = parse_json((config.text or "{}").encode(), config.path)
    world = value.get("world_size") if isinstance(value, dict) else None
    return world if isinstance(world, int) else None


def _missing_of_data(listing: VolumeListing, folder: str) -> Iterator[str]:
    """Yield the missing files of verl's data state: one file, or one of each data rank."""
    names = [_name(file) for file in listing.by_folder.get(folder, ())]
    found = [match for name in names if (match := _DATA_OF_VERL.fullmatch(name))]
    if not found:
        yield "data.pt is missing"
    ranks = {int(match["rank"]) for match in found if match["rank"]}
    yield from (f"data_{rank}.pt is missing" for rank in _gaps(ranks))


def _gaps(ranks: set[int], count: int = 0) -> list[int]:
    """Return the missing ranks among the first `count` ranks and below the greatest one."""
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
    """Yield the missing parts of a distributed checkpoint of Megatron Core: a DCP folder and its own records.

    Its index shows whether Megatron Core wrote it, and its metadata.json whether there is a common.pt.
    """
    yield from _missing_of_dcp(listing, folder)
    index, config = listing.file(folder, _METADATA), listing.file(folder, "metadata.json")
    common = listing.file(folder, "common.pt")
    if config is None and (common is not None or (index is not None and "mcore" in index.counts)):
        yield "metadata.json, which is written last, is missing"
    if config is not None and config.whole and common is None and '"common_backend"' in (config.text or ""):
        yield "common.pt is missing"


def _missing_of_model_ranks(listing: VolumeListing, folder: str) -> Iterator[str]:
    """Yield the missing parts of Megatron's older format: a folder per tensor, pipeline and expert rank."""
    prefix = "" if folder == "." else f"{folder}/"
    held: dict[str, set[str]] = {}
    for file in listing.below(folder):
        top, _, rest = file.path.removeprefix(prefix).partition("/")
        if rest and _MODEL_RANK.fullmatch(top):
            held.setdefault(top, set()).add(rest)
    if not held:
        yield f"neither {_METADATA} nor folders of ranks"
        return
    counts = next(
        (file.counts for file in listing.below(folder) if "tensor_model_parallel_size" in file.counts), {}
    )
    yield from (f"{name} is missing" for name in _expected_ranks(held, counts) if name not in held)
    owed = {"model_optim_rng.pt", *chain.from_iterable(held.values())}
    if counts.get("use_distributed_optimizer") and not counts.get("no_save_optim"):
        owed.add("distrib_optim.pt")
    for name, files in sorted(held.items()):
        yield from (f"{name}/{file} is missing" for file in sorted(owed - files))


def _expected_ranks(held: Iterable[str], counts: Mapping[str, int]) -> Iterator[str]:
    """Yield the folders of all ranks: as many as the writer's arguments or the existing folders show."""
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
    """Judge a folder of NeMo, which counts steps from 0 in names, and has marks instead of a tracker."""
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
    marks = () if unfinished is None else (f"{unfinished.path} shows that its save did not finish",)
    return _judged(found, chain(marks, _missing_of_torch_dist(listing, weights)))


def _deepspeed(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    names = [_name(file) for file in listing.by_folder.get(folder, ())]
    if not any(pattern.fullmatch(name) for name in names for pattern in _DEEPSPEED_FILES):
        return None
    files = listing.below(folder)
    found = FoundCheckpoint(CheckpointFormat.DEEPSPEED, folder, _number(folder), files, "")
    return _judged(_tracked(listing, found, DEEPSPEED_TRACKER), _missing_of_deepspeed(listing, folder))


def _missing_of_deepspeed(listing: VolumeListing, folder: str) -> Iterator[str]:
    """Yield the missing files of ranks. Each model file of DeepSpeed has its world size and ZeRO stage."""
    files = listing.by_folder.get(folder, ())
    names = [_name(file) for file in files]
    counts = next((file.counts for file in files if "dp_world_size" in file.counts), {})
    models = [match for name in names if (match := _MODEL_STATES.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_STATES.fullmatch(name))]
    of_zero = [match for match in optimizers if match["kind"] != "expp"]
    if not models:
        yield "no model file (mp_rank_*_model_states.pt)"
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
    """Return whether torch has saved here, or has started to."""
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
    if not of_trainer and _is_of_accelerate(folder, here, weights=weights):
        return _accelerate(listing, folder, here)
    if not weights and not of_trainer:
        return None
    files = listing.below(folder) if of_trainer else tuple(here.values())
    why, problems = _weights(listing, folder, here)
    found = FoundCheckpoint(CheckpointFormat.HUGGING_FACE, folder, _number(folder), files, why)
    # The ranks of a Trainer save their random states without waiting for each other.
    several = any(map(_TRAINER_RANK.fullmatch, here))
    found = replace(found, wholeness=Wholeness.COMPLETE, needs_quiet=several)
    owed = _missing_of_trainer(listing, found, here) if of_trainer else ()
    return _judged(found, chain(problems, owed))


def _is_of_accelerate(folder: str, here: Iterable[str], *, weights: bool) -> bool:
    """Return whether `Accelerator.save_state` wrote it."""
    named = weights or _CHECKPOINT_OF_ACCELERATE.fullmatch(PurePosixPath(folder).name)
    return any(_RANDOM_STATES.fullmatch(name) or (named and _OF_ACCELERATE.fullmatch(name)) for name in here)


def _accelerate(listing: VolumeListing, folder: str, here: Mapping[str, VolumeFile]) -> FoundCheckpoint:
    """Judge a folder of Accelerate; checkpoint_N and epoch_N count saves or epochs, not steps."""
    name = PurePosixPath(folder).name
    step = None if re.fullmatch(r"(?:checkpoint_|epoch[-_]?)\d+", name) else _number(folder)
    files = listing.below(folder)
    why, problems = _weights(listing, folder, here)
    other = [file for file in files if not _SHARD.fullmatch(_name(file))]
    if not why and any(PurePosixPath(file.path).suffix == ".safetensors" for file in other):
        # Scripts of diffusers save each model in a folder of its own.
        why, problems = "its weights are there", ()
    tracker = here.get(DEEPSPEED_TRACKER)
    tagged = () if tracker is None else _missing_of_tagged(listing, folder, tracker)
    ranks = {int(match["rank"]) for match in map(_RANDOM_STATES.fullmatch, here) if match}
    last = () if ranks else ("random_states_0.pkl, which is written last, is missing",)
    absent = (f"random_states_{rank}.pkl is missing" for rank in _gaps(ranks))
    found = FoundCheckpoint(
        CheckpointFormat.ACCELERATE, folder, step, files, why, Wholeness.COMPLETE, needs_quiet=True
    )
    return _judged(found, chain(problems, tagged, last, absent))


def _weights(
    listing: VolumeListing, folder: str, here: Mapping[str, VolumeFile]
) -> tuple[str, Iterable[str]]:
    """Return the sign that the weights are there, and their missing parts."""
    index = next((here[name] for name in _INDEXES if name in here), None)
    if index is not None:
        missing = _missing_of_index(index, here)
        return f"all {len(index.names or ())} files of its index are there", missing
    single = next((here[name] for name in _SINGLE if name in here), None)
    if single is not None:
        name = _name(single)
        problems = [f"{name} is empty"] if single.size == 0 else []
        lone = name in _ADAPTERS and "adapter_config.json" not in here
        return f"{name} is complete", [*problems, *(["adapter_config.json is missing"] if lone else [])]
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
    """Return whether transformers' Trainer wrote it: by its own files, or by weights that Accelerate did not
    write.

    A Trainer that is killed in its first save leaves weights and nothing else.
    """
    if not _TRAINER.fullmatch(PurePosixPath(folder).name) or any(map(_RANDOM_STATES.fullmatch, here)):
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


def _missing_of_trainer(
    listing: VolumeListing, found: FoundCheckpoint, here: Mapping[str, VolumeFile]
) -> Iterator[str]:
    """Yield the missing files besides weights. The Trainer writes no optimizer with `save_only_model`."""
    state = here.get(_TRAINER_STATE)
    if state is None:
        yield f"{_TRAINER_STATE}, which is written last, is missing"
    elif state.whole and state.text != str(found.step):
        yield f"{_TRAINER_STATE} is of step {state.text or 'unknown'}"
    if DEEPSPEED_TRACKER in here:
        yield from _missing_of_tagged(listing, found.path, here[DEEPSPEED_TRACKER])
    index = next((here[name] for name in _INDEXES if name in here), None)
    if index is not None and "total_size" in index.counts:
        shards = [here[name] for name in index.names or () if name in here]
        sizes = [file.counts["tensor_bytes"] for file in shards if "tensor_bytes" in file.counts]
        if len(sizes) == len(shards) and sum(sizes) != index.counts["total_size"]:
            yield (
                f"{_name(index)} is of another save: its tensors have {index.counts['total_size']:,} bytes, "
                f"the files {sum(sizes):,}"
            )
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
    """Yield the missing parts of DeepSpeed's folder, which `latest` names, in a checkpoint of the Trainer."""
    tag = (tracker.text or "").strip()
    inner = _deepspeed(listing, join_path(folder, tag)) if tag and "/" not in tag else None
    if inner is None:
        yield f"{tracker.path} names {tag[:40]!r}, which is not there"
    elif not inner.is_complete:
        yield f"{tag}: {inner.why}"


def _lightning(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """Judge Lightning's folder of FSDP, in which meta.pt is written last, or of DeepSpeed."""
    inner = join_path(folder, _FOLDER_OF_LIGHTNING)
    if PurePosixPath(folder).suffix != ".ckpt":
        return None
    found = FoundCheckpoint(CheckpointFormat.LIGHTNING, folder, _number(folder), listing.below(folder), "")
    if (saved := _deepspeed(listing, inner)) is not None:
        return replace(found, wholeness=saved.wholeness, why=f"{_FOLDER_OF_LIGHTNING}: {saved.why}")
    if not _has_dcp(listing, folder):
        return None
    meta = () if listing.file(folder, "meta.pt") else ("meta.pt, which is written last, is missing",)
    found = replace(found, wholeness=Wholeness.COMPLETE, why="meta.pt and its files of FSDP are there")
    return _judged(found, chain(_missing_of_dcp(listing, folder), meta))


def _automodel(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """Judge a folder of NeMo AutoModel, which counts steps from 0 in names."""
    match = _AUTOMODEL.fullmatch(PurePosixPath(folder).name)
    parts = [join_path(folder, name) for name in ("model", "optim")]
    marked = listing.file(folder, ".incomplete") is not None
    if match is None or not (marked or any(part in listing.folders for part in parts)):
        return None
    found = FoundCheckpoint(
        CheckpointFormat.AUTOMODEL,
        folder,
        int(match[1]) + 1,
        listing.below(folder),
        "no .incomplete is in it, and its files are there",
        wholeness=Wholeness.COMPLETE,
    )
    marks = (f"{folder}/.incomplete shows that its save did not finish",) if marked else ()
    inner = [part for part in parts if _has_dcp(listing, part)]
    owed = chain.from_iterable(_missing_of_dcp(listing, part) for part in inner)
    if parts[0] in inner:
        return _judged(found, chain(marks, owed))
    here = {_name(file): file for file in listing.by_folder.get(parts[0], ())}
    index = next((here[name] for name in _INDEXES if name in here), None)
    tensors = any(PurePosixPath(file.path).suffix == ".safetensors" for file in listing.below(parts[0]))
    weights = () if tensors else ("model/ has no weights",)
    if index is None and any(map(_SHARD.fullmatch, here)):
        weights = ("model/ has no index of its shards",)
    return _judged(found, chain(marks, weights, _missing_of_index(index, here) if index else (), owed))


def _olmo_core(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    match = _OLMO.fullmatch(PurePosixPath(folder).name)
    weights = join_path(folder, "model_and_optim")
    mark = listing.file(folder, ".metadata.json")
    if match is None or (mark is None and weights not in listing.folders):
        return None
    found = FoundCheckpoint(
        CheckpointFormat.OLMO_CORE,
        folder,
        int(match[1]),
        listing.below(folder),
        ".metadata.json and its files are there",
        wholeness=Wholeness.COMPLETE,
    )
    first = listing.file(join_path(folder, "train"), "rank0.pt")
    marks = () if mark is not None else (".metadata.json, which is written last, is missing",)
    state = () if first is not None else ("train/rank0.pt is missing",)
    return _judged(found, chain(marks, state, _missing_of_dcp(listing, weights)))


def _composer_folder(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    if not _COMPOSER.fullmatch(PurePosixPath(folder).name):
        return None
    saved = _dcp(listing, folder)
    return None if saved is None else replace(saved, format=CheckpointFormat.COMPOSER)


def _composer_file(listing: VolumeListing, path: str) -> FoundCheckpoint | None:
    """Judge a file of Composer, which makes latest-rankN.pt, a link to the file, after writing the file."""
    match = _COMPOSER_FILE.fullmatch(PurePosixPath(path).name)
    file = listing.file(".", path)
    if match is None or file is None:
        return None
    found = _one_file(file, CheckpointFormat.COMPOSER, int(match["batch"]))
    target = PurePosixPath(listing.links.get(f"latest-rank{match['rank']}.pt", "")).name
    latest = _COMPOSER_FILE.fullmatch(target)
    if latest is not None and int(latest["batch"]) < int(match["batch"]):
        why = f"latest-rank{match['rank']}.pt names {target}, so this one is not complete"
        return replace(found, wholeness=Wholeness.PARTIAL, why=why)
    return found


def _nanochat(listing: VolumeListing, path: str) -> FoundCheckpoint | None:
    """Judge the files of one step of nanochat; the path of the checkpoint is its model file."""
    match = _NANOCHAT.fullmatch(PurePosixPath(path).name)
    here = listing.by_folder.get(".", ())
    if match is None or not any(_OF_NANOCHAT.fullmatch(_name(file)) for file in here):
        return None
    number = match["number"]
    group = [file for file in here if (m := _NANOCHAT.fullmatch(_name(file))) and m["number"] == number]
    names = {file.path for file in group}
    model, meta = f"model_{number}.pt", listing.file(".", f"meta_{number}.json")
    ranks = {int(m["rank"]) for name in names if (m := _NANOCHAT.fullmatch(name)) and m["rank"]}
    problems = [f"{name} is missing" for name in (model, f"meta_{number}.json") if name not in names]
    problems += [f"optim_{number}_rank{rank}.pt is missing" for rank in _gaps(ranks)]
    if meta is not None and meta.whole and meta.text != str(int(number)):
        problems.append(f"{meta.path} is of step {meta.text or 'unknown'}")
    found = FoundCheckpoint(
        CheckpointFormat.NANOCHAT,
        model,
        int(number),
        tuple(group),
        "its files are there",
        wholeness=Wholeness.COMPLETE,
        needs_quiet=True,
    )
    return _judged(found, problems)


def _lightning_file(listing: VolumeListing, path: str) -> FoundCheckpoint | None:
    """Judge a file of Lightning, which has the step inside, and by default in its name."""
    file = listing.file(".", path)
    if file is None or PurePosixPath(path).suffix != ".ckpt":
        return None
    match = re.search(r"\bstep=(\d{1,12})", path)
    return _one_file(
        file, CheckpointFormat.LIGHTNING, file.counts.get("global_step", match and int(match[1]))
    )


def _nanogpt_file(listing: VolumeListing, path: str) -> FoundCheckpoint | None:
    file = listing.file(".", path)
    if file is None or PurePosixPath(path).suffix != ".pt":
        return None
    if "iter_num" not in file.counts and path != "ckpt.pt":
        return None
    return _one_file(file, CheckpointFormat.NANOGPT, file.counts.get("iter_num"))


def _plain_file(listing: VolumeListing, path: str) -> FoundCheckpoint | None:
    """Judge a file of another program. Its step is the last number of its name, unless that counts epochs."""
    file = listing.file(".", path)
    if file is None or PurePosixPath(path).suffix not in (".pt", ".pth", ".bin", ".safetensors"):
        return None
    form = CheckpointFormat.TORCH_SAVE
    if PurePosixPath(path).suffix == ".safetensors":
        form = CheckpointFormat.SAFETENSORS
    numbers = list(_NUMBER.finditer(PurePosixPath(path).stem))
    step = None if not numbers or numbers[-1][1] else int(numbers[-1][2])
    return _one_file(file, form, step)


def _one_file(file: VolumeFile, form: CheckpointFormat, step: int | None) -> FoundCheckpoint:
    """Return a checkpoint of one file, which is complete if its own format shows its end."""
    found = FoundCheckpoint(
        form, file.path, step, (file,), f"the end of {file.path} is there", needs_quiet=True
    )
    if file.whole is None:
        return replace(
            found,
            why=f"nothing shows that {file.path} is complete: it is not a zip archive of torch.save",
        )
    return replace(found, wholeness=Wholeness.COMPLETE)  # `_without_damage` judges its end


def _judged(found: FoundCheckpoint, problems: Iterable[str]) -> FoundCheckpoint:
    """Return the checkpoint, as partial if there is a problem; the first one is the reason."""
    why = next(iter(problems), None)
    return found if why is None else replace(found, wholeness=Wholeness.PARTIAL, why=why)


def _tracked(listing: VolumeListing, found: FoundCheckpoint, name: str) -> FoundCheckpoint:
    """Judge by the tracker beside the checkpoint, in which the framework writes its last complete save."""
    tracker = _beside(listing, found.path, name)
    if tracker is None:
        return replace(found, why=f"no {name} marks it as complete")
    stated = (tracker.text or "").strip()
    with_tracker = replace(found, trackers=(tracker,))
    tagged = name == DEEPSPEED_TRACKER
    if stated == PurePosixPath(found.path).name if tagged else stated == _RELEASE and found.step is None:
        return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{name} says {stated}")
    step = _number(stated) if tagged else int(stated) if stated.isascii() and stated.isdecimal() else None
    if step is None:
        return replace(with_tracker, why=f"{name} says {stated[:40]!r}, which is not a step")
    if found.step is None or step < found.step:
        return replace(with_tracker, why=f"{name} says {step}, so this one is not complete")
    return replace(with_tracker, wholeness=Wholeness.COMPLETE, why=f"{name} says {step}")


def _beside(listing: VolumeListing, folder: str, name: str) -> VolumeFile | None:
    return listing.file(str(PurePosixPath(folder).parent), name)


def _number(folder: str) -> int | None:
    """Return the step in a folder's name; None if it has none."""
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
    _automodel,
    _olmo_core,
    _lightning,
    _composer_folder,
    _deepspeed,
    _dcp,
    _hugging_face,
)
_FILE_JUDGES: tuple[Callable[[VolumeListing, str], FoundCheckpoint | None], ...] = (
    _composer_file,
    _nanochat,
    _lightning_file,
    _nanogpt_file,
    _plain_file,
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
            raise CheckpointError(f"{path}: no such checkpoint; the command list shows the checkpoints")
        if not named[0].is_complete:
            raise CheckpointError(f"{named[0].path} is not complete: {named[0].why}")
        return named[0]
    if step is not None:
        known = [each for each in known if each.step == step]
    candidates = newest_of_each_run(known)
    if not candidates:
        wanted = "" if step is None else f" of step {step:,}"
        partial = f"; {known[-1].path} is not complete: {known[-1].why}" if known else ""
        raise CheckpointError(f"no complete checkpoint{wanted}{partial}")
    if len(candidates) > 1:
        names = ", ".join(each.path for each in candidates[:5])
        raise CheckpointError(f"several runs have checkpoints: name one with --checkpoint ({names})")
    return candidates[0]
