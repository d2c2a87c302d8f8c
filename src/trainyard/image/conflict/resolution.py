"""Judge whether pip would refuse the packages of a Dockerfile, command by command.

    install step --pins, indexes--> request --uv--> a conflict with uv's explanation, or the resolved versions

A command is resolved as far as its requirements can be read. A command whose index is unknown or unreachable
is not checked, nor are packages that exist only as source or in another index.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trainyard.image.conflict.base_images import BaseImage
from trainyard.image.conflict.conflict_rule import image_finding
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.stated_packages import Package, StatedRequirement
from trainyard.image.conflict.version_facts import minor, version, version_text
from trainyard.plan.finding import Edit, Finding

_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.8", "3.7", "3.6")
"""Tried in this order where no Python is stated; the first that can be resolved counts."""
_TORCH_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/.*")
PYPI = re.compile(r"https?://[^/]*(?:pypi|mirrors?)[^ ]*|https?://[^ ]*/pypi/[^ ]*")
"""PyPI, its mirrors and NVIDIA's index, which has packages that PyPI lacks."""
OF_TORCH = frozenset(("torch", "torchvision", "torchaudio", "triton"))
_CUDA_PARTS = (
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft", "cufile", "curand", "cusolver"),
    *("cusparse", "cusparselt", "nccl", "nvjitlink", "nvshmem", "nvtx"),
)
BUILD_PARTS = frozenset(
    (
        *(f"nvidia-{part}{suffix}" for part in _CUDA_PARTS for suffix in ("", "-cu11", "-cu12", "-cu13")),
        *("triton", "cuda-bindings", "cuda-toolkit", "pytorch-triton"),
    )
)
"""Packages that another build of torch than PyPI's requires in other versions."""
_NEWEST_GLIBC = "2.40"
"""The newest that uv has a platform for; taken where the base's is unknown."""
_MISSING = re.compile(
    r"Wheels are required for `([^`]+)`"
    r"|([A-Za-z0-9][\w.-]*) was not found in the (?:package registry|provided package locations|cache)"
)
_CAUSE = re.compile(r"^\s+cause: (.*(?:\n {5,}.*)*)", re.MULTILINE)
_MOST_TRIES = 30


@dataclass(frozen=True)
class ResolverRequest:
    """Requirements to be resolved together."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    dropped: frozenset[str] = frozenset()
    """Packages that are left out; a package that requires one is resolved without it."""
    preferred: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


Stated = tuple[StatedRequirement, tuple[str, int]]
"""A requirement with its file and line."""
Resolver = Callable[[ResolverRequest], tuple[int | None, str, str]]
"""Returns uv's exit code, the chosen versions as a requirements file, and uv's messages."""


@dataclass(frozen=True)
class ResolverAnswer:
    """The answer of the resolver, in one of three forms."""

    versions: Mapping[str, str] = field(default_factory=dict)
    conflict: str = ""
    """Why the requirements cannot be installed together."""
    unchecked: str = ""
    """Why there is no answer."""
    python: str = ""
    """The Python version that it is for."""


def request_of(
    step: InstallStep, stated: Sequence[StatedRequirement], installed: Mapping[str, Package], machine: str
) -> ResolverRequest | str:
    """Return the request of a command, or why there is none; `machine` is x86_64 or aarch64."""
    main, others = step.index_urls
    indexes = [url for url in (*main.split(), *others) if url]
    unknown = [url for url in indexes if not (_TORCH_INDEX.fullmatch(url) or PYPI.fullmatch(url))]
    if unknown:
        return f"the packages of the index {unknown[0]} are not known here"
    if any("$" in word for word in step.install.words):
        return "a variable without a value may name packages or an index"
    dropped, base = set[str](), step.base
    requirements = [without_build(one.written) for one in stated]
    if any(map(_TORCH_INDEX.fullmatch, indexes)) or requirements != [one.written for one in stated]:
        dropped |= BUILD_PARTS
    if base.torch or base.kind in ("pytorch", "ngc", "dlc", "rocm"):  # they hold these packages
        known = {*installed, *(one.name for one in stated if one.pin), *(["torch"] if base.torch else [])}
        dropped |= OF_TORCH - known
    glibc = _NEWEST_GLIBC if version(base.glibc) > version(_NEWEST_GLIBC) else base.glibc or _NEWEST_GLIBC
    platform = "unknown-linux-musl" if glibc == "musl" else f"manylinux_{glibc.replace('.', '_')}"
    flags = ("--python-platform", f"{machine}-{platform}", "--index-strategy", "unsafe-best-match")
    constraints = [one.written for content in step.constraints for one in content.requirements if one.written]
    # An upgrade changes the named packages; others only where a new version of these requires it.
    renewed = {one.name for one in stated} if step.install.upgrades else set[str]()
    kept = (one for one in installed.values() if one.name not in renewed)
    return ResolverRequest(
        tuple(filter(None, requirements)),
        tuple(filter(None, map(without_build, constraints))),
        frozenset(dropped),
        tuple((one.name, one.text.partition("+")[0]) for one in kept),
        flags if step.install.with_dependencies else (*flags, "--no-deps"),
    )


def python_flags(python: str) -> tuple[str, str]:
    """Return uv's option for a Python, whose newest patch release counts where none is stated."""
    return "--python-version", python if python.count(".") > 1 else f"{python}.20"


