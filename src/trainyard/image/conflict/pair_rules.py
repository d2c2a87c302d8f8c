"""Rules for what no resolver knows: pairs of packages, builds, and folders that the loader searches.

The pairs are rows of image/facts/pairs.yaml. A rule that does not know a version reports nothing.
"""

import re
from collections.abc import Iterator

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, TargetMachine, image_finding
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.package_rules import Rule
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.conflict.version_facts import (
    Version,
    minor,
    row_of,
    rows_with,
    torch_row,
    version,
    version_text,
)
from trainyard.plan.finding import Finding

_APEX = re.compile(r"github\.com/NVIDIA/apex|\bapex\b.*--cuda_ext", re.IGNORECASE)
_CUDA_EXTENSION = re.compile(r"--cuda_ext|APEX_CUDA_EXT")
_REMOVED_LOADER_FILES = re.compile(r"\brm\b[^;&|\n]*(?:ofi-?nccl[^;&|\n]*\.conf|ld\.so\.conf\.d/\*)")


def _known_version(declared: DeclaredVersions, name: str) -> Version:
    """Return the version of a package, of torch also the base's; () if unknown."""
    package = declared.packages.get(name)
    base = declared.base.torch if name == "torch" and declared.base_is_used else ()
    return package.version if package else base


def _pair(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    reported = set[str]()
    for row in rows_with("pairs", "package"):
        name, other = row["package"], row["with"]
        found, beside = _known_version(declared, name), _known_version(declared, other)
        if name in reported or not found or not version(row["from"]) <= beside:
            continue
        if found < version(row["below"]):
            reported.add(name)
            package = declared.packages.get(name)
            yield image_finding(
                package.line if package else declared.base.line,
                f"{name} {version_text(found)} does not work with {other} {version_text(beside)}",
                row["why"],
                f"take {name} {row['below']} or newer, or {other} before {row['from']}",
                # A program that never converts a tensor may run: an error needs a version that was chosen.
                severity=WARNING if row.get("soft") and declared.packages[other].is_resolved else ERROR,
                file=package.file if package else "",
            )


def _build_isolation(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    names, newest = (
        next(rows_with("pairs", key))[key] for key in ("builds_with_torch", "builds_with_newest")
    )
    found, last = (
        _known_version(declared, "torch"),
        max(version(row["torch"]) for row in rows_with("torch", "nccl")),
    )
    for step in declared.steps if "NO_BUILD_ISOLATION" not in str(declared.variables) else ():
        install = step.install
        isolated = install.is_isolated and not install.other_indexes and not install.removes
        for one in (one for one in step.stated if isolated and one.written):
            if one.name in names and install.is_uv:
                yield image_finding(
                    step.line,
                    f"uv builds {one.written} in an environment without torch",
                    "its setup imports torch and ends with \"No module named 'torch'\"",
                    "install torch first, and pass --no-build-isolation",
                )
            elif one.name in newest and found and minor(found) < last:
                yield image_finding(
                    step.line,
                    f"{one.written} is compiled against the newest torch, not against {version_text(found)}",
                    "its isolated build installs torch anew: nvcc has another CUDA, or the import ends with "
                    "an undefined symbol",
                    "install torch first, and pass --no-build-isolation",
                )


def _apex(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    cuda, base = declared.cuda, declared.base_of(declared.torch)
    is_built = _APEX.search(declared.commands) and _CUDA_EXTENSION.search(declared.commands)
    is_patched = re.search(r"\bsed\b[^\n]*setup\.py|check_cuda_torch", declared.commands)
    lines = [one.line for one in declared.parsed.instructions if "apex" in one.text.lower()]
    if declared.torch and lines and declared.torch.line > lines[0]:
        return  # apex is built with an earlier torch
    differs = bool(base.cuda and cuda) and minor(base.cuda) != minor(cuda)
    if is_built and not is_patched and base.has_compiler and differs:
        yield image_finding(
            base.line,
            f"apex compares CUDA {version_text(base.cuda)} of {base.image} with torch's {version_text(cuda)}",
            "its setup stops: 'Cuda extensions are being compiled with a version of Cuda that does not match "
            "the version used to compile Pytorch binaries'",
            f"take a base image with CUDA {version_text(cuda)}, or another build of torch",
        )


def _origin(declared: DeclaredVersions, machine: TargetMachine, package: Package | None) -> str:
    """Return what a build of torch or a companion is for: CPU, ROCm or a CUDA; empty if unknown."""
    torch = declared.torch
    if package is None or torch is None:
        return ""
    if package.build in ("cpu", "rocm"):
        return {"cpu": "CPU", "rocm": "ROCm"}[package.build]
    if package.build == "named" and package.cuda:
        return f"CUDA {package.cuda[0]}"
    first = version(next(rows_with("pairs", "aarch64_cuda"))["aarch64_cuda"])
    if package.build == "pypi" and machine.processor == "aarch64" and torch.version < first:
        return "CPU"
    cuda = version(torch_row(torch.version).get("pypi_cuda", "")) if package.build == "pypi" else ()
    return f"CUDA {cuda[0]}" if cuda else ""


def _mixed_builds(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    torch = declared.torch
    own = _origin(declared, machine, torch)
    if not torch or not own:
        return
    for name in ("torchvision", "torchaudio"):
        package = declared.packages.get(name)
        other = _origin(declared, machine, package)
        if package and other and other != own:
            yield image_finding(
                package.line,
                f"{name} {package.text} is built for {other}, torch {torch.text} for {own}",
                "its library does not load, or 'operator torchvision::nms does not exist'",
                f"install {name} from the index that torch is from",
                file=package.file,
            )
    base = declared.base_of(torch)
    if base.kind == "rocm" and own != "ROCm":
        yield image_finding(
            torch.line,
            f"torch {torch.text} for {own} replaces the ROCm build of {base.image}",
            "torch.cuda.is_available() is False on AMD's GPUs",
            "omit torch, or install it from https://download.pytorch.org/whl/rocm…",
            file=torch.file,
        )
    if machine.processor == "aarch64" and own == "CPU" and torch.build == "pypi":
        yield image_finding(
            torch.line,
            f"torch {torch.text} of PyPI is built for CPU on aarch64, the processor of {machine.family}",
            "it sees no GPU; PyPI's wheels for aarch64 have CUDA from torch 2.11 on",
            "install it with --index-url https://download.pytorch.org/whl/cu130 or another CUDA",
            file=torch.file,
        )


def _library_path(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    """Judge the folders that LD_LIBRARY_PATH names: they come before those of torch and of the driver."""
    paths = [one for one in declared.variables if one.name == "LD_LIBRARY_PATH"]
    folders = paths[-1].value.split(":") if paths else []
    line = paths[-1].line if paths else 0
    own = version(row_of("cuda", toolkit=version_text(minor(declared.base.cuda))).get("bundled_driver", ""))
    has_compat = any(re.fullmatch(r"/usr/local/cuda[\d.-]*/compat/?", folder) for folder in folders)
    if has_compat and own and machine.driver[:1] > own[:1]:
        yield image_finding(
            line,
            f"LD_LIBRARY_PATH names the compat folder of CUDA {version_text(declared.base.cuda)}",
            f"its libcuda of driver {version_text(own)} comes before the machine's newer one: CUDA ends with "
            "error 803, 'system has unsupported display driver / cuda driver combination'",
            "remove it: the NVIDIA container toolkit adds the folder where the driver is older",
        )
    fact, torch = next(rows_with("pairs", "cudnn")), declared.torch
    old = re.search(r"cudnn(8)(?!\d)", declared.base.image)
    is_first = any("/lib/x86_64-linux-gnu" in folder for folder in folders)
    if torch and old and is_first and torch.version >= version(fact["torch"]) and torch.build != "base":
        yield image_finding(
            line,
            f"LD_LIBRARY_PATH puts cuDNN 8 of the base before cuDNN {fact['cudnn']} of torch {torch.text}",
            "torch ends with 'cuDNN version incompatibility', or with an undefined symbol of libcudnn",
            f"remove the folder from LD_LIBRARY_PATH, or take a base image with cuDNN {fact['cudnn']}",
            severity=WARNING if declared.base_is_used else ERROR,
        )
    row = next(rows_with("pairs", "absent"))
    dead = [one for one in folders if one.startswith(tuple(row["absent"]))]
    made = any(f"={folder}" in declared.commands for folder in row["absent"])
    found = any(one.startswith(row["folder"]) for one in folders)
    is_hidden = _REMOVED_LOADER_FILES.search(declared.commands)
    is_new = declared.efa_installer >= version(row["installer"])
    if dead and machine.efa and is_new and is_hidden and not made and not found:
        yield image_finding(
            line,
            f"{dead[0]} does not exist: EFA installer {version_text(declared.efa_installer)} makes "
            f"{row['folder']}",
            "the loader does not find the plugin of NCCL, which then uses TCP, without an error",
            f"write {row['folder']}/lib, or keep the installer's file in /etc/ld.so.conf.d",
        )


def _net_plugin(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    row = next(rows_with("pairs", "net_plugin"))
    for one in declared.variables:
        if one.name != "NCCL_NET_PLUGIN" or not machine.efa or not one.value or "/" in one.value:
            continue
        known = declared.efa_plugin >= version(row["plugin"]) or declared.efa_installer
        if (
            one.value != row["net_plugin"]
            and not one.value.endswith(".so")
            and (known or one.value == "none")
        ):
            yield image_finding(
                one.line,
                f"ENV NCCL_NET_PLUGIN={one.value}",
                "NCCL loads libnccl-net-NAME.so, and the plugin of EFA is libnccl-net-ofi.so: it uses TCP",
                f"remove it, or set it to {row['net_plugin']}",
            )


PAIR_RULES: tuple[Rule, ...] = (*(_pair, _build_isolation, _apex, _mixed_builds, _library_path, _net_plugin),)
