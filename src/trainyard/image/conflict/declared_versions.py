"""The content of an image as its Dockerfile states it, with the locks that it installs and its base's name.

Nothing is resolved and nothing is assumed: what neither the Dockerfile, a file that it copies and installs
from, nor a lock that was named states, is unknown. No rule judges what is unknown.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trainyard.image.conflict.stated_packages import (
    MAIN_INDEXES,
    OTHER_INDEXES,
    Package,
    PackageReader,
    RequirementsFile,
    read_requirements,
)
from trainyard.image.conflict.version_facts import NGC, Version, minor, version
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
"""What may put another Python into an image than the base's."""
_OTHER_INDEX = re.compile(r"\bpip3? config\b|\bpip\.conf\b|\buv\.toml\b")
"""What may make pip and uv use another index."""
_OTHER_ENVIRONMENT = re.compile(r"\b(?:venv|virtualenv|conda|mamba|micromamba)\b")
_SYSTEMS = frozenset(
    (
        *(
            "scratch",
            "ubuntu",
            "debian",
            "alpine",
            "amazonlinux",
            "fedora",
            "rockylinux",
            "almalinux",
            "centos",
        ),
        *("busybox", "buildpack-deps"),
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
    """What the Dockerfile does not state, for people."""
    has_unstated: bool = False
    """Whether something is installed of which nothing states what it is, or in which version."""
    has_efa: bool = False
    """Whether the EFA installer or the plugin is named, in whatever version."""
    installs_trainyard: bool = False
    """Whether this package is in the image."""
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
        """The CUDA release of torch, from its version, an index or other packages; empty if unknown.

        Packages of CUDA beside a torch that nothing states may be another library's.
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
    """Read what the last stage of a Dockerfile called `name`, and the stages it takes from, state.

    `locked` is the content of the locks that were named: package -> version, line and file. Without any, the
    files that the Dockerfile copies and installs from are read with `read`.
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
    if not waiting:  # no command installs the locks that were named: every pin of a command counts after them
        settings = _index_variables(lines, len(parsed.stages) - 1, parsed)
        _take_named(reader, packages, Install(), settings=settings, base=(base.kind, base.torch))
    has_efa = False
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
            contents = list[tuple[str, RequirementsFile]]()
            if install.files and waiting:
                waiting = False
                _take_named(reader, packages, install, settings=settings, base=facts)
            for path in () if packages else install.files:
                paths = context_paths(parsed, lines, place, install=install, path=path)
                found = read(paths) if read and paths else None
                contents += [(found[0], read_requirements(found[1]))] if found else []
                if found is None:
                    unread.append(path)
                    reader.opaque = True
            reader.take(install, contents, variables=settings, where=where, base=facts)
        efa = version(match[1]) if (match := _EFA.search(text)) else efa
        plugin = version(match[1]) if (match := _PLUGIN.search(text)) else plugin
        has_efa = has_efa or bool(re.search(r"efa[-_]installer|aws-ofi-nccl", text))
    stated = reader.packages
    nccl = version(known.get("NCCL_VERSION", "").removeprefix("v"))
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
        installs_trainyard="trainyard" in stated or any(_copies_trainyard(i) for i in parsed.instructions),
        nccl=wheel or nccl,
        architectures=known.get("TORCH_CUDA_ARCH_LIST", ""),
    )


def _base_of(parsed: Dockerfile, stage: Stage, lines: tuple[ResolvedInstruction, ...]) -> BaseImage:
    """Return the base image of a stage; its Python is unknown if the stage may install another one."""
    chain = parsed.ancestors(stage.number)
    numbers = {one.number for one in chain}
    found = base_image(chain[0].image, chain[0].line)
    texts = (
        line.text for line in lines if line.instruction.stage in numbers and line.instruction.name != "FROM"
    )
    return replace(found, python=()) if any(map(_OTHER_PYTHON.search, texts)) else found


def _index_variables(
    lines: tuple[ResolvedInstruction, ...], stage: int, parsed: Dockerfile
) -> dict[str, str]:
    """Return the variables that name indexes to pip and uv; `$` stands for an index that nothing states."""
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
    """Take the packages of the locks that were named, as the command that installs files takes them."""
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
        found.append("torch: no version of it is stated")
    return tuple(found)


def _copies_trainyard(instruction: Instruction) -> bool:
    return instruction.name in ("COPY", "ADD") and "src/trainyard" in instruction.text


def base_image(image: str, line: int = 0) -> BaseImage:
    """Read the facts in the name of a base image."""
    named = image.partition("@")[0]
    head, _, tag = named.rpartition(":")
    head, tag = (head, tag) if head and "/" not in tag else (named, "")
    if "$" in tag:  # the number before a variable without a value is not complete
        tag = re.sub(r"[\d.]+$", "", tag.partition("$")[0])
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
    kind = "system" if head.rpartition("/")[2] in _SYSTEMS and is_stated(image) else "other"
    return BaseImage(image, kind, (), cuda, python, False, line)