def without_build(written: str) -> str:
    """Return a requirement without a build suffix such as +cu124, which PyPI does not have.

    Empty for a package that is not torch's, because PyPI may not have that version at all.
    """
    if "+" not in written:
        return written
    try:
        name = canonicalize_name(Requirement(written).name)
    except InvalidRequirement:
        return ""
    return re.sub(r"\+[\w.]+", "", written) if name in OF_TORCH else ""


def resolve(
    request: ResolverRequest, resolver: Resolver, base: BaseImage, before: str = ""
) -> ResolverAnswer:
    """Resolve with the Python of the base; without one, with the first that can be resolved.

    `before` is the Python of the previous command, which is tried first.
    """
    answers = list[ResolverAnswer]()
    known = [version_text(base.python)] if len(base.python) > 1 else []
    for python in known or dict.fromkeys([before or _PYTHONS[0], *_PYTHONS]):
        flags = (*request.flags, *python_flags(python))
        answers.append(replace(ask(replace(request, flags=flags), resolver), python=python))
        if not answers[-1].conflict:
            return answers[-1]
    return answers[0]


def ask(request: ResolverRequest, resolver: Resolver) -> ResolverAnswer:
    """Resolve; repeat without each package that has no wheel, or is in none of the indexes."""
    for _ in range(_MOST_TRIES):
        code, chosen, messages = resolver(request)
        if code == 0:
            lines = (line.partition(";")[0].strip() for line in chosen.splitlines())
            pins = (line.partition("==") for line in lines if "==" in line)
            return ResolverAnswer({canonicalize_name(name): text.strip() for name, _, text in pins})
        if "No solution found" not in messages or "network was disabled" in messages:
            return ResolverAnswer(unchecked=_reason(messages))
        # uv wraps its messages at the width of the terminal.
        missing = {
            canonicalize_name(one or other) for one, other in _MISSING.findall(" ".join(messages.split()))
        }
        if missing - request.dropped:
            request = replace(request, dropped=request.dropped | missing)
        elif "pre-release" in messages and "--prerelease" not in request.flags:  # pip would take it
            request = replace(request, flags=(*request.flags, "--prerelease", "allow"))
        else:
            causes = [" ".join(text.split()) for text in _CAUSE.findall(messages)]
            return ResolverAnswer(conflict=" ".join(causes) or " ".join(messages.split()))
    return ResolverAnswer(unchecked="too many of its packages have no wheel")


