"""Read the content of an image from its Dockerfile, the locks that it installs and the name of its base.

Nothing is resolved or assumed: a version is unknown unless the Dockerfile, a file that it copies and installs
from, or a named lock states it. No rule judges an unknown version.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from trainyard.image.conflict.lock_files import read_lock, read_project
from trainyard.image.conflict.stated_packages import (
    MAIN_INDEXES,
    OTHER_INDEXES,
    Package,
    PackageReader,
    RequirementsFile,
    StatedRequirement,
    conda_requirement,
    read_requirement,
    read_requirements,
)
from trainyard.image.conflict.version_facts import Version, minor, row_of, version
from trainyard.image.context.copied_files import context_paths
from trainyard.image.context.dockerfile import Dockerfile, Instruction, Stage, is_stated, pairs_of
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
_SYSTEMS = frozenset(
    (
        *("scratch", "ubuntu", "debian", "alpine", "amazonlinux", "fedora", "rockylinux", "almalinux"),
        *("centos", "busybox", "buildpack-deps"),
    )
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
        read_word = read_requirement if self.install.wheels else conda_requirement
        for word in self.install.words:
            if one := read_word(word):
                yield one, (dockerfile, self.line)
        for name, content in self.files:
            yield from ((one, (name, one.line or self.line)) for one in content.requirements)


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
    """Where torch comes from; see `PackageReader`."""
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


def declare(
    parsed: Dockerfile,
    name: str,
    locked: Mapping[str, tuple[str, int, str]],
    read: ContextReader | None = None,
) -> DeclaredVersions:
    """Return what the last stage of a Dockerfile, called `name`, and the stages that it copies from state.

    `locked` is the content of the named locks: package -> version, line and file. If it is empty, the files
    that the Dockerfile copies and installs from are read with `read`.
    """
    lines = resolve_text(parsed)
    stages = parsed.used_stages()
    used = {stage.number for stage in stages}
    last = {stage.number for stage in parsed.ancestors(len(parsed.stages) - 1)}
    bases = {stage.number: _base_of(parsed, stage, lines) for stage in stages}
    base = bases[len(parsed.stages) - 1]
    known, variables, unread = dict[str, str](), list[Variable](), list[str]()
    efa, plugin, reader = Version(), Version(), PackageReader()
    packages = {package: Package(package, text, file, line) for package, (text, line, file) in locked.items()}
    runs = [line.text for line in lines if line.instruction.name == "RUN" and line.instruction.stage in used]
    waiting = any(install.files for text in runs for install in installs_of(text))
    if not waiting:  # no command installs files: the named locks count as installed first
        settings = _index_variables(lines, len(parsed.stages) - 1, parsed)
        _take_named(reader, packages, Install(), settings=settings, base=(base.kind, base.torch))
    has_efa, latest, nccl, steps = False, False, Version(), list[InstallStep]()
    for place, line in enumerate(lines):
        instruction, text = line.instruction, line.text
        if instruction.stage not in used:
            continue
        known |= {key: value for key, value in line.values.items() if "$" not in value}
        if instruction.name == "ENV" and instruction.stage in last:
            variables += [Variable(key, line.values[key], instruction.line) for key in pairs_of(instruction)]
        if instruction.name != "RUN":
            continue
        where = Package("", "", name, instruction.line, instruction.stage)
        here = bases[instruction.stage]
        facts = (here.kind, here.torch)
        settings = _index_variables(lines[: place + 1], instruction.stage, parsed)
        for install in installs_of(text):
            if install.files and waiting:
                waiting = False
                _take_named(reader, packages, install, settings=settings, base=facts)
            beside = _FileReader(parsed, lines, place, install=install, read=read)
            contents = [] if packages else beside.read_all()
            constraints = [
                one for path in install.constraints if (one := beside.read_one(path, read_requirements))
            ]
            unread += beside.unread
            reader.opaque = reader.opaque or beside.opaque or bool(packages and install.projects)
            reader.take(install, contents, variables=settings, where=where, base=facts)
            steps.append(
                InstallStep(
                    install,
                    tuple(contents),
                    tuple(content for _, content in constraints),
                    settings,
                    here,
                    instruction.line,
                    instruction.stage,
                )
            )
        efa = version(match[1]) if (match := _EFA.search(text)) else efa
        plugin = version(match[1]) if (match := _PLUGIN.search(text)) else plugin
        nccl = version(match[1]) if (match := _SYSTEM_NCCL.search(text)) else nccl
        latest = latest or "aws-efa-installer-latest" in text
        has_efa = has_efa or bool(re.search(r"efa[-_]installer|aws-ofi-nccl", text))
    stated = reader.packages
    nccl = nccl or version(known.get("NCCL_VERSION", "").removeprefix("v"))
    wheel = next((stated[one].version for one in stated if one.startswith("nvidia-nccl-cu")), ())
    torch_kept = "torch" not in stated and "torch" not in reader.unknown and not reader.opaque
    environment = any(
        _OTHER_ENVIRONMENT.search(line.text) for line in lines if line.instruction.stage in used
    )
    build = "" if reader.torch_build == "base" and environment else reader.torch_build
    efa = efa or version(known.get("EFA_INSTALLER_VERSION", ""))
    plugin = plugin or version(known.get("AWS_OFI_NCCL_VERSION", "").removeprefix("v"))
    return DeclaredVersions(
        dockerfile=name,
        parsed=parsed,
        base=base,
        packages=stated,
        bases=bases,
        torch_build=build,
        base_is_used=bool(base.torch) and (torch_kept or ("torch" in stated and build == "base")),
        removed=frozenset(reader.removed),
        unknown=_unknown_facts(base, stated, reader, unread),
        has_unstated=bool(unread or reader.opaque or reader.unknown),
        variables=tuple(variables),
        efa_installer=efa,
        efa_plugin=plugin,
        has_efa=has_efa or bool(efa or plugin),
        installs_trainyard="trainyard-ci" in stated or any(_copies_trainyard(i) for i in parsed.instructions),
        nccl=wheel or nccl,
        has_latest_efa=latest,
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
        steps=tuple(steps),
    )


@dataclass
class _FileReader:
    """Reads the files that an installing command names."""

    parsed: Dockerfile
    lines: tuple[ResolvedInstruction, ...]
    place: int
    install: Install
    read: ContextReader | None
    unread: list[str] = field(default_factory=list)
    opaque: bool = False
    """Whether any of them cannot be read."""

    def read_all(self) -> list[tuple[str, RequirementsFile]]:
        """Return name and content of the files that can be read, and note the others."""
        found = [self.read_one(path, read_requirements, note=True) for path in self.install.files]
        for path in self.install.locks:
            named = [extra for _, extras in self.install.projects for extra in extras]
            found.append(self.read_one(path, partial(read_lock, path, extras=named), note=True))
        if not any(found) or not self.install.locks:
            for folder, extras in self.install.projects:
                path = posixpath.join(folder, "pyproject.toml")
                found.append(self.read_one(path, partial(read_project, extras=extras)))
                self.opaque = self.opaque or not found[-1]
        return [one for one in found if one]

    def read_one(
        self, path: str, parse: Callable[[str], RequirementsFile], *, note: bool = False
    ) -> tuple[str, RequirementsFile] | None:
        paths = context_paths(self.parsed, self.lines, self.place, install=self.install, path=path)
        found = self.read(paths) if self.read and paths else None
        if found is None and note:
            self.unread.append(path)
            self.opaque = True
        return (found[0], parse(found[1])) if found else None


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


def _index_variables(
    lines: tuple[ResolvedInstruction, ...], stage: int, parsed: Dockerfile
) -> dict[str, str]:
    """Return the variables that name indexes to pip and uv; `$` stands for an unknown index."""
    numbers = {one.number for one in parsed.ancestors(stage)}
    here = [line for line in lines if line.instruction.stage in numbers]
    names = (*MAIN_INDEXES, *OTHER_INDEXES)
    found = {name: here[-1].values[name] for name in names if here[-1].values.get(name)}
    for line in here:
        declared = line.instruction.name == "ARG" and line.instruction.text.partition("=")[0].split()
        found |= {name: "$" for name in declared or () if name in names and not line.values.get(name)}
        if _OTHER_INDEX.search(line.text):
            found["PIP_CONFIG_FILE"] = "$"
    return found


def _take_named(
    reader: PackageReader,
    packages: Mapping[str, Package],
    install: Install,
    *,
    settings: Mapping[str, str],
    base: tuple[str, Version],
) -> None:
    """Add the packages of the named locks, as if `install` had installed them."""
    reader.packages |= packages
    if "torch" in packages:
        torch = packages["torch"]
        pinned = replace(install, words=(f"torch=={torch.text}",), files=(), certain=True, opaque=False)
        reader.take(pinned, (), variables=settings, where=torch, base=base)


def _unknown_facts(
    base: BaseImage, packages: Mapping[str, Package], reader: PackageReader, unread: list[str]
) -> tuple[str, ...]:
    found = []
    if not is_stated(base.image):
        found.append(f"the base image {base.image}: a variable in it has no value; give one with --build-arg")
    found += [
        f"{path}: the build context here has no such file, or a command changes it; see --context and --lock"
        for path in dict.fromkeys(unread)
    ]
    if "torch" not in packages and ("torch" in reader.unknown or (reader.opaque and not unread)):
        found.append("torch: its version is not stated")
    return tuple(found)


def _copies_trainyard(instruction: Instruction) -> bool:
    return instruction.name in ("COPY", "ADD") and "src/trainyard" in instruction.text


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
