"""Judge checkpoints by the files that their formats require: a table with a few facts for each format.

    ours        step-00000500/ with manifest.json, which is written last and lists sizes and digests
    a folder    its name, files that show the format, and files that it requires; some have a file that is
                written last, or a tracker beside them that names the last complete save
    index       every file that a .metadata of torch or an *.index.json names, with the size that it states
    all ranks   the files of ranks 0 to W-1, W by the greatest one, by a name, or by the writer's own record
    damage      a file that is empty or cut short, a temporary name, a mark of an unfinished save

`trainyard job checkpoints` uses the folders for volumes. For a program a format only adds checks: files of no
known format are a checkpoint, too. A folder below a checkpoint belongs to it. Only `judge_folder` uses the
modification times of files: on a volume a copy may have changed them.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import chain, product
from pathlib import PurePosixPath
from typing import Any

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.volume_agent import INDEXES
from trainyard.programs.checkpoints.volume_listing import VolumeFile, VolumeListing, join_path
from trainyard.programs.sources import Source
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, parse_checkpoint_manifest
from trainyard.run.directory import step_of


class CheckpointFormat(StrEnum):
    """The program or format that wrote a checkpoint."""

    TRAINYARD = "trainyard"
    VERL = "verl"
    MEGATRON = "megatron"
    NEMO = "nemo"
    DEEPSPEED = "deepspeed"
    DCP = "dcp"
    """PyTorch's distributed checkpoint: of torchtitan, and of own programs."""
    HUGGING_FACE = "huggingface"
    """A checkpoint of transformers' Trainer, or weights alone."""
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"
    ORBAX = "orbax"
    FILES = "files"
    """Files of any other kind."""


@dataclass(frozen=True)
class FoundCheckpoint:
    format: CheckpointFormat
    path: str
    """The path of its folder or of its one file, relative to the listed folder."""
    step: int | None
    """Optimizer steps done; None if neither its files nor its format show it."""
    files: tuple[VolumeFile, ...]
    why: str
    """The sign that it is complete, or the missing parts."""
    is_complete: bool = True
    """Whether no file is missing or short, and no mark shows that its save is in progress."""
    source: Source = Source.CHECKPOINT
    """`guessed` if the step is only a number in a name."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Path of a file -> its digest, if the checkpoint's own manifest has it."""
    trackers: tuple[VolumeFile, ...] = ()
    """Files beside the folder that its framework reads to find it."""
    is_weights_alone: bool = False
    """Whether the framework that wrote it saved no optimizer: resumed from, that would start from zero."""
    needs_quiet: bool = False
    """Whether its format writes no file last, so that other signs must show that no file is to follow."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def run(self) -> str:
        """The folder that holds the checkpoints of its run."""
        return str(PurePosixPath(self.path).parent)

    def record(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "format": self.format.value,
            "step": self.step,
            "files": len(self.files),
            "bytes": self.size,
            "verdict": "complete" if self.is_complete else "partial",
            "why": self.why,
            "weights_alone": self.is_weights_alone,
        }


TRACKER = "latest_checkpointed_iteration.txt"
_METADATA, _RELEASE = ".metadata", "release"
_DCP = ".metadata|__*_*.distcp"
_INDEXED = "model.safetensors.index.json|pytorch_model.bin.index.json"
_SHARD = "model-*-of-*.safetensors|pytorch_model-*-of-*.bin"
_WEIGHTS = f"{_INDEXED}|{_SHARD}|model.safetensors|pytorch_model.bin|adapter_model.*|pytorch_model_fsdp.bin"
_TRAINED = "optimizer.pt|scheduler.pt|rng_state*"
_VERL = "{0}/model_world_size_*|{0}/.metadata|{0}/*dist_ckpt/.metadata"


@dataclass(frozen=True)
class _Rule:
    """A format. Patterns are those of a shell, joined by `|`, of paths in its folder.

    One without a slash is of a file directly in it; in others `*` matches slashes, too.
    """

    format: CheckpointFormat
    name: str = ".*"
    """A regular expression of the folder's name; its first group is the step, if the format defines it."""
    holds: str = "*|*/*"
    """What shows the format."""
    owes: str = ""
    """What must be there: `PATTERN`, or `OTHER=>PATTERN` if a file matches OTHER."""
    tracker: str = ""
    """The file beside the folder in which the framework writes its last complete save."""
    counts_from: int = 0
    """1 if names count steps from 0."""


