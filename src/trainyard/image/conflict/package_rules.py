"""Rules for packages: torch, CUDA, Python, drivers, GPUs, and packages compiled against torch.

A rule that does not know a version reports nothing.
"""

import re
from collections.abc import Iterator

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.finding import ERROR, WARNING, Edit, ImageFinding, Rule, TargetMachine
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.conflict.version_facts import (
    BUILT_BESIDE,
    DRIVERS,
    OLDEST_CUDA,
    OLDEST_PYTHON,
    TORCH,
    TORCH_PAIRS,
    VLLM_TORCH,
    Version,
    minor,
    same_prefix,
    version_text,
)

_COMPILED = ("flash-attn", "transformer-engine", "transformer-engine-torch", "apex")
"""Packages whose extensions are compiled against torch on installation; vLLM and deepspeed need no nvcc."""
_BOUND = frozenset((*_COMPILED, "torchaudio", "torchao", "torchtext", "xformers", "triton", "sglang"))
"""Packages that go with one torch, and that the tables do not have."""
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\+cu\d{3})?")
"""The version of a release; nightly builds exist with other CUDA releases."""

_FOR_EACH_CUDA = ("nvidia-cutlass-dsl-libs",)
"""Parts for several CUDA releases, of which the package uses one: nvidia-cutlass-dsl requires both
(metadata)."""


