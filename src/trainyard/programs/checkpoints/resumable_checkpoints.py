"""Say from which complete checkpoints training resumes as if it had not stopped, and why not from others.

    weights alone                      no: the optimizer starts from zero, which no program reports
    state of all ranks that wrote it   yes
    a file of one's own layout         unknown: its name and its end say nothing of its content

A program that resumes without a file of this list starts with a fresh optimizer or schedule and exits with 0.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from trainyard.programs.checkpoints.found_checkpoint import CheckpointFormat, FoundCheckpoint
from trainyard.programs.checkpoints.volume_listing import VolumeListing, join_path

Answer = tuple[bool | None, str]
_YES: Answer = (True, "its optimizer and the state of its ranks are there")
_ONE_LAYOUT = "the program that wrote it can read it"


def with_resumability(
    listing: VolumeListing, found: FoundCheckpoint, world_size: int | None = None
) -> FoundCheckpoint:
    """Return the checkpoint with `resumable` and its reason; `world_size` processes wrote it, if known."""
    if not found.is_complete:
        return replace(found, resumable=False, resumable_why=f"it is not complete: {found.why}")
    answer, why = _RULES[found.format](listing, found, world_size)
    return replace(found, resumable=answer, resumable_why=why)


def _trainyard(_listing: VolumeListing, _found: FoundCheckpoint, _world: int | None) -> Answer:
    return True, "its manifest lists all of its files"


def _trainer(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    here = _names(listing, found.path)
    if "trainer_state.json" not in here:
        return False, "it holds weights alone"
    if "latest" in here:
        tag = (here["latest"] or "").strip()
        answer = _deepspeed(listing, replace(found, path=join_path(found.path, tag)), world)
        if answer[0] is False:
            return answer
    elif not ({"optimizer.pt", "optimizer.bin"} & here.keys() or _is_folder(listing, found, "optimizer_0")):
        return False, "optimizer.pt is missing, as with save_only_model: the optimizer would start from zero"
    elif "scheduler.pt" not in here:
        return False, "scheduler.pt is missing: the schedule would start from zero"
    return _of_ranks(here, r"rng_state_(\d+)\.pth", world, one="rng_state.pth")


def _accelerate(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    here = _names(listing, found.path)
    saved = any(re.fullmatch(r"optimizer(?:_\d+)?\.bin", name) for name in here)
    if not (saved or "latest" in here or _is_folder(listing, found, "optimizer_0")):
        return False, "optimizer.bin is missing: the optimizer would start from zero"
    ranks = _ranks(here, r"random_states_(\d+)\.pkl")
    if ranks == {0}:
        return True, "its optimizer and the random state of its first process are there"
    return _of_ranks(here, r"random_states_(\d+)\.pkl", world)


def _deepspeed(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    files = listing.by_folder.get(found.path, ())
    counts = next((file.counts for file in files if "dp_world_size" in file.counts), {})
    wrote = counts.get("dp_world_size", 0) * counts.get("mp_world_size", 1)
    if world is not None and wrote and wrote != world:
        return False, f"{wrote} processes wrote it, and DeepSpeed refuses to resume with {world}"
    return True, "the optimizer of all ranks is there; the number of processes must stay the same"


def _megatron(listing: VolumeListing, found: FoundCheckpoint, _world: int | None) -> Answer:
    if found.step is None:
        return False, "it holds weights alone"
    index = listing.file(found.path, ".metadata")
    if index is None:
        return True, "all ranks are there; the degrees of parallelism must stay the same"
    return _of_index(index.counts)


def _nemo(listing: VolumeListing, found: FoundCheckpoint, _world: int | None) -> Answer:
    if not _is_folder(listing, found, "context"):
        return False, "context/ is missing"
    index = listing.file(join_path(found.path, "weights"), ".metadata")
    return _of_index(index.counts if index else {})


def _verl(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    here = _names(listing, join_path(found.path, "actor"))
    worlds = {int(m[1]) for name in here if (m := re.fullmatch(r"\w+?_world_size_(\d+)_rank_\d+\.pt", name))}
    if not worlds:
        return True, "the distributed checkpoint of its actor is there"
    if world is not None and world not in worlds:
        return False, f"{max(worlds)} processes wrote it, and verl looks for files of {world}"
    for part in ("optim", "extra_state"):
        if not any(name.startswith(f"{part}_world_size_") for name in here):
            return False, f"actor/{part}_world_size_* are missing"
    return True, "model, optimizer and extra state of all ranks are there"


def _dcp(listing: VolumeListing, found: FoundCheckpoint, _world: int | None) -> Answer:
    index = listing.file(found.path, ".metadata")
    answer = _of_index(index.counts if index else {})
    if answer[0] is False and not re.fullmatch(r"step-\d+", PurePosixPath(found.path).name):
        return None, "its .metadata names nothing that is called an optimizer"
    return answer


def _of_index(counts: Mapping[str, int]) -> Answer:
    if "optimizer" in counts:
        return True, "its .metadata names the optimizer"
    return False, "its .metadata names no optimizer: it holds only the model"


def _lightning(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    if found.path in listing.folders:
        inner = join_path(found.path, "checkpoint")
        if inner in listing.folders:
            return _deepspeed(listing, replace(found, path=inner), world)
        return _dcp(listing, found, world)
    return _of_keys(found, "optimizer_states", weights="state_dict")


def _nanogpt(_listing: VolumeListing, found: FoundCheckpoint, _world: int | None) -> Answer:
    return _of_keys(found, "optimizer", weights="model")


def _composer(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    if found.path in listing.folders:
        return _dcp(listing, found, world)
    return _of_keys(found, "state.optimizers", weights="state.model")


def _of_keys(found: FoundCheckpoint, optimizer: str, *, weights: str) -> Answer:
    """Return the answer for one file, by its keys."""
    keys = found.files[0].keys or ()
    if optimizer in keys:
        return True, f"it holds {optimizer}"
    if weights in keys:
        return False, f"it holds {weights} and no {optimizer}: the optimizer would start from zero"
    return None, "its content is not known"


def _nanochat(_listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    names = [PurePosixPath(file.path).name for file in found.files]
    if not any(name.startswith("optim_") for name in names):
        return False, "no optim_*_rank*.pt: the optimizer would start from zero"
    return _of_ranks(names, r"optim_\d+_rank(\d+)\.pt", world)


def _automodel(listing: VolumeListing, found: FoundCheckpoint, _world: int | None) -> Answer:
    if listing.file(join_path(found.path, "optim"), ".metadata") is None:
        return False, "optim/.metadata is missing: the optimizer would start from zero"
    return _YES


def _olmo_core(listing: VolumeListing, found: FoundCheckpoint, world: int | None) -> Answer:
    return _of_ranks(_names(listing, join_path(found.path, "train")), r"rank(\d+)\.pt", world)


def _plain(_listing: VolumeListing, _found: FoundCheckpoint, _world: int | None) -> Answer:
    return None, "its content is not known: only the program knows whether it resumes from this file"


def _of_ranks(names: Iterable[str], pattern: str, world: int | None, *, one: str = "") -> Answer:
    """Return the answer by the files of ranks; `one` is the name of the file of a single process."""
    names = set(names)
    ranks = _ranks(names, pattern)
    if one in names and not ranks:
        ranks = {0}
    expected = set(range(world)) if world is not None else set(range(max(ranks, default=0) + 1))
    if absent := expected - ranks:
        name = one if one and len(expected) == 1 else re.sub(r"\(.*?\)", str(min(absent)), pattern)
        name = name.replace("\\d+", "*").replace("\\", "")
        return False, f"{name} is missing" + (f", of {world} processes" if world else "")
    if world is not None and ranks - expected:
        return (
            False,
            f"{len(ranks)} processes wrote it, not {world}: the data would not resume at its position",
        )
    return _YES


def _ranks(names: Iterable[str], pattern: str) -> set[int]:
    return {int(match[1]) for name in names if (match := re.fullmatch(pattern, name))}


def _names(listing: VolumeListing, folder: str) -> Mapping[str, str | None]:
    """Return name -> text of each file directly in the folder."""
    return {PurePosixPath(file.path).name: file.text for file in listing.by_folder.get(folder, ())}


def _is_folder(listing: VolumeListing, found: FoundCheckpoint, name: str) -> bool:
    return join_path(found.path, name) in listing.folders


_RULES: Mapping[CheckpointFormat, Callable[[VolumeListing, FoundCheckpoint, int | None], Answer]] = {
    CheckpointFormat.TRAINYARD: _trainyard,
    CheckpointFormat.VERL: _verl,
    CheckpointFormat.MEGATRON: _megatron,
    CheckpointFormat.NEMO: _nemo,
    CheckpointFormat.DEEPSPEED: _deepspeed,
    CheckpointFormat.DCP: _dcp,
    CheckpointFormat.HUGGING_FACE: _trainer,
    CheckpointFormat.ACCELERATE: _accelerate,
    CheckpointFormat.LIGHTNING: _lightning,
    CheckpointFormat.NANOGPT: _nanogpt,
    CheckpointFormat.NANOCHAT: _nanochat,
    CheckpointFormat.AUTOMODEL: _automodel,
    CheckpointFormat.COMPOSER: _composer,
    CheckpointFormat.OLMO_CORE: _olmo_core,
    CheckpointFormat.TORCH_SAVE: _plain,
    CheckpointFormat.SAFETENSORS: _plain,
}
