"""Rules for packages: torch, CUDA, Python, drivers, GPUs, compiled packages, and pairs that fail.

A rule that does not know a version answers nothing. Its words are rows of facts/rules.yaml; pairs of packages
that no resolver knows are rows of facts/pairs.yaml.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, TargetMachine, answer
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.context.dockerfile import is_stated
from trainyard.image.version_facts import (
    Version,
    fact,
    minor,
    oldest_cuda,
    oldest_driver,
    rows_with,
    same_prefix,
    torch_builds,
    torch_row,
    version,
    version_text,
)
from trainyard.plan.finding import Edit, Finding

Rule = Callable[[DeclaredVersions, TargetMachine], Iterator[Finding]]
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\+cu\d{3})?")
"""The version of a release; nightly builds exist with other CUDA releases."""


def _torch_python(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    python = minor(base.python)
    oldest, newest = map(version, torch_row(torch.version).get("python", ("", ""))) if torch else ((), ())
    if torch and oldest and python and not oldest <= python <= newest:
        yield answer("torch-python", base, torch=torch.text, python=python, oldest=oldest, newest=newest)


def _torch_twice(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch, base = declared.torch, declared.base_of(declared.torch)
    # If torch is removed, what was compiled against the base's torch may be removed, too.
    if not torch or not base.torch or "torch" in declared.installed.removed:
        return
    is_ngc = base.kind == "ngc"
    # NGC's torch is a development version, such as 2.6.0a0, which no release is equal to.
    if not same_prefix(torch.version, base.torch) or (is_ngc and torch.build != "base"):
        row = "torch-twice.ngc" if is_ngc else "torch-twice"
        yield answer(row, torch, torch=torch.text, own=base.torch, image=base.image)


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
        base = declared.base_of(torch).cuda
        right = base if base in builds else version(torch_row(torch.version)["pypi_cuda"])
        edit = _other_build(declared, torch, right) if not base or base[0] == right[0] else None
        wheels, release, suffix = ", ".join(map(_suffix, builds)), minor(torch.version), _suffix(right)
        yield answer(
            "torch-cuda", torch, edit=edit, torch=torch.text, release=release, wheels=wheels, right=suffix
        )


def _suffix(cuda: Version) -> str:
    return f"cu{cuda[0]}{cuda[1]}"


def _other_build(declared: DeclaredVersions, torch: Package, cuda: Version) -> Edit | None:
    """Return the edit that takes another build of torch; None if other packages name the same build."""
    suffix, right = _suffix(torch.cuda), _suffix(cuda)
    others = (one for one in declared.packages.values() if one.name != "torch")
    if torch.file != declared.dockerfile or any(one.text.endswith(f"+{suffix}") for one in others):
        return None
    pin = f"torch=={torch.text}"
    if pin not in declared.commands:  # the index states the build
        return Edit(torch.line, f"whl/{suffix}", f"whl/{right}")
    return Edit(torch.line, pin, f"{pin.partition('+')[0]}+{right}")


def _base_cuda(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda = declared.cuda
    # What is compiled before torch is replaced was compiled with another torch.
    last = declared.torch.step if declared.torch else -1
    # deepspeed compiles its kernels at the first use, and without nvcc of another CUDA.
    found = (declared.packages.get(name) for name in {*fact("pairs", "compiles")} - {"deepspeed"})
    compiled = sorted(one.name for one in found if one and one.step >= last)
    base = declared.base_of(declared.packages[compiled[0]] if compiled else declared.torch)
    differs = cuda and base.cuda and not declared.base_is_used and base.cuda[0] != cuda[0]
    if differs and compiled and base.has_compiler:
        named = ", ".join(compiled)
        yield answer("base-cuda", base, image=base.image, own=base.cuda, cuda=cuda, compiled=named)


def _architecture(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    cuda, needed = declared.cuda, oldest_cuda(machine.architecture)
    if cuda and needed and cuda < needed:
        # Code for sm_100 runs on sm_103, which has the same major architecture.
        runs = machine.architecture == "sm_103" and cuda >= oldest_cuda("sm_100")
        row, place = "architecture.family" if runs else "architecture", declared.torch or declared.base
        yield answer(row, place, cuda=cuda, architecture=machine.architecture, needed=needed)


def _arch_list(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    number, text = machine.architecture.removeprefix("sm_"), declared.architectures
    major, wanted = f"{number[:-1]}.", f"{number[:-1]}.{number[-1:]}"
    listed = re.findall(r"\d+\.\d", text) if number else []
    runs = any(one.startswith(major) and one <= wanted for one in listed)
    if listed and not runs and "+PTX" not in text:
        place = declared.variable("TORCH_CUDA_ARCH_LIST")
        yield answer("arch-list", place, listed=text, wanted=wanted, architecture=machine.architecture)


def _driver(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    cuda, driver, needed = declared.cuda, machine.driver, oldest_driver(declared.cuda)
    if driver and needed and driver < needed:
        yield answer("driver", declared.base, cuda=cuda, needed=needed, driver=driver)


def _cuda_suffix(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda, for_each = declared.cuda, fact("pairs", "for_each_cuda")
    for name, package in sorted(declared.packages.items()):
        stem, _cu, suffix = name.rpartition("-cu")
        if cuda and re.fullmatch(r"1[1-9]", suffix) and int(suffix) != cuda[0] and stem not in for_each:
            yield answer(
                "cuda-suffix", package, name=name, suffix=suffix, cuda=cuda, stem=stem, major=cuda[0]
            )


def _flash_attn(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    third = declared.packages.get("flash-attn-3")
    if third and machine.architecture and machine.architecture != "sm_90":
        yield answer("flash-attn", third, architecture=machine.architecture)


def _compiled(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    torch_is_there, compiled, tools = False, fact("pairs", "needs_nvcc"), fact("pairs", "build_tools")
    for step in declared.steps:
        stated, base, install = step.stated, step.base, step.install
        source = next((one for one in stated if one.name in compiled and one.written), None)
        if source and not install.removes and not install.other_indexes:
            if not base.has_compiler and base.kind not in ("other", "rocm") and is_stated(base.image):
                severity = WARNING if _may_have_cuda(declared, step) else ERROR
                package, image = source.written, base.image
                yield answer("compiled.nvcc", step, severity=severity, package=package, image=image)
            elif not torch_is_there and base.kind in ("cuda", "python", "system"):
                yield answer("compiled.torch", step, package=source.written, name=source.name)
        if step.unread or (not install.removes and any(one.name not in tools for one in stated)):
            torch_is_there = True  # more than build tools may include torch


_MAY_HAVE_CUDA = re.compile(r"(?<!whl/)(?:cuda|nvcc|conda\b|SKIP_CUDA_BUILD|\.run\b)", re.IGNORECASE)
"""Text of commands that may install nvcc, or build flash-attn without it."""


def _may_have_cuda(declared: DeclaredVersions, step: InstallStep) -> bool:
    """Return whether an instruction up to a command may install CUDA; the driver reads `NVIDIA_*`."""
    here = [line for line in declared.parsed.lineage(step.stage) if line.line <= step.line]
    texts = (i.text for i in here if i.name in ("RUN", "COPY", "ADD", "ENV") and "NVIDIA_" not in i.text)
    return any(map(_MAY_HAVE_CUDA.search, texts))


def _wheel(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    """Judge wheels of release pages, whose names say what they are built for."""
    for step in declared.steps:
        for one in step.stated:
            built = _BUILT_FOR.search(one.wheel)
            if differs := list(_differences(declared, step, built)) if built else []:
                wanted, found = (", ".join(words) for words in zip(*differs, strict=True))
                yield answer("wheel", one, wheel=one.wheel, wanted=wanted, found=found, name=one.name)


_BUILT_FOR = re.compile(
    r"\+?(?:cu(?P<cuda>\d{2,3}))?torch(?P<torch>\d+\.\d+)(?:\.\d+)?(?:cxx11abi(?P<abi>TRUE|FALSE))?"
    r"-cp(?P<python>3\d+)-(?P<stable>abi3)?"
)


def _differences(
    declared: DeclaredVersions, step: InstallStep, built: re.Match[str]
) -> Iterator[tuple[str, str]]:
    """Yield what a wheel is for and what the image has instead."""
    own, cuda = minor(declared.version_of("torch")), declared.cuda
    if own and not same_prefix(own, version(built["torch"])):
        yield f"torch {built['torch']}", f"torch {version_text(own)}"
    if cuda and built["cuda"] and int(built["cuda"][:2]) != cuda[0]:
        yield f"CUDA {built['cuda'][:2]}", f"CUDA {cuda[0]}"
    python, wanted = minor(step.base.python), (3, int(built["python"][1:]))
    if python and (python < wanted if built["stable"] else python != wanted):
        yield f"Python {version_text(wanted)}", f"Python {version_text(python)}"
    name, _, rest = built.string.partition("-")
    for row in rows_with("pairs", "wheel"):
        is_release = version(row["from"]) <= version(rest) <= version(row.get("until", "99"))
        if row["wheel"] != name.replace("_", "-") or not is_release:
            continue
        glibc = row.get("glibc", "")
        if step.base.glibc[:1].isdigit() and version(step.base.glibc) < version(glibc):
            yield f"glibc {glibc} and newer", f"glibc {step.base.glibc}"
        if row.get("torch") == built["torch"] and cuda and cuda < version(row["cuda"]):
            yield f"torch {row['torch']} of CUDA {row['cuda']}", f"that of CUDA {version_text(cuda)}"
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
    spans = ((row, version(row["oldest"]), version(row["newest"])) for row in rows_with("torch", "cxx11abi"))
    return next((str(row["cxx11abi"]) for row, oldest, newest in spans if oldest <= torch <= newest), "")


def _pair(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    reported = set[str]()
    pairs = ((row, *pair) for row in rows_with("pairs", "below") for pair in row["below"].items())
    for row, name, below in pairs:
        other = row["with"]
        found, beside = declared.version_of(name), declared.version_of(other)
        if name not in reported and found and found < version(below) and version(row["from"]) <= beside:
            reported.add(name)
            # A program that never converts a tensor may run: an error needs a version that was chosen.
            is_soft = row.get("soft") and declared.packages[other].is_resolved
            names: dict[str, Any] = {"name": name, "found": found, "other": other, "beside": beside}
            names |= {"reason": row["why"], "below": below, "start": row["from"]}
            place = declared.packages.get(name, declared.base)
            yield answer("pair", place, severity=WARNING if is_soft else ERROR, **names)


def _build_isolation(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    names, newest = fact("pairs", "builds_with_torch"), fact("pairs", "builds_with_newest")
    found = declared.version_of("torch")
    last = max(version(row["torch"]) for row in rows_with("torch", "nccl"))
    for step in declared.steps if "NO_BUILD_ISOLATION" not in str(declared.variables) else ():
        install = step.install
        isolated = install.is_isolated and not install.other_indexes and not install.removes
        for one in (one for one in step.stated if isolated and one.written):
            if one.name in names and install.is_uv:
                yield answer("build-isolation.torch", step, package=one.written)
            elif one.name in newest and found and minor(found) < last:
                yield answer("build-isolation.newest", step, package=one.written, torch=found)


_APEX = re.compile(r"github\.com/NVIDIA/apex|\bapex\b.*--cuda_ext", re.IGNORECASE)
_CUDA_EXTENSION = re.compile(r"--cuda_ext|APEX_CUDA_EXT")


def _apex(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda, base = declared.cuda, declared.base_of(declared.torch)
    is_built = _APEX.search(declared.commands) and _CUDA_EXTENSION.search(declared.commands)
    is_patched = re.search(r"\bsed\b[^\n]*setup\.py|check_cuda_torch", declared.commands)
    lines = [one.line for one in declared.parsed.instructions if "apex" in one.text.lower()]
    if declared.torch and lines and declared.torch.line > lines[0]:
        return  # apex is built with an earlier torch
    differs = bool(base.cuda and cuda) and minor(base.cuda) != minor(cuda)
    if is_built and not is_patched and base.has_compiler and differs:
        yield answer("apex", base, own=base.cuda, image=base.image, cuda=cuda)


def _origin(declared: DeclaredVersions, machine: TargetMachine, package: Package | None) -> str:
    """Return what a build of torch or a companion is for: CPU, ROCm or a CUDA; empty if unknown."""
    torch = declared.torch
    if package is None or torch is None:
        return ""
    if package.build in ("cpu", "rocm"):
        return {"cpu": "CPU", "rocm": "ROCm"}[package.build]
    cuda = package.cuda if package.build == "named" else ()
    if package.build == "pypi":
        if machine.processor == "aarch64" and torch.version < version(fact("pairs", "aarch64_cuda")):
            return "CPU"
        cuda = version(torch_row(torch.version).get("pypi_cuda", ""))
    return f"CUDA {cuda[0]}" if cuda else ""


def _mixed_builds(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    torch = declared.torch
    own, base = _origin(declared, machine, torch), declared.base_of(torch)
    if not torch or not own:
        return
    for package in (declared.packages.get(name) for name in ("torchvision", "torchaudio")):
        other = _origin(declared, machine, package)
        if package and other and other != own:
            name, found = package.name, package.text
            yield answer(
                "mixed-builds", package, name=name, found=found, other=other, torch=torch.text, own=own
            )
    if base.kind == "rocm" and own != "ROCm":
        yield answer("mixed-builds.rocm", torch, torch=torch.text, own=own, image=base.image)
    if machine.processor == "aarch64" and own == "CPU" and torch.build == "pypi":
        yield answer("mixed-builds.aarch64", torch, torch=torch.text, family=machine.family)


PACKAGE_RULES: tuple[Rule, ...] = (
    *(_torch_python, _torch_twice, _torch_cuda, _base_cuda, _architecture),
    *(_arch_list, _driver, _cuda_suffix, _flash_attn, _compiled, _wheel),
    *(_pair, _build_isolation, _apex, _mixed_builds),
)
