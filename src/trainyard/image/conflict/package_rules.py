"""Rules for packages: torch, CUDA, Python, drivers, GPUs, and packages compiled against torch.

A rule that does not know a version reports nothing.
"""

import re
from collections.abc import Iterator

from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.finding import ERROR, WARNING, Edit, ImageFinding, Rule, TargetMachine
from trainyard.image.conflict.version_facts import (
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

_COMPILED = ("flash-attn", "transformer-engine", "transformer-engine-torch", "apex", "deepspeed", "vllm")
"""Packages whose extensions are compiled against torch, often on installation."""

_FOR_EACH_CUDA = ("nvidia-cutlass-dsl-libs",)
"""Parts for several CUDA releases, of which the package uses one: nvidia-cutlass-dsl requires both
(metadata)."""


def _torch_python(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, python = declared.torch, declared.base.python
    release = TORCH.get(minor(torch.version)) if torch else None
    if torch and release and python and not release.oldest_python <= python <= release.newest_python:
        span = f"{version_text(release.oldest_python)} to {version_text(release.newest_python)}"
        yield ImageFinding(
            "torch-python",
            ERROR,
            declared.dockerfile,
            declared.base.line,
            f"torch {torch.text} has no wheel for Python {version_text(python)}",
            f"its wheels are built for Python {span}; the installation ends with 'no matching distribution'",
            f"take a base image with Python {version_text(release.newest_python)}, or another torch",
        )


def _own_python(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    python = declared.base.python
    if python and python < OLDEST_PYTHON:
        yield ImageFinding(
            "python",
            ERROR,
            declared.dockerfile,
            declared.base.line,
            f"{declared.base.image} has Python {version_text(python)}",
            f"this package needs Python {version_text(OLDEST_PYTHON)} or newer",
            "take a base image with a newer Python",
        )


def _torch_twice(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch, base = declared.torch, declared.base
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
        "start from nvidia/cuda or python, or leave torch out of the lock and take the base's",
    )


def _cuda_of_torch(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    torch = declared.torch
    release = TORCH.get(minor(torch.version)) if torch else None
    if torch and release and torch.cuda and torch.cuda not in release.cuda:
        wheels = ", ".join(f"cu{a}{b}" for a, b in release.cuda)
        default = f"cu{release.default_cuda[0]}{release.default_cuda[1]}"
        yield ImageFinding(
            "torch-cuda",
            ERROR,
            torch.file,
            torch.line,
            f"there is no torch {torch.text}",
            f"torch {version_text(minor(torch.version))} is built with {wheels}",
            f"take +{default}",
            Edit(torch.line, f"cu{torch.cuda[0]}{torch.cuda[1]}", default) if torch.line else None,
        )


def _cuda_of_base(declared: DeclaredVersions, _machine: TargetMachine) -> Iterator[ImageFinding]:
    cuda, base = _cuda(declared), declared.base
    if not cuda or not base.cuda or declared.base_is_used or base.cuda[0] == cuda[0]:
        return
    compiled = sorted(name for name in _COMPILED if name in declared.packages)
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
            f"{base.image} has CUDA {version_text(base.cuda)}, torch brings {version_text(cuda)}",
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
    yield ImageFinding(
        "arch-list",
        ERROR,
        declared.dockerfile,
        line,
        f"TORCH_CUDA_ARCH_LIST={declared.architectures} leaves out {wanted} ({machine.architecture})",
        "extensions that are compiled here have no kernel for this GPU",
        f"add {wanted}",
        Edit(line, declared.architectures, f"{declared.architectures};{wanted}") if line else None,
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
            Edit(torch.line, f"torch=={torch.text.partition('+')[0]}", f"torch=={version_text(needed)}")
            if torch.file == declared.dockerfile
            else None,
        )


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
                Edit(package.line, f"{name}=={package.text}", f"{name}=={version_text(needed)}.0")
                if package.file == declared.dockerfile
                else None,
            )


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
    if second and not declared.base.has_compiler and second.file == declared.dockerfile:
        yield ImageFinding(
            "flash-attn-build",
            WARNING,
            second.file,
            second.line,
            f"flash-attn {second.text} is installed where there is no nvcc ({declared.base.image})",
            "PyPI has only its source; without a wheel of exactly this torch, CUDA and Python it cannot be "
            "built",
            "install a wheel of its release page, or build it in a stage that starts from a -devel image",
        )


def _cuda(declared: DeclaredVersions) -> Version:
    """The CUDA release that torch runs with."""
    if declared.base_is_used:
        return declared.base.cuda
    if declared.cuda:
        return declared.cuda
    release = TORCH.get(minor(declared.torch.version)) if declared.torch else None
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
