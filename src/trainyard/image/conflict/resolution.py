"""Judge whether pip would refuse the packages of a Dockerfile, command by command.

    install step --pins, indexes--> request --uv--> a conflict with uv's explanation, or the resolved versions

A command is resolved as far as its requirements can be read. A command whose index is unknown or unreachable
is not checked, nor are packages that exist only as source or in another index.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

from trainyard.image.conflict.base_images import BaseImage
from trainyard.image.conflict.conflict_rule import answer
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.stated_packages import (
    Package,
    StatedRequirement,
    locked_packages,
    read_requirement,
)
from trainyard.image.version_facts import minor, rows_with, version, version_text
from trainyard.plan.finding import Edit, Finding

_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.8", "3.7", "3.6")
"""Tried in this order where no Python is stated; the first that can be resolved counts."""
_TORCH_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/.*")
PYPI = re.compile(r"https?://[^/]*(?:pypi|mirrors?)[^ ]*|https?://[^ ]*/pypi/[^ ]*")
"""PyPI, its mirrors and NVIDIA's index, which has packages that PyPI lacks."""
OF_TORCH = frozenset(("torch", "torchvision", "torchaudio", "triton"))
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
    pythons: tuple[str, ...] = ()
    """Versions of Python; the first with which the requirements can be resolved counts."""


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
    without: tuple[str, ...] = ()
    """Packages that have no wheel, or are in no index, so that it is not known what they require."""
    python: str = ""
    """The Python version that it is for."""


def request_of(
    step: InstallStep, installed: Mapping[str, Package], machine: str, python: str
) -> ResolverRequest | str:
    """Return the request of a command, or why there is none.

    `machine` is x86_64 or aarch64, `python` that of earlier commands, tried first if the base states none.
    """
    indexes = [url for one in step.indexes for url in one.split()]
    unknown = [url for url in indexes if not (_TORCH_INDEX.fullmatch(url) or PYPI.fullmatch(url))]
    if unknown:
        return f"the packages of the index {unknown[0]} are not known here"
    if any("$" in word for word in step.install.words):
        return "a variable without a value may name packages or an index"
    dropped, base, names = set[str](), step.base, {one.name for one in step.stated}
    written = [one.written for one in step.stated if one.written]
    if any(map(_TORCH_INDEX.fullmatch, indexes)) or any("+" in one for one in written):
        dropped |= build_parts()
    if base.torch or base.kind in ("pytorch", "ngc", "dlc", "rocm"):  # they hold these packages
        pinned = {one.name for one in step.stated if one.pin}
        dropped |= OF_TORCH - {*installed, *pinned, *(["torch"] if base.torch else [])}
    pythons = [version_text(base.python)] if len(base.python) > 1 else [python or _PYTHONS[0], *_PYTHONS]
    # An upgrade changes the named packages; others only where a new version of these requires it.
    kept = [one for one in installed.values() if not (step.install.upgrades and one.name in names)]
    return ResolverRequest(
        tuple(filter(None, map(without_build, written))),
        tuple(filter(None, map(without_build, step.constraints))),
        frozenset(dropped),
        tuple((one.name, one.text.partition("+")[0]) for one in kept),
        (*platform_flags(base, machine), *([] if step.install.with_dependencies else ["--no-deps"])),
        tuple(dict.fromkeys(pythons)),
    )


def build_parts() -> frozenset[str]:
    """Return the packages that another build of torch than PyPI's requires in other versions."""
    row = next(rows_with("torch", "cuda_parts"))
    parts = (f"nvidia-{part}{suffix}" for part in row["cuda_parts"] for suffix in row["suffixes"])
    return frozenset((*parts, *row["other_parts"]))


def platform_flags(base: BaseImage, machine: str) -> tuple[str, ...]:
    """Return uv's options for the processor and the C library of an image."""
    glibc = _NEWEST_GLIBC if version(base.glibc) > version(_NEWEST_GLIBC) else base.glibc or _NEWEST_GLIBC
    platform = "unknown-linux-musl" if glibc == "musl" else f"manylinux_{glibc.replace('.', '_')}"
    return ("--python-platform", f"{machine}-{platform}", "--index-strategy", "unsafe-best-match")


def without_build(written: str) -> str:
    """Return a requirement without a build suffix such as +cu124, which PyPI does not have.

    Empty for a package that is not torch's, because PyPI may not have that version at all.
    """
    if "+" not in written:
        return written
    read = read_requirement(written)
    return re.sub(r"\+[\w.]+", "", written) if read and read.name in OF_TORCH else ""


