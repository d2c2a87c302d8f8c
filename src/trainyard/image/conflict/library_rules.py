"""Rules for libraries that torch and verl require in exact versions: cuDNN, NCCL, vLLM, transformers.

A rule that does not know a version reports nothing.
"""

from collections.abc import Iterator

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.finding import ERROR, WARNING, ImageFinding, Rule, TargetMachine
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.conflict.version_facts import (
    LIBRARIES,
    OTHER_CUDNN,
    TORCH,
    VERL_TRANSFORMERS,
    VERL_VLLM,
    Version,
    minor,
    same_prefix,
    version_text,
)


def _cudnn(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, found = declared.torch, _first(declared, "nvidia-cudnn-cu")
    required = _cudnn_of(declared, torch) if torch else ()
    if not torch or not found or not required or same_prefix(found.version, required):
        return
    # As torch.backends.cudnn compares them: the same major release, and no older minor one.
    runs = found.version[:1] == required[:1] and minor(found.version) >= minor(required)
    yield ImageFinding(
        "cudnn-torch",
        WARNING if runs else ERROR,
        found.file,
        found.line,
        f"cuDNN {found.text} is not the {version_text(required)} that torch {torch.text} requires",
        "it would load, but pip and uv refuse the pair, and PyTorch was not tested with it"
        if runs
        else "the first convolution ends with 'PyTorch was compiled against … but found runtime version …'",
        f"leave {found.name} to torch, or take {version_text(required)}",
    )


def _nccl(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, found = declared.torch, _first(declared, "nvidia-nccl-cu")
    known = LIBRARIES.get(minor(torch.version)) if torch and _is_default_build(declared, torch) else None
    if torch and found and known and found.version < known.nccl:
        yield ImageFinding(
            "nccl-torch",
            ERROR,
            found.file,
            found.line,
            f"NCCL {found.text} is older than the {version_text(known.nccl)} "
            f"that torch {torch.text} requires",
            "torch calls functions that an older NCCL does not have: 'undefined symbol' at its import",
            f"leave {found.name} to torch, or take {version_text(known.nccl)} or newer",
        )


def _verl(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    verl = declared.packages.get("verl")
    if verl is None:
        return
    oldest, newest = VERL_VLLM.get(verl.version[:3], ((), ()))
    vllm = declared.packages.get("vllm")
    if vllm and oldest and (vllm.version < oldest or (newest and vllm.version[:3] > newest)):
        span = (
            f"{version_text(oldest)} to {version_text(newest)}"
            if newest
            else f"{version_text(oldest)} or newer"
        )
        yield _not_of_verl(
            verl, vllm, span, "its rollout calls functions of vLLM that change between releases"
        )
    oldest, too_new = VERL_TRANSFORMERS.get(verl.version[:3], ((), ()))
    other = declared.packages.get("transformers")
    if other and oldest and not oldest <= other.version < too_new:
        span = f"{version_text(oldest)} or newer, below {version_text(too_new)}"
        yield _not_of_verl(verl, other, span, "verl requires it, so pip and uv refuse the pair")


def _not_of_verl(verl: Package, other: Package, span: str, why: str) -> ImageFinding:
    return ImageFinding(
        f"verl-{other.name}",
        ERROR,
        other.file,
        other.line,
        f"{other.name} {other.text} does not go with verl {verl.text}",
        why,
        f"take {other.name} {span}",
    )


def _is_default_build(declared: DeclaredVersions, torch: Package) -> bool:
    """Return whether it is the wheel on PyPI: no suffix, index or package states another CUDA, or may."""
    release = TORCH.get(minor(torch.version))
    if not declared.cuda:
        return declared.torch_build == "pypi"
    return release is not None and declared.cuda == release.default_cuda


def _cudnn_of(declared: DeclaredVersions, torch: Package) -> Version:
    """Return the cuDNN that the declared build of torch requires; () where it is not known."""
    release = minor(torch.version)
    if not _is_default_build(declared, torch):
        return OTHER_CUDNN.get((release, declared.cuda), ())
    return LIBRARIES[release].cudnn if release in LIBRARIES else ()


def _first(declared: DeclaredVersions, prefix: str) -> Package | None:
    """The package whose name is `prefix` and a number. `nvidia-cudnn-cu13-frontend` is another package."""
    for name in sorted(declared.packages):
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal():
            return declared.packages[name]
    return None


LIBRARY_RULES: tuple[Rule, ...] = (_cudnn, _nccl, _verl)
