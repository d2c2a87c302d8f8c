"""Read the content of an image from its Dockerfile, the locks that it installs and the name of its base.

Nothing is assumed: a version is unknown unless the Dockerfile, or a file that it copies and installs from,
states it, or the resolver finds it. No rule judges an unknown version.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.image.conflict.base_images import BaseImage
from trainyard.image.conflict.install_steps import ContextReader, InstallStep, read_steps
from trainyard.image.conflict.installed_packages import InstalledPackages
from trainyard.image.conflict.resolution import Resolver
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.conflict.version_facts import Version, minor, version
from trainyard.image.context.dockerfile import Dockerfile, is_stated, pairs_of
from trainyard.plan.finding import Finding

_EFA = re.compile(r"aws-efa-installer-([0-9][\d.]*\d)\.tar")
_PLUGIN = re.compile(
    r"aws-ofi-nccl[/-]+(?:releases/download/|archive/(?:refs/tags/)?)?v?(\d+\.\d+(?:\.\d+)?)"
)
_SYSTEM_NCCL = re.compile(r"libnccl2=(\d+\.\d+\.\d+)")


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
    """By canonical name. What is installed last counts, as it does in the image."""
    bases: Mapping[int, BaseImage] = field(default_factory=dict)
    """The base image of each stage."""
    base_is_used: bool = False
    """Whether torch comes from the base image."""
    removed: frozenset[str] = frozenset()
    """Packages that a command uninstalls."""
    unstated: frozenset[str] = frozenset()
    """Packages that are installed in a version that is not stated, or removed."""
    has_unstated: bool = False
    """Whether a package is installed whose name or version is not stated."""
    has_efa: bool = False
    """Whether the EFA installer or the plugin is named, in any version."""
    variables: tuple[Variable, ...] = ()
    efa_installer: Version = ()
    efa_plugin: Version = ()
    nccl: Version = ()
    """The NCCL that is installed beside torch's own, or instead of it."""
    commands: str = ""
    """The text of all RUNs, with its variables filled in."""
    architectures: str = ""
    """TORCH_CUDA_ARCH_LIST."""
    steps: tuple[InstallStep, ...] = ()
    """The installing commands, in order."""
    refused: tuple[Finding, ...] = ()
    """What pip would refuse or replace."""
    unchecked: tuple[str, ...] = ()
    """Places that were not checked, each with its reason."""

    @property
    def torch(self) -> Package | None:
        return self.packages.get("torch")

    @property
    def torch_build(self) -> str:
        """The origin of the stated torch, as `Package.build` names it."""
        return self.torch.build if self.torch else ""

    @property
    def cuda(self) -> Version:
        """The CUDA release of torch, from its version, an index or other packages; empty if unknown.

        If torch is not stated, packages of CUDA may belong to another library.
        """
        if self.torch is None:
            return ()
        if self.torch.cuda:
            return self.torch.cuda
        toolkit = self.packages.get("cuda-toolkit")
        if toolkit:
            return minor(toolkit.version)
        runtime = next((self.packages[n] for n in self.packages if n.startswith("nvidia-cuda-runtime")), None)
        return minor(runtime.version) if runtime else ()

    def base_of(self, package: Package | None) -> BaseImage:
        """Return the base image of the stage that installs a package."""
        return self.bases.get(package.stage, self.base) if package else self.base


def declare(
    parsed: Dockerfile,
    name: str,
    read: ContextReader,
    *,
    resolver: Resolver | None = None,
    machine: str = "x86_64",
) -> DeclaredVersions:
    """Return what the last stage of a Dockerfile, called `name`, and the stages that it copies from state.

    Files that it copies and installs from are read with `read`; without a `resolver` only pins are known.
    `machine` is x86_64 or aarch64.
    """
    lines, bases, steps = read_steps(parsed, name, read)
    installed = InstalledPackages(name, resolver, machine)
    installed.follow(steps, "\n".join(line.text for line in lines))
    final = len(parsed.stages) - 1
    last = {stage.number for stage in parsed.ancestors(final)}
    known, variables = dict[str, str](), list[Variable]()
    for line in lines:
        known |= {key: value for key, value in line.values.items() if "$" not in value}
        if line.instruction.name == "ENV" and line.instruction.stage in last:
            pairs = pairs_of(line.instruction)
            variables += [Variable(key, line.values[key], line.instruction.line) for key in pairs]
    text = "\n".join(line.text for line in lines if line.instruction.name == "RUN")
    packages, unstated = installed.packages, installed.unstated
    base, torch = bases[final], packages.get("torch")
    wheel = next((packages[one].version for one in packages if one.startswith("nvidia-nccl-cu")), ())
    unread = any(step.unread for step in steps)
    efa = _last_version(_EFA, text) or version(known.get("EFA_INSTALLER_VERSION", ""))
    plugin = _last_version(_PLUGIN, text) or version(known.get("AWS_OFI_NCCL_VERSION", "").removeprefix("v"))
    nccl = _last_version(_SYSTEM_NCCL, text) or version(known.get("NCCL_VERSION", "").removeprefix("v"))
    kept = torch is None and "torch" not in unstated and not unread
    return DeclaredVersions(
        dockerfile=name,
        parsed=parsed,
        base=base,
        packages=packages,
        bases=bases,
        base_is_used=bool(base.torch) and (kept or (torch is not None and torch.build == "base")),
        removed=frozenset(installed.removed),
        unstated=frozenset(unstated),
        has_unstated=bool(unread or unstated),
        variables=tuple(variables),
        efa_installer=efa,
        efa_plugin=plugin,
        has_efa=bool(efa or plugin or re.search(r"efa[-_]installer|aws-ofi-nccl", text)),
        nccl=wheel or nccl,
        commands=text,
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
        steps=steps,
        refused=tuple(installed.findings),
        unchecked=tuple(installed.unchecked),
    )


def unknown_facts(declared: DeclaredVersions) -> list[str]:
    """Return sentences about what the Dockerfile does not state."""
    found, image = [], declared.base.image
    if not is_stated(image):
        found.append(f"the base image {image}: a variable in it has no value; give one with --build-arg")
    unread = any(step.unread for step in declared.steps)
    if declared.torch is None and ("torch" in declared.unstated or unread):
        found.append("torch: its version is not stated")
    return found


def _last_version(pattern: re.Pattern[str], text: str) -> Version:
    found = pattern.findall(text)
    return version(found[-1]) if found else ()