_F = CheckpointFormat
_RULES = (
    _Rule(
        _F.VERL,
        r"global_step_(\d{1,12})",
        owes=f"{_VERL.format('actor')} critic/*=>{_VERL.format('critic')} data.pt|data_*.pt "
        "actor/*_world_size_[2-9]*=>actor/optim_world_size_* "
        "actor/*_world_size_[2-9]*=>actor/extra_state_world_size_*",
        tracker=TRACKER,
    ),
    _Rule(
        _F.MEGATRON,
        rf"iter_(\d{{7,12}})|{_RELEASE}",
        owes=f"{_DCP}|mp_rank_*/model_optim_rng.pt",
        tracker=TRACKER,
    ),
    _Rule(
        _F.NEMO,
        r"(?:.*[-_])?step=(\d{1,12})(?:\.0)?(?:-last)?",
        "weights/*|context/*",
        "weights/.metadata",
        counts_from=1,
    ),
    _Rule(
        _F.LIGHTNING,
        r"(?:.*\bstep=(\d{1,12}))?.*\.ckpt",
        f"{_DCP}|meta.pt|checkpoint/*_states.pt",
        f"meta.pt=>{_DCP} {_DCP}=>meta.pt checkpoint/*=>checkpoint/*mp_rank_*_model_states.pt "
        "checkpoint/*=>latest",
    ),
    _Rule(
        _F.DEEPSPEED,
        r"global_step(\d{1,12})|.*",
        "mp_rank_??_model_states.pt|*pp_rank_*_states.pt|layer_*-model_*states.pt",
        "*mp_rank_*_model_states.pt",
        tracker="latest",
    ),
    _Rule(
        _F.ACCELERATE,
        holds="random_states_*.pkl",
        owes=f"{_WEIGHTS}|*/*.safetensors|latest|pytorch_model_fsdp_0/* random_states_0.pkl",
    ),
    _Rule(
        _F.HUGGING_FACE,
        r"checkpoint-(\d{1,12})",
        f"{_WEIGHTS}|trainer_state.json|training_args.bin|{_TRAINED}|pytorch_model_fsdp_0/*|optimizer_0/*",
        f"{_WEIGHTS}|latest|pytorch_model_fsdp_0/* "
        f"{_TRAINED}=>optimizer.pt|optimizer.bin|optimizer_0/*|latest {_TRAINED}=>scheduler.pt|latest "
        f"{_TRAINED}|latest=>rng_state* latest=>*/*mp_rank_*_model_states.pt trainer_state.json",
    ),
    _Rule(_F.ORBAX, r"(\d{1,12})", "_CHECKPOINT_METADATA|_METADATA"),
    _Rule(_F.ORBAX, holds="_CHECKPOINT_METADATA"),
    _Rule(_F.DCP, r"step-(\d{1,12})|.*", _DCP),
    _Rule(_F.HUGGING_FACE, holds=_WEIGHTS, owes="optimizer*.bin|scheduler*.bin=>random_states_0.pkl"),
)
"""The first one that fits counts. The last one's folder may hold checkpoints, which are no part of it."""
_EVERYWHERE = (
    " adapter_model.*=>adapter_config.json common.pt|*/common.pt=>metadata.json|*/metadata.json "
    f"{_SHARD}=>{_INDEXED} model/model-*-of-*.safetensors=>model/model.safetensors.index.json"
)
_STAGING = re.compile(r"tmp-checkpoint-\d{1,12}|.*\d(?:-tmp|\.tmp)|.*\.orbax-checkpoint-tmp.*")
"""Folders that are renamed when all files are in them."""
_TMP = re.compile(r".*(?:-tmp|\.tmp)")
_TEMPORARY = re.compile(
    r"\.tmp.*|.*\.tmp|tmp[a-z0-9_]{8}(?:\..*)?|.*\.incomplete|checkpoint-is-incomplete\.txt"
)
"""Names that a program gives to a file until it is written, and marks that it removes after its save."""
_NEVER_EMPTY = {".pt", ".pth", ".bin", ".pkl", ".ckpt", ".safetensors", ".json", ".metadata"}
_RANK = re.compile(
    r"((?:ex|zero_)?pp_rank_|mp_rank_|rank_?|rng_state_|random_states_|(?<=/)data_|expert_|-model_"
    r"|(?<=mp_rank_\d\d)_|(?<=mp_rank_\d\d_\d\d\d)_)(\d+)"
)
"""A number of a rank in a path, after what is counted."""
_WORLD = re.compile(r"world_size_(\d{1,6})_rank")
_SIZES = {
    "mp_rank_": ("mp_world_size", "tensor_model_parallel_size"),
    "zero_pp_rank_": ("mics_shard_size", "dp_world_size"),
    "_": ("pipeline_model_parallel_size",),
}
"""What is counted -> the first number of these that the writer has recorded is that of its ranks."""
_NAMED_STEP = re.compile(
    r"(?:.*[-_])?(?:step|checkpoint|ckpt|iter|epoch)[-_]?(\d{1,12})|.*-(\d{1,12})steps|(\d{1,12})", re.ASCII
)
"""Matches `step-100`, `llama_v3-100steps` and `100`, but not a model's size: `llama-8`."""
_CLOCK_SECONDS = 0.2
"""How much the clocks of the machines that write one checkpoint may differ."""


