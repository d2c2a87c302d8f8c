"""Read the content of an image from its Dockerfile, the locks that it installs and the name of its base.

Nothing is assumed: a version is unknown unless the Dockerfile, or a file that it copies and installs from,
states it, or the resolver finds it. No rule judges an unknown version.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trainyard.image.conflict.base_images import BaseImage, base_of_stage
from trainyard.image.conflict.install_steps import ContextReader, InstallStep, read_steps
from trainyard.image.conflict.installed_packages import InstalledPackages
from trainyard.image.conflict.resolution import Resolver
from trainyard.image.conflict.stated_packages import Package
from trainyard.image.context.dockerfile import Dockerfile, is_stated, pairs_of
from trainyard.image.version_facts import Version, minor, rows_with, torch_row, version


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
    bases: Mapping[int, BaseImage]
    """The base image of each used stage."""
    steps: tuple[InstallStep, ...]
    """The installing commands, in order."""
    installed: InstalledPackages
    variables: tuple[Variable, ...]
    commands: str
    """The text of all RUNs, with its variables filled in."""
    efa_installer: Version
    efa_plugin: Version
    nccl: Version
    """The NCCL that is installed beside torch's own, or instead of it."""
    architectures: str
    """TORCH_CUDA_ARCH_LIST."""

    @property
    def base(self) -> BaseImage:
        """The base image of the last stage."""
        return self.bases[len(self.parsed.stages) - 1]

    @property
    def packages(self) -> Mapping[str, Package]:
        """By canonical name. What is installed last counts, as it does in the image."""
        return self.installed.packages

    @property
    def torch(self) -> Package | None:
        return self.packages.get("torch")

    def version_of(self, name: str) -> Version:
        """Return the version of a package, of torch also the base's, of `cuda` torch's; () if unknown."""
        if name == "cuda":
            return self.cuda
        if package := self.packages.get(name):
            return package.version
        return self.base.torch if name == "torch" and self.base_is_used else ()

    def variable(self, name: str) -> Variable | None:
        """Return the last of the variables of this name."""
        return next((one for one in reversed(self.variables) if one.name == name), None)

    @property
    def is_unread(self) -> bool:
        """Whether something is installed that is not read."""
        return any(step.unread for step in self.steps)

    @property
    def base_is_used(self) -> bool:
        """Whether torch comes from the base image."""
        if self.torch:
            return bool(self.base.torch) and self.torch.build == "base"
        return bool(self.base.torch) and "torch" not in self.installed.unstated and not self.is_unread

    @property
    def has_efa(self) -> bool:
        """Whether the EFA installer or the plugin is named, in any version."""
        named = re.search(r"efa[-_]installer|aws-ofi-nccl", self.commands)
        return bool(self.efa_installer or self.efa_plugin or named)

    @property
    def cuda(self) -> Version:
        """The CUDA release that torch runs with; empty if unknown.

        It is stated by torch's version, its index, other packages or the base, or is that of PyPI's build. If
        torch is not stated, packages of CUDA may belong to another library.
        """
        torch = self.torch
        if self.base_is_used:
            return self.base.cuda
        if torch is None or torch.cuda:
            return torch.cuda if torch else ()
        names = ["cuda-toolkit", *(one for one in self.packages if one.startswith("nvidia-cuda-runtime"))]
        if found := next((self.packages[one] for one in names if one in self.packages), None):
            return minor(found.version)
        return version(torch_row(torch.version).get("pypi_cuda", "")) if torch.build == "pypi" else ()

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
    bases = {stage.number: base_of_stage(parsed, stage) for stage in parsed.used_stages()}
    lines = [line for line in parsed.instructions if line.stage in bases]
    steps = read_steps(parsed, bases, name, read)
    installed = InstalledPackages(name, resolver, machine)
    installed.follow(steps, "\n".join(line.filled for line in lines))
    known = {key: value for line in lines for key, value in line.values.items() if "$" not in value}
    own = (line for line in parsed.lineage(len(parsed.stages) - 1) if line.name == "ENV")
    variables = (Variable(key, one.values[key], one.line) for one in own for key in pairs_of(one.text))
    text = "\n".join(line.filled for line in lines if line.name == "RUN")

    stated = dict[str, Version]()
    for row in rows_with("efa", "stated"):
        texts = re.findall(row["pattern"], text) or [known.get(row["variable"], "").removeprefix("v")]
        stated[row["stated"]] = version(texts[-1])
    wheels = (one.version for key, one in installed.packages.items() if key.startswith("nvidia-nccl-cu"))
    return DeclaredVersions(
        dockerfile=name,
        parsed=parsed,
        bases=bases,
        steps=steps,
        installed=installed,
        variables=tuple(variables),
        commands=text,
        efa_installer=stated["installer"],
        efa_plugin=stated["plugin"],
        nccl=next(wheels, ()) or stated["nccl"],
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
    )


def unknown_facts(declared: DeclaredVersions) -> list[str]:
    """Return sentences about what the Dockerfile does not state."""
    found, image = [], declared.base.image
    if not is_stated(image):
        found.append(f"the base image {image}: a variable in it has no value; give one with --build-arg")
    if declared.torch is None and ("torch" in declared.installed.unstated or declared.is_unread):
        found.append("torch: its version is not stated")
    return found
