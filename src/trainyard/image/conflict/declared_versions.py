"""Read the content of an image from its Dockerfile, the locks that it installs and the name of its base.

Nothing is resolved or assumed: a version is unknown unless the Dockerfile, or a file that it copies and
installs from, states it. No rule judges an unknown version.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion

from trainyard.image.conflict.lock_files import read_lock, read_project
from trainyard.image.conflict.stated_packages import (
    Package,
    RequirementsFile,
    StatedRequirement,
    read_requirement,
    read_requirements,
)
from trainyard.image.conflict.version_facts import Version, minor, row_of, torch_builds, version
from trainyard.image.context.copied_files import context_paths
from trainyard.image.context.dockerfile import Dockerfile, Stage, is_stated, pairs_of
from trainyard.image.context.install_commands import Install, installs_of
from trainyard.image.context.resolved_text import ResolvedInstruction, resolve_text

ContextReader = Callable[[tuple[str, ...]], tuple[str, str] | None]
"""Returns name and text of the first of these files that the build context has; None if it has none."""

_EFA = re.compile(r"aws-efa-installer-([0-9][\d.]*\d)\.tar")
_PLUGIN = re.compile(
    r"aws-ofi-nccl[/-]+(?:releases/download/|archive/(?:refs/tags/)?)?v?(\d+\.\d+(?:\.\d+)?)"
)
_OTHER_PYTHON = re.compile(
    r"\b(?:conda|mamba|micromamba|pyenv|deadsnakes|UV_PYTHON)\b|\buv (?:venv|python|sync|run)\b"
    r"|--python[ =]|\bpython3\.\d+\b"
)
"""Text of commands that may install another Python than the base's."""
_SYSTEM_PYTHON = re.compile(r"\bapt(?:-get)?\s[^;&|]*\binstall\b[^;&|]*\bpython3(?:-pip|-dev|-venv)?(?=\s|$)")
"""Installs the Python of the distribution, to which pip then belongs."""
_SYSTEM_NCCL = re.compile(r"libnccl2=(\d+\.\d+\.\d+)")
_OTHER_INDEX = re.compile(r"\bpip3? config\b|\bpip\.conf\b|\buv\.toml\b")
"""Text of commands that may make pip and uv use another index."""
_OTHER_ENVIRONMENT = re.compile(r"\b(?:venv|virtualenv|conda|mamba|micromamba)\b")
_SYSTEMS = {
    *("scratch", "ubuntu", "debian", "alpine", "amazonlinux", "fedora", "rockylinux", "almalinux"),
    *("centos", "busybox", "buildpack-deps"),
}
_PYTORCH_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/(?:(cu\d{3}|cpu)/?|torch_stable\.html)")
_PYPI = re.compile(r"https?://(?:pypi\.org|pypi\.python\.org)/simple/?")
# Variables that name indexes to pip and uv.
_MAIN_INDEXES = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_OTHER_INDEXES = (
    *("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS", "UV_FIND_LINKS"),
    *("UV_TORCH_BACKEND", "PIP_CONFIG_FILE"),
)
_CUDA_TAG = re.compile(r"cu(?:da)?-?(\d{2})\.?(\d)")
_PYTHON_TAG = re.compile(r"(?:^|[-_])py(?:thon)?(\d)\.?(\d{1,2})(?:[-_.]|$)")