def find_checkpoints(listing: VolumeListing) -> list[FoundCheckpoint]:
    """Return the folders of known formats, complete or not, sorted by run and step."""
    found: list[FoundCheckpoint] = []
    for folder in sorted(listing.folders, key=lambda each: (each.count("/"), each)):
        inner = any(folder == other.path or folder.startswith(f"{other.path}/") for other in found)
        if not inner and (checkpoint := _ours(listing, folder) or _of_rules(listing, folder)) is not None:
            found.append(checkpoint)
    return sorted(found, key=lambda each: (each.run, _order(each), each.path))


def judge_folder(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """Judge the folder of a program; None if no format is recognised in it.

    It also compares the times of the files, so they must be the original ones.
    """
    found = _of_rules(listing, folder)
    return None if found is None else _judged(found, _saved_again(found))


def judge_files(
    path: str, files: Sequence[VolumeFile], listing: VolumeListing | None = None
) -> FoundCheckpoint:
    """Judge files that one save has written; `path` is the file or the folder that holds them.

    `listing` has the folder: then the indexes in it are checked, as those of a known format.
    """
    keys = {key for file in files for key in file.keys or ()}
    is_lightning = _name(files[0]).endswith(".ckpt") and "pytorch-lightning_version" in keys
    form = CheckpointFormat.LIGHTNING if is_lightning else CheckpointFormat.FILES
    found = FoundCheckpoint(
        form, path, step_inside(files), tuple(files), "its files are there", needs_quiet=True
    )
    found = replace(found, is_weights_alone=is_lightning and _has_no_optimizer(found))
    problems = _damage(found)
    # Another program may call a file of its own .metadata.
    is_indexed = any(each.names or each.path.endswith((".distcp", *INDEXES[:2])) for each in files)
    if listing is not None and is_indexed:
        problems = chain(problems, _missing_of_indexes(listing, found), _saved_again(found))
    return _judged(found, problems)


_STEPS = ("global_step", "step", "iteration", "iter_num", "global_steps")


def step_inside(files: Iterable[VolumeFile], names: Collection[str] = _STEPS) -> int | None:
    """Return the step that the files hold by one of `names`; None if they hold none, or different ones."""
    known = (next((file.counts[name] for name in names if name in file.counts), None) for file in files)
    steps = {step for step in known if step is not None}
    return steps.pop() if len(steps) == 1 else None


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


def _ours(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """Judge a checkpoint of a run of Trainyard by its manifest."""
    step, manifest = step_of(PurePosixPath(folder).name), listing.file(folder, MANIFEST_NAME)
    if step is None:
        return None
    files = listing.below(folder)
    found = FoundCheckpoint(_F.TRAINYARD, folder, step, files, "its manifest and its files are there")
    if manifest is None or manifest.text is None:
        return _judged(found, [f"no {MANIFEST_NAME}"])
    try:
        read = parse_checkpoint_manifest(manifest.text.encode(), manifest.path)
    except CheckpointError as error:
        return _judged(found, [str(error)])
    sizes = {file.path: file.size for file in found.files}
    problems = [] if read.step == step else [f"its {MANIFEST_NAME} is of step {read.step:,}"]
    problems += [
        f"{f.path} is missing or has another size than the manifest says"
        for f in read.files
        if sizes.get(join_path(folder, f.path)) != f.size
    ]
    digests = {join_path(folder, file.path): file.sha256 for file in read.files}
    return _judged(replace(found, sha256=digests), problems)


def _of_rules(listing: VolumeListing, folder: str) -> FoundCheckpoint | None:
    """Judge a folder by the first rule that fits."""
    files, start = listing.below(folder), "" if folder == "." else f"{folder}/"
    here = {file.path.removeprefix(start) for file in files}
    for rule in _RULES:
        match = re.fullmatch(rule.name, PurePosixPath(folder).name)
        if not match or not _matches(rule.holds, here):
            continue
        if match[0] == _RELEASE and not _beside(listing, folder, TRACKER):
            continue
        named = next(filter(None, match.groups()), None)
        step, source = (None if named is None else int(named) + rule.counts_from), Source.CHECKPOINT
        if step is None and rule.format is not _F.MEGATRON:
            # Accelerate counts saves or epochs in checkpoint_N and epoch_N, and steps in checkpoint-N.
            is_count = rule.format is _F.ACCELERATE and re.fullmatch(r"(checkpoint_|epoch[-_]?)\d+", match[0])
            step, source = None if is_count else _step_in_name(folder), Source.GUESSED
        if rule is _RULES[-1]:
            files = listing.by_folder[folder]
        # Ranks save their random states without waiting for each other.
        quiet = rule.format is _F.ACCELERATE or _matches("rng_state_*", here)
        found = FoundCheckpoint(
            rule.format, folder, step, files, "its files are there", source=source, needs_quiet=quiet
        )
        found = replace(found, is_weights_alone=rule.format is not _F.ORBAX and _has_no_optimizer(found))
        owed = _missing(rule.owes + _EVERYWHERE, here)
        others = (_missing_of_indexes(listing, found), _missing_ranks(files), _of_framework(listing, found))
        found = _judged(found, chain(_damage(found), owed, *others))
        return _tracked(listing, found, rule.tracker) if rule.tracker and found.is_complete else found
    return None


def _matches(patterns: str, paths: Iterable[str]) -> bool:
    wanted = [(each, "/" in each) for each in patterns.split("|")]
    return any(fnmatchcase(path, each) for path in paths for each, deep in wanted if deep or "/" not in path)


def _missing(owes: str, paths: Collection[str]) -> Iterator[str]:
    for each in owes.split():
        given, _, needed = each.rpartition("=>")
        if (not given or _matches(given, paths)) and not _matches(needed, paths):
            yield f"{needed.replace('|', ' or ')} is missing"


def _missing_of_indexes(listing: VolumeListing, found: FoundCheckpoint) -> Iterator[str]:
    """Yield what the indexes in a folder name that is missing, and shards of torch without their index."""
    folders = {str(PurePosixPath(file.path).parent) for file in found.files}
    for folder in sorted(folders):
        here = {_name(file): file for file in listing.by_folder.get(folder, ())}
        if _METADATA not in here and any(fnmatchcase(name, "__*_*.distcp") for name in here):
            yield f"no {_METADATA}, which is written last"
        for index in (file for name, file in here.items() if name in INDEXES):
            if not index.names:
                yield f"its {_name(index)} " + ("cannot be read" if index.names is None else "names no file")
            for name in index.names or ():
                file, end = here.get(name), index.ends.get(name, 0)
                if file is None or (file.size == 0 and index.ends.get(name) != 0):
                    yield f"{name} is missing or empty"
                elif file.size < end:
                    yield f"{name} is cut short: {file.size:,} bytes of {end:,}"


def _missing_ranks(files: Iterable[VolumeFile]) -> Iterator[str]:
    """Yield a file of each group of which not all ranks are there."""
    present: dict[tuple[str, ...], dict[tuple[int, ...], str]] = {}
    sizes: dict[str, int] = {}
    files = tuple(files)
    counts = {name: number for file in files for name, number in file.counts.items()}
    for file in files:
        parts = [(match[1], int(match[2])) for match in _RANK.finditer(file.path)]
        if parts:
            group = present.setdefault((_RANK.sub(r"\1*", file.path), *(label for label, _ in parts)), {})
            group[tuple(number for _, number in parts)] = file.path
        for label, number in parts:
            sizes[label] = max(sizes.get(label, 0), number + 1)
    if counts.get("stage") and not any("optim_states" in file.path for file in files):
        yield "the optimizer of rank 0 is missing"
    is_distributed = counts.get("use_distributed_optimizer") and not counts.get("no_save_optim")
    if is_distributed and not any(_name(file) == "distrib_optim.pt" for file in files):
        yield "distrib_optim.pt is missing"
    for label, names in _SIZES.items():
        known = next((counts[name] for name in names if counts.get(name)), 0)
        if label in sizes or (known > 1 and label == "zero_pp_rank_" and counts.get("stage")):
            sizes[label] = max(sizes.get(label, 0), known)
    for (template, *labels), there in sorted(present.items()):
        world = _WORLD.search(template)
        wanted = product(*(range(int(world[1]) if world else sizes[label]) for label in labels))
        if (absent := next((each for each in wanted if each not in there), None)) is not None:
            left = list(absent)
            pieces = _RANK.split(next(iter(there.values())))  # text, label, number, text …
            pieces[2::3] = [f"{left.pop(0):0{len(each)}d}" for each in pieces[2::3]]
            yield f"{''.join(pieces)} is missing"


def _of_framework(listing: VolumeListing, found: FoundCheckpoint) -> Iterator[str]:
    """Yield what the framework's own records say against the checkpoint."""
    state = listing.file(found.path, "trainer_state.json")
    if state is not None and found.source.proves and state.counts.get("global_step") != found.step:
        yield f"trainer_state.json is of step {state.counts.get('global_step')}"
    mark = f"{PurePosixPath(found.path).name}-unfinished"
    if _beside(listing, found.path, mark) is not None:
        yield f"{mark} shows that its save did not finish"


def _damage(found: FoundCheckpoint) -> Iterator[str]:
    """Yield the signs in names and files that the checkpoint is not finished or damaged."""
    parts = PurePosixPath(found.path).parts
    for part in (*filter(_STAGING.fullmatch, parts), *filter(_TMP.fullmatch, parts[-1:])):
        yield f"{part} is still a temporary name: its save did not finish"
    for file in found.files:
        if any(map(_TEMPORARY.fullmatch, PurePosixPath(file.path.removeprefix(f"{found.path}/")).parts)):
            yield f"{file.path} shows that its save did not finish"
        elif file.size == 0 and (PurePosixPath(file.path).suffix in _NEVER_EMPTY or _name(file) == _METADATA):
            yield f"{file.path} is empty"
        elif file.whole is False:
            yield f"{file.path} is cut off"


def _saved_again(found: FoundCheckpoint) -> Iterator[str]:
    """Yield a shard that is newer than its index, which is then of another save."""
    for index in (file for file in found.files if _name(file) == _METADATA):
        folder = PurePosixPath(index.path).parent
        for file in found.files:
            is_shard = PurePosixPath(file.path).parent == folder and _name(file) in (index.names or ())
            if is_shard and file.modified > index.modified + _CLOCK_SECONDS:
                yield f"{file.path} is newer than the {_METADATA} beside it: it is being saved again"


def _has_no_optimizer(found: FoundCheckpoint) -> bool:
    """Return whether no file and no entry of the checkpoint is an optimizer's."""
    of_each = ((file.path.removeprefix(found.path), *(file.keys or ()), *file.counts) for file in found.files)
    return not any("optim" in word or "mp_rank_" in word for words in of_each for word in words)


def _judged(found: FoundCheckpoint, problems: Iterable[str]) -> FoundCheckpoint:
    """Return the checkpoint, as partial if there is a problem; the first one is the reason."""
    why = next(iter(problems), None) if found.is_complete else None
    return found if why is None else replace(found, is_complete=False, why=why)


def _tracked(listing: VolumeListing, found: FoundCheckpoint, name: str) -> FoundCheckpoint:
    """Judge by the tracker beside the checkpoint, in which the framework writes its last complete save."""
    tracker = _beside(listing, found.path, name)
    if tracker is None:
        return _judged(found, [f"no {name} marks it as complete"])
    found, stated = replace(found, trackers=(tracker,)), (tracker.text or "").strip()
    step = _step_in_name(stated)
    if stated == PurePosixPath(found.path).name:
        return replace(found, why=f"{name} says {stated}")
    if step is None:
        return _judged(found, [f"{name} says {stated[:40]!r}, which is not a step"])
    if found.step is None or step < found.step:
        return _judged(found, [f"{name} says {step}, so this one is not complete"])
    return replace(found, why=f"{name} says {step}")


def _beside(listing: VolumeListing, folder: str, name: str) -> VolumeFile | None:
    return listing.file(str(PurePosixPath(folder).parent), name)


def _step_in_name(folder: str) -> int | None:
    """Return the number that a folder's name calls its step; None if it has none."""
    match = _NAMED_STEP.fullmatch(PurePosixPath(folder).name)
    return int(next(filter(None, match.groups()))) if match else None


def _name(file: VolumeFile) -> str:
    return PurePosixPath(file.path).name


def choose_checkpoint(
    found: Iterable[FoundCheckpoint], path: str = "", step: int | None = None
) -> FoundCheckpoint:
    """Choose a complete checkpoint: the one at this path, of this step, or the newest.

    Raises CheckpointError if there is none, or if several runs have one.
    """
    known = list(found)
    if path:
        named = next((each for each in known if each.path == path.strip("/")), None)
        if named is None:
            raise CheckpointError(f"{path}: no such checkpoint; the command list shows the checkpoints")
        if not named.is_complete:
            raise CheckpointError(f"{named.path} is not complete: {named.why}")
        return named
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