def required_torch(request: ResolverRequest, resolver: Resolver, base: BaseImage, python: str) -> str:
    """Return the one torch that a command requires where the base has a build that no release is equal to.

    NGC has development versions, such as 2.6.0a0, AMD's images a build for ROCm. Empty for any other base.
    """
    if base.kind not in ("ngc", "rocm"):
        return ""
    asked = replace(request, dropped=request.dropped - {"torch"})
    found = resolve(asked, resolver, base, python).versions.get("torch", "")
    other = replace(asked, constraints=(*asked.constraints, f"torch!={found}"))
    return found if found and resolve(other, resolver, base, python).conflict else ""


def _reason(messages: str) -> str:
    if re.search(r"[Ff]ailed to fetch|sending request|network was disabled|dns error|timed out", messages):
        return "the package index cannot be reached"
    lines = [line for line in messages.splitlines() if line.startswith("error:")]
    return (lines or ["uv did not end in time"])[0].removeprefix("error: ")[:200]


def refuse(
    step: InstallStep,
    stated: Sequence[Stated],
    dockerfile: str,
    *,
    answer: ResolverAnswer,
    request: ResolverRequest,
    resolver: Resolver,
) -> Finding:
    """Return the finding for a command that pip refuses, with the edit of one pin if that is enough."""
    involved = [s for s in stated if re.search(rf"(?<![\w.-]){s[0].name}(?![\w-])", answer.conflict)]
    one, (file, line) = (involved or list(stated))[0]
    finding = image_finding(
        line,
        f"pip cannot install {', '.join(dict.fromkeys(one.written for one, _ in involved)) or one.written}",
        answer.conflict,
        "change one of these versions (uv pip compile shows which); another torch may need a newer driver",
        file=file,
        rule="resolution",
    )
    base = replace(step.base, python=version(answer.python))
    # Change torch last: the other packages were chosen for it.
    for one, (file, line) in sorted(involved, key=lambda pair: pair[0].name == "torch"):
        loose = tuple(text for text in request.requirements if text != without_build(one.written))
        if not one.pin or len(loose) == len(request.requirements):
            continue
        if new := _nearest_version(one, replace(request, requirements=loose), resolver, base):
            edit = Edit(step.line, one.written, one.written.replace(one.pin.partition("+")[0], new))
            return replace(
                finding,
                file=file,
                line=line,
                fix=f"take {one.name} {new}, the nearest version that is compatible with the rest",
                edit=edit if file == dockerfile else None,
            )
    return finding


def _nearest_version(
    one: StatedRequirement, request: ResolverRequest, resolver: Resolver, base: BaseImage
) -> str:
    """Return the version nearest to a pin that can be installed with the rest; empty if there is none.

    torch keeps its minor release, be it pinned, installed before or in the base: another one has another
    CUDA, which may need another driver, and that is a decision for a person.
    """
    pin = one.pin.partition("+")[0]
    torch = dict(request.preferred).get("torch") or version_text(base.torch)
    span = f",=={version_text(minor(version(pin)))}.*" if one.name == "torch" else ""
    if torch and not span and not any(re.match(r"torch(?![\w.-])", text) for text in request.requirements):
        kept = f"torch=={version_text(minor(version(torch)))}.*"
        dropped = request.dropped - {"torch"}
        request = replace(request, requirements=(*request.requirements, kept), dropped=dropped)
    found = dict[str, tuple[int, ...]]()
    for sign, flags in ((">", ("--resolution", "lowest-direct")), ("<", ())):
        requirements = (*request.requirements, f"{one.name}{sign}{pin}{span}")
        tried = replace(request, requirements=requirements, flags=(*request.flags, *flags))
        if text := resolve(tried, resolver, base).versions.get(one.name):
            pairs = zip_longest(version(pin), version(text), fillvalue=0)
            found[text] = tuple(abs(old - new) for old, new in pairs)
    return min(found, key=found.__getitem__, default="")