@dataclass(frozen=True)
class BaseImage:
    """The facts in the name of a base image."""

    image: str
    kind: str
    """pytorch, ngc, dlc, cuda, python, system (a distribution without torch) or other (unknown)."""
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
class InstallStep:
    """One installing command, with the content of the files that it names."""

    install: Install
    files: tuple[tuple[str, RequirementsFile], ...]
    """Name and content of the files that could be read."""
    constraints: tuple[RequirementsFile, ...]
    indexes: Mapping[str, str]
    """Variables such as PIP_INDEX_URL that name indexes -> value."""
    base: BaseImage
    line: int
    stage: int

    def requirements(self, dockerfile: str) -> Iterator[tuple[StatedRequirement, tuple[str, int]]]:
        """Yield what it installs, each with its file and line; `dockerfile` is the name of that file."""
        for word in self.install.words:
            if one := read_requirement(word):
                yield one, (dockerfile, self.line)
        for name, content in self.files:
            yield from ((one, (name, one.line)) for one in content.requirements)

    @property
    def index_urls(self) -> tuple[str, list[str]]:
        """The index that replaces PyPI, empty for none, and the others; of options, files and variables."""
        named = (self.install, *(content.indexes for _, content in self.files))
        main = [one.main_index for one in named if one.main_index]
        main += [self.indexes[name] for name in _MAIN_INDEXES if self.indexes.get(name)]
        others = [url for one in named for url in one.other_indexes]
        others += [url for name in _OTHER_INDEXES for url in self.indexes.get(name, "").split()]
        return (main or [""])[0], others


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
    torch_build: str = ""
    """Where torch comes from; see `_PackageReader`."""
    base_is_used: bool = False
    """Whether torch comes from the base image."""
    removed: frozenset[str] = frozenset()
    """Packages that a command uninstalls."""
    unknown: tuple[str, ...] = ()
    """Sentences about what the Dockerfile does not state."""
    has_unstated: bool = False
    """Whether a package is installed whose name or version is not stated."""
    has_efa: bool = False
    """Whether the EFA installer or the plugin is named, in any version."""
    installs_trainyard: bool = False
    """Whether this package is in the image."""
    variables: tuple[Variable, ...] = ()
    efa_installer: Version = ()
    efa_plugin: Version = ()
    nccl: Version = ()
    """The NCCL that is installed beside torch's own, or instead of it."""
    has_latest_efa: bool = False
    """Whether it installs aws-efa-installer-latest, which changes each month."""
    architectures: str = ""
    """TORCH_CUDA_ARCH_LIST."""
    steps: tuple[InstallStep, ...] = ()
    """The installing commands, in order."""

    @property
    def torch(self) -> Package | None:
        return self.packages.get("torch")

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


def declare(parsed: Dockerfile, name: str, read: ContextReader | None = None) -> DeclaredVersions:
    """Return what the last stage of a Dockerfile, called `name`, and the stages that it copies from state.

    The files that the Dockerfile copies and installs from are read with `read`.
    """
    lines, final = resolve_text(parsed), len(parsed.stages) - 1
    bases = {stage.number: _base_of(parsed, stage, lines) for stage in parsed.used_stages()}
    last = {stage.number for stage in parsed.ancestors(final)}
    base, reader, files = bases[final], _PackageReader(), _FileReader(parsed, lines, read)
    used = [(place, line) for place, line in enumerate(lines) if line.instruction.stage in bases]
    runs = [(place, line) for place, line in used if line.instruction.name == "RUN"]
    known, variables, steps = dict[str, str](), list[Variable](), list[InstallStep]()
    for _, line in used:
        known |= {key: value for key, value in line.values.items() if "$" not in value}
        if line.instruction.name == "ENV" and line.instruction.stage in last:
            pairs = pairs_of(line.instruction)
            variables += [Variable(key, line.values[key], line.instruction.line) for key in pairs]
    for place, line in runs:
        settings, stage = _index_variables(lines[: place + 1], parsed), line.instruction.stage
        for install in installs_of(line.text):
            contents = files.read_all(place, install)
            limits = (files.read_one(place, install, path, read_requirements) for path in install.constraints)
            constraints = tuple(one[1] for one in limits if one)
            step = InstallStep(
                install, contents, constraints, settings, bases[stage], line.instruction.line, stage
            )
            reader.opaque = reader.opaque or files.opaque
            reader.take(step, name)
            steps.append(step)
    text = "\n".join(line.text for _, line in runs)
    stated, unread = reader.packages, files.unread
    wheel = next((stated[one].version for one in stated if one.startswith("nvidia-nccl-cu")), ())
    torch_kept = "torch" not in stated and "torch" not in reader.unknown and not reader.opaque
    environment = any(_OTHER_ENVIRONMENT.search(line.text) for _, line in used)
    build = "" if reader.torch_build == "base" and environment else reader.torch_build
    efa = _last_version(_EFA, text) or version(known.get("EFA_INSTALLER_VERSION", ""))
    plugin = _last_version(_PLUGIN, text) or version(known.get("AWS_OFI_NCCL_VERSION", "").removeprefix("v"))
    nccl = _last_version(_SYSTEM_NCCL, text) or version(known.get("NCCL_VERSION", "").removeprefix("v"))
    copied = [i.text for i in parsed.instructions if i.name in ("COPY", "ADD")]
    return DeclaredVersions(
        dockerfile=name,
        parsed=parsed,
        base=base,
        packages=stated,
        bases=bases,
        torch_build=build,
        base_is_used=bool(base.torch) and (torch_kept or ("torch" in stated and build == "base")),
        removed=frozenset(reader.removed),
        unknown=_unknown_facts(base, reader, unread),
        has_unstated=bool(unread or reader.opaque or reader.unknown),
        variables=tuple(variables),
        efa_installer=efa,
        efa_plugin=plugin,
        has_efa=bool(efa or plugin or re.search(r"efa[-_]installer|aws-ofi-nccl", text)),
        installs_trainyard="trainyard-ci" in stated or any("src/trainyard" in one for one in copied),
        nccl=wheel or nccl,
        has_latest_efa="aws-efa-installer-latest" in text,
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
        steps=tuple(steps),
    )