def resolve(request: ResolverRequest, resolver: Resolver) -> ResolverAnswer:
    """Resolve with the first Python that can be; if none can, return the conflict of the first."""
    answers = list[ResolverAnswer]()
    for python in request.pythons:
        # The newest patch release counts where none is stated.
        flags = (*request.flags, "--python-version", python if python.count(".") > 1 else f"{python}.20")
        answers.append(replace(_ask(replace(request, flags=flags), resolver), python=python))
        if not answers[-1].conflict:
            return answers[-1]
    return answers[0]


def _ask(request: ResolverRequest, resolver: Resolver) -> ResolverAnswer:
    """Resolve; repeat without each package that has no wheel, or is in none of the indexes."""
    without = set[str]()
    for _ in range(_MOST_TRIES):
        code, chosen, messages = resolver(request)
        if code == 0:
            return ResolverAnswer(locked_packages(chosen, {}), without=tuple(sorted(without)))
        if "No solution found" not in messages or "network was disabled" in messages:
            return ResolverAnswer(unchecked=_reason(messages))
        # uv wraps its messages at the width of the terminal.
        missing = {
            canonicalize_name(one or other) for one, other in _MISSING.findall(" ".join(messages.split()))
        }
        if missing - request.dropped:
            without |= missing
            request = replace(request, dropped=request.dropped | missing)
        elif "pre-release" in messages and "--prerelease" not in request.flags:  # pip would take it
            request = replace(request, flags=(*request.flags, "--prerelease", "allow"))
        else:
            causes = [" ".join(text.split()) for text in _CAUSE.findall(messages)]
            return ResolverAnswer(conflict=" ".join(causes) or " ".join(messages.split()))
    return ResolverAnswer(unchecked="too many of its packages have no wheel")


def required_torch(request: ResolverRequest, resolver: Resolver) -> str:
    """Return the one torch that the requirements allow; empty if they allow several or none."""
    asked = replace(request, dropped=request.dropped - {"torch"})
    found = resolve(asked, resolver).versions.get("torch", "")
    other = replace(asked, constraints=(*asked.constraints, f"torch!={found}"))
    return found if found and resolve(other, resolver).conflict else ""


def _reason(messages: str) -> str:
    if re.search(r"[Ff]ailed to fetch|sending request|network was disabled|dns error|timed out", messages):
        return "the package index cannot be reached"
    lines = [line for line in messages.splitlines() if line.startswith("error:")]
    return (lines or ["uv did not end in time"])[0].removeprefix("error: ")[:200]


def refuse(
    step: InstallStep, dockerfile: str, found: ResolverAnswer, *, request: ResolverRequest, resolver: Resolver
) -> Finding:
    """Return the finding for a command that pip refuses, with the edit of one pin if that is enough."""
    stated = [one for one in step.stated if one.written]
    involved = [one for one in stated if re.search(rf"(?<![\w.-]){one.name}(?![\w-])", found.conflict)]
    named = dict.fromkeys(one.written for one in involved or stated[:1])
    place, edit = (involved or stated)[0], None
    fix = "change one of these versions (uv pip compile shows which); another torch may need a newer driver"
    # Change torch last: the other packages were chosen for it.
    for one in sorted(involved, key=lambda one: one.name == "torch"):
        loose = tuple(text for text in request.requirements if text != without_build(one.written))
        if not one.pin or len(loose) == len(request.requirements):
            continue
        tried = replace(request, requirements=loose, pythons=(found.python,))
        if new := _other_version(one, tried, resolver):
            place, fix = one, f"take {one.name} {new}, which is compatible with the rest"
            if one.file == dockerfile:
                text = one.written.replace(one.pin.partition("+")[0], new)
                edit = Edit(step.line, one.written, text)
            break
    return answer("resolution", place, edit=edit, named=", ".join(named), conflict=found.conflict, fix=fix)


def _other_version(one: StatedRequirement, request: ResolverRequest, resolver: Resolver) -> str:
    """Return the newest version that can be installed with the rest; empty if there is none.

    It has the major release of the pin. torch keeps its minor release, be it pinned, installed before or in
    the base: another one has another CUDA, which may need another driver, and a person decides that.
    """
    kept = {one.name: f"{version(one.pin)[0]}.*"}
    torch = one.pin if one.name == "torch" else dict(request.preferred).get("torch", "")
    if torch and not any(re.match(r"torch(?![\w.-])", text) for text in request.requirements):
        kept["torch"] = f"{version_text(minor(version(torch)))}.*"
    added = (f"{name}=={text}" for name, text in kept.items())
    tried = replace(request, requirements=(*request.requirements, *added), dropped=request.dropped - {*kept})
    return resolve(tried, resolver).versions.get(one.name, "")
