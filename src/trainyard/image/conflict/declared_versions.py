"""The content of an image as declared by its Dockerfile, its lock and the name of its base image.

Nothing is resolved: a package that is pinned in neither the lock nor the Dockerfile is unknown.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from trainyard.image.conflict.version_facts import NGC, Version, minor, version
from trainyard.image.context.dockerfile import Dockerfile, Instruction, expand, pairs_of

_SPEC = re.compile(r"(?<![\w./-])([A-Za-z][A-Za-z0-9._-]*)(?:\[[\w,-]*\])?==([0-9][\w.+!-]*)")
_LOCKED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]*))?")
_NOT_ON_LINUX = re.compile(r"sys_platform == '(?:win32|darwin)'|platform_system == 'Windows'")
_INDEX = re.compile(r"download\.pytorch\.org/whl/(?:nightly/)?(cu\d{3}|cpu)")
_EFA = re.compile(r"aws-efa-installer-([0-9][\d.]*\d)\.tar")
_PLUGIN = re.compile(
    r"aws-ofi-nccl[/-]+(?:releases/download/|archive/(?:refs/tags/)?)?v?(\d+\.\d+(?:\.\d+)?)"
)
_CUDA_TAG = re.compile(r"cu(?:da)?-?(\d{2})\.?(\d)")
_PYTHON_TAG = re.compile(r"(?:^|[-_])py(?:thon)?(\d)\.?(\d{1,2})(?:[-_.]|$)")


@dataclass(frozen=True)
class Package:
    """A package that is pinned to one version."""

    name: str
    text: str
    """The version as written."""
    file: str
    line: int
    """The line; 0 if it does not matter."""

    @property
    def version(self) -> Version:
        return version(self.text)

    @property
    def cuda(self) -> Version:
        """The CUDA release of a local version such as +cu124; empty without one."""
        match = re.search(r"\+cu(\d{2})(\d)", self.text)
        return (int(match[1]), int(match[2])) if match else ()


@dataclass(frozen=True)
class BaseImage:
    """The facts in the name of a base image."""

    image: str
    kind: str
    """pytorch, ngc, dlc, cuda, python or other."""
    torch: Version = ()
    cuda: Version = ()
    python: Version = ()
    has_compiler: bool = False
    """Whether it includes nvcc."""
    line: int = 0


@dataclass(frozen=True)
class Variable:
    """A variable that the last stage sets."""

    name: str
    value: str
    line: int


@dataclass(frozen=True)
class DeclaredVersions:
    """Everything that the rules use."""

    dockerfile: str
    """Its name, for messages."""
    parsed: Dockerfile
    base: BaseImage
    packages: Mapping[str, Package] = field(default_factory=dict)
    """By canonical name. What the Dockerfile installs overrides the lock, as it does in the image."""
    variables: tuple[Variable, ...] = ()
    efa_installer: Version = ()
    efa_plugin: Version = ()
    nccl: Version = ()
    architectures: str = ""
    """TORCH_CUDA_ARCH_LIST."""

    @property
    def torch(self) -> Package | None:
        return self.packages.get("torch")

    @property
    def cuda(self) -> Version:
        """The CUDA release of torch, from its version, an index or other packages; empty if unknown."""
        if self.torch and self.torch.cuda:
            return self.torch.cuda
        toolkit = self.packages.get("cuda-toolkit")
        if toolkit:
            return minor(toolkit.version)
        runtime = next((self.packages[n] for n in self.packages if n.startswith("nvidia-cuda-runtime")), None)
        return minor(runtime.version) if runtime else ()

    @property
    def base_is_used(self) -> bool:
        """Whether torch comes from the base image."""
        return self.torch is None and bool(self.base.torch)


def declare(parsed: Dockerfile, name: str, locked: Mapping[str, tuple[str, int, str]]) -> DeclaredVersions:
    """Read the declarations of the last stage of a Dockerfile called `name`.

    `locked` is the content of its locks: name -> version, line and file.
    """
    packages = {package: Package(package, text, file, line) for package, (text, line, file) in locked.items()}
    index, variables, known = "", [], dict(parsed.arguments)
    efa: Version = ()
    plugin: Version = ()
    for instruction in parsed.instructions:
        text = expand(instruction.text, known)
        if instruction.name == "ENV":
            for key, value in pairs_of(instruction).items():
                known[key] = expand(value, known)
                if instruction.stage == len(parsed.stages) - 1:
                    variables.append(Variable(key, known[key], instruction.line))
        elif instruction.name == "RUN":
            packages |= _installed(instruction, text, name)
            index = match[1] if (match := _INDEX.search(text)) else index
            efa = version(match[1]) if (match := _EFA.search(text)) else efa
            plugin = version(match[1]) if (match := _PLUGIN.search(text)) else plugin
    if index.startswith("cu") and (torch := packages.get("torch")) and not torch.cuda:
        packages["torch"] = Package("torch", f"{torch.text}+{index}", torch.file, torch.line)
    nccl = version(known.get("NCCL_VERSION", "").removeprefix("v"))
    wheel = next((packages[one].version for one in packages if one.startswith("nvidia-nccl-cu")), ())
    return DeclaredVersions(
        dockerfile=name,
        parsed=parsed,
        base=base_image(
            parsed.final_base(), next((s.line for s in parsed.bases[::-1] if s not in parsed.copied_from), 0)
        ),
        packages=packages,
        variables=tuple(variables),
        efa_installer=efa or version(known.get("EFA_INSTALLER_VERSION", "")),
        efa_plugin=plugin or version(known.get("AWS_OFI_NCCL_VERSION", "").removeprefix("v")),
        nccl=wheel or nccl,
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
    )


def base_image(image: str, line: int = 0) -> BaseImage:
    """Read the facts in the name of a base image."""
    named = image.partition("@")[0]
    head, _, tag = named.rpartition(":")
    head, tag = (head, tag) if head and "/" not in tag else (named, "")
    cuda: Version = (int(m[1]), int(m[2])) if (m := _CUDA_TAG.search(tag)) else ()
    python: Version = (int(m[1]), int(m[2])) if (m := _PYTHON_TAG.search(tag)) else ()
    if head.endswith("nvidia/pytorch"):
        torch, cuda, python = NGC.get(tag[:5], ((), (), ()))
        return BaseImage(image, "ngc", torch, cuda, python, True, line)
    if "pytorch-training" in head:
        return BaseImage(image, "dlc", version(tag), cuda, python, True, line)
    if head.endswith("pytorch/pytorch"):
        return BaseImage(image, "pytorch", version(tag), cuda, python, "devel" in tag, line)
    if head.endswith("nvidia/cuda"):
        return BaseImage(image, "cuda", (), minor(version(tag)), (), "devel" in tag, line)
    if head.rpartition("/")[2] == "python":
        return BaseImage(image, "python", (), (), minor(version(tag)), False, line)
    return BaseImage(image, "other", (), cuda, python, False, line)


def _installed(instruction: Instruction, text: str, name: str) -> dict[str, Package]:
    if not re.search(r"\b(?:pip3?|uv pip|conda|mamba)\b", text):
        return {}
    pins = ((canonicalize_name(package), found) for package, found in _SPEC.findall(text))
    return {package: Package(package, found, name, instruction.line) for package, found in pins}


def locked_packages(text: str) -> dict[str, tuple[str, int]]:
    """Name -> version and line, for all pins of a lock or requirements file that apply on 64-bit Linux."""
    found: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LOCKED.match(line)
        if match and not _NOT_ON_LINUX.search(match[3] or ""):
            found[canonicalize_name(match[1])] = (match[2], number)
    return found