def _last_version(pattern: re.Pattern[str], text: str) -> Version:
    found = pattern.findall(text)
    return version(found[-1]) if found else ()


@dataclass
class _FileReader:
    """Reads the files that installing commands name, from the build context."""

    parsed: Dockerfile
    lines: tuple[ResolvedInstruction, ...]
    read: ContextReader | None
    unread: list[str] = field(default_factory=list)
    opaque: bool = False
    """Whether any of them cannot be read."""

    def read_all(self, place: int, install: Install) -> tuple[tuple[str, RequirementsFile], ...]:
        """Return name and content of the files that can be read, and note the others."""
        extras = [extra for _, named in install.projects for extra in named]
        parsers = [(path, read_requirements) for path in install.files]
        parsers += [(path, partial(read_lock, path, extras=extras)) for path in install.locks]
        found = [self.read_one(place, install, path, parse) for path, parse in parsers]
        self.unread += [path for (path, _), one in zip(parsers, found, strict=True) if one is None]
        self.opaque = self.opaque or None in found
        if not any(found) or not install.locks:
            for folder, named in install.projects:
                path = posixpath.join(folder, "pyproject.toml")
                found.append(self.read_one(place, install, path, partial(read_project, extras=named)))
                self.opaque = self.opaque or not found[-1]
        return tuple(one for one in found if one)

    def read_one(
        self, place: int, install: Install, path: str, parse: Callable[[str], RequirementsFile]
    ) -> tuple[str, RequirementsFile] | None:
        paths = context_paths(self.parsed, self.lines, place, install=install, path=path)
        found = self.read(paths) if self.read and paths else None
        return (found[0], parse(found[1])) if found else None