def _torch_python(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    python = base.python
    release = TORCH.get(minor(torch.version)) if torch else None
    if torch and release and python and not release.oldest_python <= python <= release.newest_python:
        span = f"{version_text(release.oldest_python)} to {version_text(release.newest_python)}"
        yield ImageFinding(
            "torch-python",
            ERROR,
            declared.dockerfile,
            base.line,
            f"torch {torch.text} has no wheel for Python {version_text(python)}",
            f"its wheels are built for Python {span}; the installation ends with 'no matching distribution'",
            f"take a base image with Python {version_text(release.newest_python)}, or another torch",
        )


def _own_python(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    python = declared.base.python
    if declared.installs_trainyard and python and python < OLDEST_PYTHON:
        yield ImageFinding(
            "python",
            ERROR,
            declared.dockerfile,
            declared.base.line,
            f"{declared.base.image} has Python {version_text(python)}",
            f"Trainyard, which is in the image, needs Python {version_text(OLDEST_PYTHON)} or newer",
            "take a base image with a newer Python",
        )


def _torch_twice(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    if "torch" in declared.removed:
        return  # what was compiled against the base's torch may be removed, too
    if not torch or not base.torch or same_prefix(torch.version, base.torch):
        return
    compiled = base.kind == "ngc"
    yield ImageFinding(
        "torch-twice",
        ERROR if compiled else WARNING,
        torch.file,
        torch.line,
        f"torch {torch.text} replaces torch {version_text(base.torch)} of {base.image}",
        "Transformer Engine, flash-attn and apex of the NGC image are compiled against its own torch and "
        "fail to import with undefined symbols"
        if compiled
        else "the image carries both, some 5 GB too many, and the loader may mix their CUDA libraries",
        "start from nvidia/cuda or python, or omit torch from the lock and take the base's",
    )


def _cuda_of_torch(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch = declared.torch
    release = TORCH.get(minor(torch.version)) if torch else None
    if not torch or not release or declared.torch_build != "named" or not _RELEASE.fullmatch(torch.text):
        return  # another index may have another build, and so may a night
    beside = BUILT_BESIDE.get(torch.cuda)
    if torch.cuda not in release.cuda and not (beside and minor(torch.version) >= beside):
        wheels = ", ".join(f"cu{a}{b}" for a, b in release.cuda)
        base = declared.base_of(torch).cuda
        right = base if base in release.cuda else release.default_cuda
        yield ImageFinding(
            "torch-cuda",
            ERROR,
            torch.file,
            torch.line,
            f"there is no torch {torch.text}",
            f"torch {version_text(minor(torch.version))} is built with {wheels}",
            f"take +cu{right[0]}{right[1]}, or another torch",
            _other_build(declared, torch, right) if not base or base[0] == right[0] else None,
        )


def _other_build(declared: DeclaredVersions, torch: Package, cuda: Version) -> Edit | None:
    """Return the edit that takes another build of torch; None if other packages name the same build."""
    suffix, right = f"cu{torch.cuda[0]}{torch.cuda[1]}", f"cu{cuda[0]}{cuda[1]}"
    others = (one for one in declared.packages.values() if one.name != "torch")
    if torch.file != declared.dockerfile or any(one.text.endswith(f"+{suffix}") for one in others):
        return None
    if torch.index:
        return Edit(torch.line, f"whl/{suffix}", f"whl/{right}")
    return Edit(torch.line, f"torch=={torch.text}", f"torch=={torch.text.partition('+')[0]}+{right}")


def _cuda_of_base(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    cuda = _cuda(declared)
    compiled = sorted(name for name in _COMPILED if name in declared.packages)
    base = declared.base_of(declared.packages[compiled[0]] if compiled else declared.torch)
    if not cuda or not base.cuda or declared.base_is_used or base.cuda[0] == cuda[0]:
        return
    if compiled and base.has_compiler:
        yield ImageFinding(
            "base-cuda",
            ERROR,
            declared.dockerfile,
            base.line,
            f"{base.image} has CUDA {version_text(base.cuda)}, torch is built with {version_text(cuda)}",
            f"{', '.join(compiled)} compiled here would end with 'The detected CUDA version mismatches the "
            "version that was used to compile PyTorch'",
            f"take a base image with CUDA {version_text(cuda)}",
        )
    else:
        yield ImageFinding(
            "base-cuda",
            WARNING,
            declared.dockerfile,
            base.line,
            f"{base.image} has CUDA {version_text(base.cuda)}, torch includes {version_text(cuda)}",
            "torch's wheels carry their own CUDA libraries; those of the base are found first where "
            "LD_LIBRARY_PATH names them",
            f"take a base image with CUDA {version_text(cuda)}, or one without CUDA such as python:3.11-slim",
        )


def _architecture(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[ImageFinding]:
    cuda, needed = _cuda(declared), OLDEST_CUDA.get(machine.architecture)
    if not cuda or not needed or cuda >= needed:
        return
    torch = declared.torch
    file, line = (torch.file, torch.line) if torch else (declared.dockerfile, declared.base.line)
    # Code for sm_100 runs on sm_103, as of one major architecture.
    runs = machine.architecture == "sm_103" and cuda >= OLDEST_CUDA["sm_100"]
    yield ImageFinding(
        "architecture",
        WARNING if runs else ERROR,
        file,
        line,
        f"CUDA {version_text(cuda)} does not know {machine.architecture}",
        "code for sm_100 runs there, but nothing can be compiled for it"
        if runs
        else "the first kernel ends with 'no kernel image is available for execution on the device'",
        f"take a torch that is built with CUDA {version_text(needed)} or newer",
    )


def _arch_list(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[ImageFinding]:
    if not declared.architectures or not machine.architecture:
        return
    number = machine.architecture.removeprefix("sm_")
    major = number[:-1]
    wanted = f"{major}.{number[-1]}"
    listed = re.findall(r"\d+\.\d", declared.architectures)
    runs = any(one.startswith(f"{major}.") and one <= wanted for one in listed)
    if runs or not listed or "+PTX" in declared.architectures:
        return
    line = next((v.line for v in declared.variables if v.name == "TORCH_CUDA_ARCH_LIST"), 0)
    oldest = OLDEST_CUDA.get(machine.architecture, ())
    compiles = not declared.base.cuda or declared.base.cuda >= oldest
    yield ImageFinding(
        "arch-list",
        ERROR,
        declared.dockerfile,
        line,
        f"TORCH_CUDA_ARCH_LIST={declared.architectures} omits {wanted} ({machine.architecture})",
        "extensions that are compiled here have no kernel for this GPU",
        f"add {wanted}",
        Edit(line, declared.architectures, f"{declared.architectures};{wanted}")
        if line and compiles
        else None,
    )


def _driver(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[ImageFinding]:
    cuda = _cuda(declared)
    needed = DRIVERS.get(cuda[0]) if cuda else None
    if machine.driver and needed and machine.driver < needed:
        yield ImageFinding(
            "driver",
            ERROR,
            declared.dockerfile,
            declared.base.line,
            f"CUDA {version_text(cuda)} needs driver {version_text(needed)} or newer, the machine has "
            f"{version_text(machine.driver)}",
            "torch.cuda.is_available() is False there: 'The NVIDIA driver on your system is too old'",
            "update the AMI of the nodes, or take a torch that is built with an older CUDA",
        )


def _suffixes(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    cuda = _cuda(declared)
    for name, package in sorted(declared.packages.items()):
        match = re.search(r"-cu(1[1-9])$", name)
        if cuda and match and int(match[1]) != cuda[0] and name[: match.start()] not in _FOR_EACH_CUDA:
            yield ImageFinding(
                "cuda-suffix",
                ERROR,
                package.file,
                package.line,
                f"{name} is for CUDA {match[1]}, torch is built with {version_text(cuda)}",
                "two CUDA runtimes in one process end in undefined symbols or a crash at the first kernel",
                f"take {name[: match.start()]}-cu{cuda[0]}",
            )


def _vllm(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    vllm, torch = declared.packages.get("vllm"), declared.torch
    needed = VLLM_TORCH.get(vllm.version[:3]) if vllm else None
    if vllm and torch and needed and not same_prefix(torch.version, needed):
        yield ImageFinding(
            "vllm-torch",
            ERROR,
            vllm.file,
            vllm.line,
            f"vllm {vllm.text} needs torch {version_text(needed)}, torch {torch.text} is installed",
            "its kernels are compiled against exactly that torch; pip refuses, or the import fails",
            f"take torch {version_text(needed)}, or a vllm of torch {version_text(torch.version)}",
            _other_torch(declared, torch, needed),
        )


def _other_torch(declared: DeclaredVersions, torch: Package, needed: Version) -> Edit | None:
    """The edit that takes another torch; None if packages whose torch is not in the tables depend on it."""
    bound = any(name in _BOUND or name.startswith("nvidia-") for name in declared.packages)
    if torch.file != declared.dockerfile or bound:
        return None
    written = torch.text.removesuffix(f"+{torch.index}") if torch.index else torch.text
    build = f"+{written.partition('+')[2]}" if "+" in written else ""
    return Edit(torch.line, f"torch=={written}", f"torch=={version_text(needed)}{build}")


def _pairs(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch = declared.torch
    for name, table in TORCH_PAIRS.items():
        package = declared.packages.get(name)
        needed = table.get(minor(torch.version)) if torch else None
        if torch and package and needed and not same_prefix(package.version, needed):
            yield ImageFinding(
                "torch-pair",
                ERROR,
                package.file,
                package.line,
                f"{name} {package.text} does not belong to torch {torch.text}",
                f"it is compiled against torch; to {version_text(minor(torch.version))} belongs {name} "
                f"{version_text(needed)}",
                f"take {name} {version_text(needed)}",
                Edit(
                    package.line,
                    f"{name}=={package.text}",
                    f"{name}=={_pair_version(package, torch, needed)}",
                )
                if package.file == declared.dockerfile
                else None,
            )


def _pair_version(package: Package, torch: Package, needed: Version) -> str:
    """The release of a package that belongs to a release of torch: their third numbers are the same."""
    third = torch.version[2] if len(torch.version) > 2 else 0
    build = package.text.partition("+")[2]
    return f"{version_text(needed)}.{third}" + (f"+{build}" if build else "")


def _flash_attention(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[ImageFinding]:
    third = declared.packages.get("flash-attn-3")
    if third and machine.architecture and machine.architecture != "sm_90":
        yield ImageFinding(
            "flash-attn",
            ERROR,
            third.file,
            third.line,
            f"flash-attn-3 has kernels for sm_90 only, not for {machine.architecture}",
            "it imports, and the first forward pass fails",
            "take flash-attn 2, or PyTorch's own scaled_dot_product_attention",
        )
    second = declared.packages.get("flash-attn")
    base = declared.base_of(second)
    known = base.kind != "other"
    if second and known and not base.has_compiler and second.file == declared.dockerfile:
        yield ImageFinding(
            "flash-attn-build",
            WARNING,
            second.file,
            second.line,
            f"flash-attn {second.text} is installed where there is no nvcc ({base.image})",
            "PyPI has only its source; without a wheel of exactly this torch, CUDA and Python it cannot be "
            "built",
            "install a wheel of its release page, or build it in a stage that starts from a -devel image",
        )


def _cuda(declared: DeclaredVersions) -> Version:
    """Return the CUDA release that torch runs with; empty if it is unknown."""
    if declared.base_is_used:
        return declared.base.cuda
    if declared.cuda:
        return declared.cuda
    own = declared.torch if declared.torch_build == "pypi" else None
    release = TORCH.get(minor(own.version)) if own else None
    return release.default_cuda if release else ()


PACKAGE_RULES: tuple[Rule, ...] = (
    _own_python,
    _torch_python,
    _torch_twice,
    _cuda_of_torch,
    _cuda_of_base,
    _architecture,
    _arch_list,
    _driver,
    _suffixes,
    _vllm,
    _pairs,
    _flash_attention,
)
