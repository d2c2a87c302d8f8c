"""Rules for packages: torch, CUDA, Python, drivers, GPUs, and packages compiled against torch.

A rule that does not know a version reports nothing.
"""

import re
from collections.abc import Callable, Iterator

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, TargetMachine, image_finding
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.conflict.version_facts import (
    Version,
    minor,
    names_in,
    oldest_cuda,
    oldest_driver,
    rows_with,
    same_prefix,
    torch_builds,
    torch_row,
    version,
    version_text,
)
from trainyard.image.context.dockerfile import is_stated
from trainyard.plan.finding import Edit, Finding

Rule = Callable[[DeclaredVersions, TargetMachine], Iterator[Finding]]
_BUILD_TOOLS = {
    *("pip", "setuptools", "wheel", "packaging", "ninja", "cmake", "build", "uv", "psutil", "einops"),
    "pybind11",
}
"""Packages that do not need torch."""
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\+cu\d{3})?")
"""The version of a release; nightly builds exist with other CUDA releases."""
_FOR_EACH_CUDA = ("nvidia-cutlass-dsl-libs",)
"""Parts for several CUDA releases: nvidia-cutlass-dsl requires all of them, and uses one."""


def _torch_python(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    python = minor(base.python)
    oldest, newest = map(version, torch_row(torch.version).get("python", ("", ""))) if torch else ((), ())
    if torch and oldest and python and not oldest <= python <= newest:
        span = f"{version_text(oldest)} to {version_text(newest)}"
        yield image_finding(
            base.line,
            f"torch {torch.text} has no wheel for Python {version_text(python)}",
            f"its wheels are built for Python {span}; the installation ends with 'no matching distribution'",
            f"take a base image with Python {version_text(newest)}, or another torch",
        )


def _torch_twice(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    if "torch" in declared.installed.removed:
        return  # what was compiled against the base's torch may be removed, too
    compiled = base.kind == "ngc"
    # NGC's torch is a development version, such as 2.6.0a0, which no release is equal to.
    if (
        not torch
        or not base.torch
        or (same_prefix(torch.version, base.torch) and not (compiled and torch.build != "base"))
    ):
        return
    yield image_finding(
        torch.line,
        f"torch {torch.text} replaces torch {version_text(base.torch)} of {base.image}",
        "Transformer Engine, flash-attn and apex of the NGC image are compiled against its own torch and "
        "fail to import with undefined symbols"
        if compiled
        else "the image contains both, some 5 GB too much, and the loader may mix their CUDA libraries",
        "start from nvidia/cuda or python, or omit torch from the lock and take the base's",
        severity=ERROR if compiled else WARNING,
        file=torch.file,
    )


def _torch_cuda(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch = declared.torch
    builds = torch_builds(torch.version) if torch else []
    if not torch or not builds or torch.build != "named" or not _RELEASE.fullmatch(torch.text):
        return  # another index or a nightly build may have it
    beside = any(
        row["beside_cuda"] == version_text(torch.cuda) and minor(torch.version) >= version(row["torch"])
        for row in rows_with("torch", "beside_cuda")
    )
    if torch.cuda not in builds and not beside:
        wheels = ", ".join(f"cu{a}{b}" for a, b in builds)
        base = declared.base_of(torch).cuda
        right = base if base in builds else version(torch_row(torch.version)["pypi_cuda"])
        yield image_finding(
            torch.line,
            f"there is no torch {torch.text}",
            f"torch {version_text(minor(torch.version))} is built with {wheels}",
            f"take +cu{right[0]}{right[1]}, or another torch",
            file=torch.file,
            edit=_other_build(declared, torch, right) if not base or base[0] == right[0] else None,
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


def _base_cuda(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda = declared.cuda
    # What is compiled before torch is replaced was compiled with another torch.
    last = declared.torch.step if declared.torch else -1
    # deepspeed compiles its kernels at the first use, and without nvcc of another CUDA.
    found = (declared.packages.get(name) for name in names_in("compiles") - {"deepspeed"})
    compiled = sorted(one.name for one in found if one and one.step >= last)
    base = declared.base_of(declared.packages[compiled[0]] if compiled else declared.torch)
    if not cuda or not base.cuda or declared.base_is_used or base.cuda[0] == cuda[0]:
        return
    if compiled and base.has_compiler:
        yield image_finding(
            base.line,
            f"{base.image} has CUDA {version_text(base.cuda)}, torch is built with {version_text(cuda)}",
            f"{', '.join(compiled)} compiled here would end with 'The detected CUDA version mismatches the "
            "version that was used to compile PyTorch'",
            f"take a base image with CUDA {version_text(cuda)}",
        )


def _architecture(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    cuda, needed = declared.cuda, oldest_cuda(machine.architecture)
    if not cuda or not needed or cuda >= needed:
        return
    torch = declared.torch
    file, line = (torch.file, torch.line) if torch else (declared.dockerfile, declared.base.line)
    # Code for sm_100 runs on sm_103, which has the same major architecture.
    runs = machine.architecture == "sm_103" and cuda >= oldest_cuda("sm_100")
    yield image_finding(
        line,
        f"CUDA {version_text(cuda)} does not support {machine.architecture}",
        "code for sm_100 runs there, but nothing can be compiled for it"
        if runs
        else "the first kernel ends with 'no kernel image is available for execution on the device'",
        f"take a torch that is built with CUDA {version_text(needed)} or newer",
        severity=WARNING if runs else ERROR,
        file=file,
    )


def _arch_list(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    if not declared.architectures or not machine.architecture:
        return
    number = machine.architecture.removeprefix("sm_")
    major = number[:-1]
    wanted = f"{major}.{number[-1]}"
    listed = re.findall(r"\d+\.\d", declared.architectures)
    runs = any(one.startswith(f"{major}.") and one <= wanted for one in listed)
    if runs or not listed or "+PTX" in declared.architectures:
        return
    yield image_finding(
        next((v.line for v in declared.variables if v.name == "TORCH_CUDA_ARCH_LIST"), 0),
        f"TORCH_CUDA_ARCH_LIST={declared.architectures} omits {wanted} ({machine.architecture})",
        "extensions that are compiled here have no kernel for this GPU",
        f"add {wanted}",
    )


def _driver(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    cuda = declared.cuda
    needed = oldest_driver(cuda)
    if machine.driver and needed and machine.driver < needed:
        yield image_finding(
            declared.base.line,
            f"CUDA {version_text(cuda)} needs driver {version_text(needed)} or newer, the machine has "
            f"{version_text(machine.driver)}",
            "torch.cuda.is_available() is False there: 'The NVIDIA driver on your system is too old'",
            "update the AMI of the nodes, or take a torch that is built with an older CUDA",
        )


def _cuda_suffix(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda = declared.cuda
    for name, package in sorted(declared.packages.items()):
        match = re.search(r"-cu(1[1-9])$", name)
        if cuda and match and int(match[1]) != cuda[0] and name[: match.start()] not in _FOR_EACH_CUDA:
            yield image_finding(
                package.line,
                f"{name} is for CUDA {match[1]}, torch is built with {version_text(cuda)}",
                "two CUDA runtimes in one process end in undefined symbols or a crash at the first kernel",
                f"take {name[: match.start()]}-cu{cuda[0]}",
                file=package.file,
            )


def _flash_attn(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    third = declared.packages.get("flash-attn-3")
    if third and machine.architecture and machine.architecture != "sm_90":
        yield image_finding(
            third.line,
            f"flash-attn-3 has kernels for sm_90 only, not for {machine.architecture}",
            "it imports, and the first forward pass fails",
            "take flash-attn 2, or PyTorch's own scaled_dot_product_attention",
            file=third.file,
        )


def _compiled(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch_is_there, compiled = False, names_in("needs_nvcc")
    for step in declared.steps:
        stated = step.stated
        source = next((one for one in stated if one.name in compiled and one.written), None)
        base, install = step.base, step.install
        if source and not install.removes and not install.other_indexes:
            if not base.has_compiler and base.kind not in ("other", "rocm") and is_stated(base.image):
                yield image_finding(
                    step.line,
                    f"{source.written} is compiled where there is no nvcc ({base.image})",
                    "PyPI has only its source, whose setup ends with 'CUDA_HOME environment variable is not "
                    "set' or 'nvcc was not found'",
                    "install a wheel from its release page for this torch, CUDA and Python, or build it in a "
                    "stage that starts from a -devel image",
                    severity=WARNING if _may_have_cuda(declared, step) else ERROR,
                )
            elif not torch_is_there and base.kind in ("cuda", "python", "system"):
                yield image_finding(
                    step.line,
                    f"{source.written} is installed before torch",
                    "its setup imports torch and ends with \"No module named 'torch'\"",
                    f"install torch first, and {source.name} after it with --no-build-isolation",
                )
        if step.unread or (not install.removes and any(one.name not in _BUILD_TOOLS for one in stated)):
            torch_is_there = True  # more than build tools may include torch


_MAY_HAVE_CUDA = re.compile(r"(?<!whl/)(?:cuda|nvcc|conda\b|SKIP_CUDA_BUILD|\.run\b)", re.IGNORECASE)
"""Text of commands that may install nvcc, or build flash-attn without it."""


def _may_have_cuda(declared: DeclaredVersions, step: InstallStep) -> bool:
    """Return whether an instruction up to a command may install CUDA; the driver reads `NVIDIA_*`."""
    stages = {stage.number for stage in declared.parsed.ancestors(step.stage)}
    here = [i for i in declared.parsed.instructions if i.stage in stages and i.line <= step.line]
    texts = (i.text for i in here if i.name in ("RUN", "COPY", "ADD", "ENV") and "NVIDIA_" not in i.text)
    return any(map(_MAY_HAVE_CUDA.search, texts))


def _wheel(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    """Judge wheels of release pages, whose names say what they are built for."""
    for step in declared.steps:
        for one in step.stated:
            built = _BUILT_FOR.search(one.wheel)
            differs = list(_differences(declared, step, built)) if built else []
            if differs:
                yield image_finding(
                    one.line,
                    f"{one.wheel} is for {', '.join(want for want, _ in differs)}, not for "
                    f"{', '.join(found for _, found in differs)}",
                    "pip refuses a wheel of another Python; one of another torch, CUDA or C++ ABI fails to "
                    "import with an undefined symbol",
                    f"take the wheel of {one.name} whose name has {', '.join(found for _, found in differs)}",
                    file=one.file,
                )


_BUILT_FOR = re.compile(
    r"\+?(?:cu(?P<cuda>\d{2,3}))?torch(?P<torch>\d+\.\d+)(?:\.\d+)?(?:cxx11abi(?P<abi>TRUE|FALSE))?"
    r"-cp(?P<python>3\d+)-(?P<stable>abi3)?"
)


def _differences(
    declared: DeclaredVersions, step: InstallStep, built: re.Match[str]
) -> Iterator[tuple[str, str]]:
    """Yield what a wheel is for and what the image has instead."""
    torch = declared.torch
    own = torch.version if torch else declared.base.torch if declared.base_is_used else ()
    if own and not same_prefix(minor(own), version(built["torch"])):
        yield f"torch {built['torch']}", f"torch {version_text(minor(own))}"
    cuda = declared.cuda
    if cuda and built["cuda"] and int(built["cuda"][:2]) != cuda[0]:
        yield f"CUDA {built['cuda'][:2]}", f"CUDA {cuda[0]}"
    python, wanted = minor(step.base.python), (3, int(built["python"][1:]))
    if python and (python < wanted if built["stable"] else python != wanted):
        yield f"Python {version_text(wanted)}", f"Python {version_text(python)}"
    name, _, rest = built.string.partition("-")
    listed = rows_with("pairs", "wheel")
    release = (one for one in listed if one["wheel"] == name.replace("_", "-"))
    needed = next((one["glibc"] for one in release if version(rest) >= version(one["from"])), "")
    if step.base.glibc[:1].isdigit() and version(step.base.glibc) < version(needed):
        yield f"glibc {needed} and newer", f"glibc {step.base.glibc}"
    abi = _abi(own, declared)
    if abi and built["abi"] and abi != built["abi"]:
        yield f"cxx11abi{built['abi']}", f"cxx11abi{abi}"


def _abi(torch: Version, declared: DeclaredVersions) -> str:
    """Return whether torch has the new C++ ABI, as TRUE or FALSE; empty if unknown."""
    if declared.base_is_used and declared.base.kind == "ngc":
        return "TRUE"
    build = declared.torch.build if declared.torch else ""
    if not torch or (build not in ("pypi", "named") and declared.base.kind != "pytorch"):
        return ""
    old, new = next(rows_with("torch", "abi_until")), next(rows_with("torch", "abi_from"))
    if minor(torch) <= version(old["abi_until"]):
        return str(old["cxx11abi"])
    return str(new["cxx11abi"]) if minor(torch) >= version(new["abi_from"]) else ""


PACKAGE_RULES: tuple[Rule, ...] = (
    *(_torch_python, _torch_twice, _torch_cuda, _base_cuda, _architecture),
    *(_arch_list, _driver, _cuda_suffix, _flash_attn, _compiled, _wheel),
)