@dataclass
class _PackageReader:
    """Follows the installing commands of a Dockerfile."""

    packages: dict[str, Package] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Packages that are removed, or installed in a version that is not stated."""
    removed: set[str] = field(default_factory=set)
    opaque: bool = False
    """Whether something was installed that cannot be read here."""
    torch_build: str = ""
    """Where the pinned torch comes from: pypi, named (an index or a suffix of PyTorch's own), private (its
    suffix is known, its index is not), cpu, base, or empty for unknown."""

    def take(self, step: InstallStep, dockerfile: str) -> None:
        """Add what a command installs."""
        install, here = step.install, list(step.requirements(dockerfile))
        self.opaque = self.opaque or install.opaque or any(content.opaque for _, content in step.files)
        self.opaque = self.opaque or any(not one.name for one, _ in here)
        self.removed |= {one.name for one, _ in here if install.removes}
        for one, (file, line) in here:
            pins = {other.pin for other, _ in here if other.name == one.name and other.pin}
            if one.pin and install.certain and not install.removes and len(pins) == 1:
                self.packages[one.name] = Package(one.name, one.pin, file, line, step.stage)
                self.unknown.discard(one.name)
                if one.name == "torch":
                    self._set_build(step)
            elif not self._is_kept(one, step):
                self.packages.pop(one.name, None)
                self.unknown.add(one.name)

    def _is_kept(self, one: StatedRequirement, step: InstallStep) -> bool:
        """Return whether what is installed already fulfils the requirement, so that pip leaves it."""
        install, before = step.install, self.packages.get(one.name)
        if install.removes or one.pin or (not install.certain and (one.allowed is None or one.allowed)):
            return False
        text = before.text if before else ""
        if not text and one.name == "torch" and "torch" not in self.unknown:
            text = ".".join(map(str, step.base.torch))
        if not text or install.upgrades or one.allowed is None:
            return False
        try:
            return one.allowed.contains(PackageVersion(text), prereleases=True)
        except InvalidVersion:
            return False

    def _set_build(self, step: InstallStep) -> None:
        torch, kind, base_torch = self.packages["torch"], step.base.kind, step.base.torch
        main, others = step.index_urls
        main = "" if _PYPI.fullmatch(main) else main
        urls = [*filter(None, [main]), *(url for url in others if not _PYPI.fullmatch(url))]
        indexes = [_PYTORCH_INDEX.fullmatch(url) for url in urls]
        official = all(indexes)
        suffix = next((match[1] for match in indexes if match and match[1]), "")
        self.torch_build, builds = "", torch_builds(torch.version)
        if "+" in torch.text:
            self.torch_build = "cpu" if "+cpu" in torch.text else "named" if official else "private"
        elif base_torch and base_torch == torch.version and not step.install.upgrades:
            self.torch_build = "base"
        elif not official or (
            not main and (kind == "other" or (kind in ("pytorch", "dlc") and not base_torch))
        ):
            return
        elif not indexes:
            self.torch_build = "pypi"
        elif suffix == "cpu":
            self.torch_build = "cpu" if len(indexes) == 1 and main else ""
        elif suffix and len(indexes) == 1 and (main or version(f"{suffix[2:4]}.{suffix[4:]}") in builds):
            self.packages["torch"] = replace(torch, text=f"{torch.text}+{suffix}", index=suffix)
            self.torch_build = "named"


def _base_of(parsed: Dockerfile, stage: Stage, lines: tuple[ResolvedInstruction, ...]) -> BaseImage:
    """Return the base image of a stage; its Python is unknown if the stage may install another one."""
    chain = parsed.ancestors(stage.number)
    numbers = {one.number for one in chain}
    found = base_image(chain[0].image, chain[0].line)
    texts = (
        line.text for line in lines if line.instruction.stage in numbers and line.instruction.name != "FROM"
    )
    everything = "\n".join(texts)
    if _OTHER_PYTHON.search(everything):
        return replace(found, python=())
    if found.kind in ("cuda", "system") and _SYSTEM_PYTHON.search(everything):
        return replace(found, python=_system_python(found.image))
    return found


def _index_variables(lines: tuple[ResolvedInstruction, ...], parsed: Dockerfile) -> dict[str, str]:
    """Return the variables that name indexes to pip and uv at the last line; `$` is an unknown index."""
    numbers = {one.number for one in parsed.ancestors(lines[-1].instruction.stage)}
    here = [line for line in lines if line.instruction.stage in numbers]
    names = (*_MAIN_INDEXES, *_OTHER_INDEXES)
    found = {name: here[-1].values[name] for name in names if here[-1].values.get(name)}
    for line in here:
        declared = line.instruction.name == "ARG" and line.instruction.text.partition("=")[0].split()
        found |= {name: "$" for name in declared or () if name in names and not line.values.get(name)}
        if _OTHER_INDEX.search(line.text):
            found["PIP_CONFIG_FILE"] = "$"
    return found


def _unknown_facts(base: BaseImage, reader: _PackageReader, unread: list[str]) -> tuple[str, ...]:
    found = []
    if not is_stated(base.image):
        found.append(f"the base image {base.image}: a variable in it has no value; give one with --build-arg")
    found += [
        f"{path}: the build context here has no such file, or a command changes it; see --context"
        for path in dict.fromkeys(unread)
    ]
    if "torch" not in reader.packages and ("torch" in reader.unknown or (reader.opaque and not unread)):
        found.append("torch: its version is not stated")
    return tuple(found)


def base_image(image: str, line: int = 0) -> BaseImage:
    """Read the facts in the name of a base image."""
    named = image.partition("@")[0]
    head, _, tag = named.rpartition(":")
    head, tag = (head, tag) if head and "/" not in tag else (named, "")
    if "$" in tag:  # a number that ends at a variable without a value is incomplete
        tag = re.sub(r"[\d.]+$", "", tag.partition("$")[0])
    cuda: Version = (int(m[1]), int(m[2])) if (m := _CUDA_TAG.search(tag)) else ()
    python: Version = (int(m[1]), int(m[2])) if (m := _PYTHON_TAG.search(tag)) else ()
    if head.endswith("nvidia/pytorch"):
        row = row_of("containers", image="nvcr.io/nvidia/pytorch", tag=tag[:5])
        torch, cuda, python = (version(row.get(key, "")) for key in ("torch", "cuda", "python"))
        return BaseImage(image, "ngc", torch, cuda, python, True, line)
    if "pytorch-training" in head:
        return BaseImage(image, "dlc", version(tag), cuda, python, True, line)
    if head.endswith("pytorch/pytorch"):
        return BaseImage(image, "pytorch", version(tag), cuda, python, "devel" in tag, line)
    if head.endswith("nvidia/cuda"):
        return BaseImage(image, "cuda", (), minor(version(tag)), (), "devel" in tag, line)
    if head.rpartition("/")[2] == "python":
        return BaseImage(image, "python", (), (), minor(version(tag)), False, line)
    name = head.rpartition("/")[2]
    kind = "system" if name in _SYSTEMS and is_stated(image) else "other"
    return BaseImage(image, kind, (), cuda, python, False, line)


def _system_python(image: str) -> Version:
    """Return the python3 of the distribution that a base image names; () if unknown."""
    release = re.search(r"ubuntu:?(\d{2}\.04)", image)
    return version(row_of("containers", image="ubuntu", tag=release[1]).get("python", "")) if release else ()
