"""Judge whether pip would refuse the packages of a Dockerfile, command by command.

    install steps --pins, indexes--> requests --uv--> conflicts with uv's explanation, resolved versions

A command is resolved as far as its requirements can be read. A command whose index is unknown or unreachable
is not checked, nor are packages that exist only as source or in another index.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, image_finding
from trainyard.image.conflict.declared_versions import BaseImage, DeclaredVersions, InstallStep
from trainyard.image.conflict.stated_packages import Package, StatedRequirement
from trainyard.image.conflict.version_facts import minor, version, version_text
from trainyard.plan.finding import Edit, Finding

_PYTHONS = ("3.11", "3.12", "3.10", "3.13", "3.9", "3.8", "3.7", "3.6")
"""Tried in this order where no Python is stated; the first that can be resolved counts."""
_TORCH_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/.*")
_PYPI = re.compile(r"https?://[^/]*(?:pypi|mirrors?)[^ ]*|https?://[^ ]*/pypi/[^ ]*")
"""PyPI, its mirrors and NVIDIA's index, which has packages that PyPI lacks."""
_OF_TORCH = frozenset(("torch", "torchvision", "torchaudio", "triton"))
_CUDA_PARTS = (
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft", "cufile", "curand", "cusolver"),
    *("cusparse", "cusparselt", "nccl", "nvjitlink", "nvshmem", "nvtx"),
)
_BUILD_PARTS = frozenset(
    (
        *(f"nvidia-{part}{suffix}" for part in _CUDA_PARTS for suffix in ("", "-cu11", "-cu12", "-cu13")),
        *("triton", "cuda-bindings", "cuda-toolkit", "pytorch-triton"),
    )
)
"""Packages that another build of torch than PyPI's requires in other versions."""
_WITH_TORCH = frozenset(("pytorch", "ngc", "dlc"))
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


Resolver = Callable[[ResolverRequest], tuple[int | None, str, str]]
"""Returns uv's exit code, the chosen versions as a requirements file, and uv's messages."""


@dataclass(frozen=True)
class _Answer:
    versions: Mapping[str, str] = field(default_factory=dict)
    conflict: str = ""
    """Why the requirements cannot be installed together."""
    unchecked: str = ""
    """Why there is no answer."""
    python: str = ""
    """The Python version that it is for."""


@dataclass
class Resolution:
    """The result for a Dockerfile."""

    findings: list[Finding] = field(default_factory=list)
    packages: dict[str, Package] = field(default_factory=dict)
    """What is installed in the end, as far as it was resolved."""
    unchecked: dict[str, None] = field(default_factory=dict)
    """Places that were not checked, each with its reason."""


def resolve_installs(declared: DeclaredVersions, resolver: Resolver, platform: str) -> Resolution:
    """Resolve the installing commands one after the other; `platform` is uv's name of the machine."""
    found, python, pythons = Resolution(), "", set[str]()
    last = {stage.number for stage in declared.parsed.ancestors(len(declared.parsed.stages) - 1)}
    for step in declared.steps:
        if step.install.removes:
            for word in step.install.words:
                found.packages.pop(canonicalize_name(word), None)
            continue
        stated = [pair for pair in step.requirements(declared.dockerfile) if pair[0].written]
        if not stated:
            continue
        request = _request(step, [one for one, _ in stated], found.packages, platform)
        if isinstance(request, str):
            found.unchecked[f"{declared.dockerfile}:{step.line}: {request}"] = None
            continue
        answer = _resolve(request, resolver, step.base, python)
        python = answer.python
        pythons |= {python}
        if answer.unchecked:
            found.unchecked[f"{declared.dockerfile}:{step.line}: {answer.unchecked}"] = None
        elif answer.conflict:
            found.findings.append(
                _refusal(declared, step, stated, answer=answer, request=request, resolver=resolver)
            )
        elif step.base.kind not in ("other", *_WITH_TORCH) and step.stage in last and step.install.certain:
            found.findings += _replacements(
                declared, step, stated, versions=answer.versions, before=found.packages
            )
            for name, text in answer.versions.items():
                # The resolver chose PyPI's build of torch; the image's build may need other CUDA libraries.
                is_stated = name in {one.name for one, _ in stated}
                if is_stated or (step.install.with_dependencies and name not in _BUILD_PARTS):
                    found.packages[name] = Package(name, text, declared.dockerfile, step.line, step.stage)
    if len(pythons) == 1:  # with several, the Python of the image is unknown
        flags = (f"--python-platform={platform}", "--index-strategy=unsafe-best-match")
        final = (*flags, f"--python-version={python}")
        found.findings += _final(declared, found.packages, resolver, final)
    return found


def with_resolved(declared: DeclaredVersions, packages: Mapping[str, Package]) -> DeclaredVersions:
    """Return the declared versions, with the resolved ones of packages not stated, or replaced later."""
    changed = {
        name: one
        for name, one in packages.items()
        if name not in declared.packages or not declared.packages[name].text.startswith(one.text)
    }
    if "torch" not in changed:
        return replace(declared, packages={**changed, **declared.packages})
    torch = next(step for step in declared.steps if step.line == changed["torch"].line)
    build = "" if torch.install.main_index or torch.install.other_indexes or torch.indexes else "pypi"
    return replace(declared, packages={**declared.packages, **changed}, torch_build=build)


def _request(
    step: InstallStep, stated: Sequence[StatedRequirement], installed: Mapping[str, Package], platform: str
) -> ResolverRequest | str:
    """Return the request of a command, or why there is none."""
    main, others = step.index_urls
    indexes = [url for url in (*main.split(), *others) if url]
    unknown = [url for url in indexes if not (_TORCH_INDEX.fullmatch(url) or _PYPI.fullmatch(url))]
    if unknown:
        return f"the packages of the index {unknown[0]} are not known here"
    if any("$" in word for word in step.install.words):
        return "a variable without a value may name packages or an index"
    dropped = set[str]()
    requirements = [_without_build(one.written) for one in stated]
    if any(map(_TORCH_INDEX.fullmatch, indexes)) or requirements != [one.written for one in stated]:
        dropped |= _BUILD_PARTS
    if step.base.torch or step.base.kind in _WITH_TORCH:
        dropped |= _OF_TORCH - {one.name for one in stated if one.pin}
    flags = ("--python-platform", platform, "--index-strategy", "unsafe-best-match")
    constraints = [one.written for content in step.constraints for one in content.requirements if one.written]
    return ResolverRequest(
        tuple(filter(None, requirements)),
        tuple(filter(None, map(_without_build, constraints))),
        frozenset(dropped),
        () if step.install.upgrades else tuple((one.name, one.text) for one in installed.values()),
        flags if step.install.with_dependencies else (*flags, "--no-deps"),
    )


def _without_build(written: str) -> str:
    """Return a requirement without a build suffix such as +cu124, which PyPI does not have.

    Empty for a package that is not torch's, because PyPI may not have that version at all.
    """
    if "+" not in written:
        return written
    try:
        name = canonicalize_name(Requirement(written).name)
    except InvalidRequirement:
        return ""
    return re.sub(r"\+[\w.]+", "", written) if name in _OF_TORCH else ""


def _resolve(request: ResolverRequest, resolver: Resolver, base: BaseImage, before: str = "") -> _Answer:
    """Resolve with the Python of the base; without one, with the first that can be resolved.

    `before` is the Python of the previous command, which is tried first.
    """
    answers = list[_Answer]()
    pythons = (
        [version_text(base.python)] if base.python else dict.fromkeys([before or _PYTHONS[0], *_PYTHONS])
    )
    for python in pythons:
        flags = (*request.flags, "--python-version", f"{python}.20")  # Requires-Python may name a patch
        answers.append(replace(_ask(replace(request, flags=flags), resolver), python=python))
        if not answers[-1].conflict:
            return answers[-1]
    return answers[0]


def _ask(request: ResolverRequest, resolver: Resolver) -> _Answer:
    """Resolve; repeat without each package that has no wheel, or is in none of the indexes."""
    for _ in range(_MOST_TRIES):
        code, chosen, messages = resolver(request)
        if code == 0:
            lines = (line.partition(";")[0].strip() for line in chosen.splitlines())
            pins = (line.partition("==") for line in lines if "==" in line)
            return _Answer({canonicalize_name(name): text.strip() for name, _, text in pins})
        if "No solution found" not in messages or "network was disabled" in messages:
            return _Answer(unchecked=_reason(messages))
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
            return _Answer(conflict=" ".join(causes) or " ".join(messages.split()))
    return _Answer(unchecked="too many of its packages have no wheel")


def _reason(messages: str) -> str:
    if re.search(r"[Ff]ailed to fetch|sending request|network was disabled|dns error|timed out", messages):
        return "the package index cannot be reached"
    lines = [line for line in messages.splitlines() if line.startswith("error:")]
    return (lines or ["uv did not end in time"])[0].removeprefix("error: ")[:200]


def _refusal(
    declared: DeclaredVersions,
    step: InstallStep,
    stated: Sequence[tuple[StatedRequirement, tuple[str, int]]],
    *,
    answer: _Answer,
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
        loose = tuple(text for text in request.requirements if text != _without_build(one.written))
        if not one.pin or len(loose) == len(request.requirements):
            continue
        if new := _nearest_version(one, replace(request, requirements=loose), resolver, base):
            edit = Edit(step.line, one.written, one.written.replace(one.pin.partition("+")[0], new))
            return replace(
                finding,
                file=file,
                line=line,
                remedy=f"take {one.name} {new}, the nearest version that is compatible with the rest",
                edit=edit if file == declared.dockerfile else None,
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
        if text := _resolve(tried, resolver, base).versions.get(one.name):
            pairs = zip_longest(version(pin), version(text), fillvalue=0)
            found[text] = tuple(abs(old - new) for old, new in pairs)
    return min(found, key=found.__getitem__, default="")


def _replacements(
    declared: DeclaredVersions,
    step: InstallStep,
    stated: Sequence[tuple[StatedRequirement, tuple[str, int]]],
    *,
    versions: Mapping[str, str],
    before: Mapping[str, Package],
) -> Iterator[Finding]:
    """Yield a warning for each pinned package whose version a later command changes without naming it."""
    names = {one.name for one, _ in stated}
    for name, package in declared.packages.items():
        known = None if name in names else before.get(name)
        if known and known.line < step.line and versions.get(name, known.text) != known.text:
            yield image_finding(
                step.line,
                f"{name} {package.text} of line {known.line} is replaced by {versions[name]}",
                "a package of this command requires that version, and pip changes it without asking",
                f"install both with one command, or take {name} {versions[name]} in line {known.line}",
                severity=WARNING,
                file=declared.dockerfile,
                rule="replaced",
            )


def _final(
    declared: DeclaredVersions, packages: Mapping[str, Package], resolver: Resolver, flags: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield a finding if the packages installed in the end are incompatible, which pip permits."""
    lines = {package.line for package in packages.values()}
    environments = {step.install.environment for step in declared.steps}
    if len(lines) < 2 or len(environments) != 1:
        return
    pins = tuple(f"{one.name}=={one.text}" for one in packages.values())
    dropped = _BUILD_PARTS.difference(packages) if declared.torch_build == "pypi" else _BUILD_PARTS
    request = ResolverRequest(
        tuple(pin for pin in pins if pin.partition("==")[0] not in dropped),
        dropped=dropped,
        flags=flags,
    )
    answer = _ask(request, resolver)
    if not answer.conflict:
        return
    named = [one for one in packages.values() if f"{one.name}==" in answer.conflict]
    line = max((one.line for one in named), default=max(lines))
    breaks = bool(re.search(r"depends? on torch[=<>]", answer.conflict))
    yield image_finding(
        line,
        "the packages that are installed in the end are not compatible",
        answer.conflict,
        "install these packages with one command, so that pip chooses compatible versions",
        severity=ERROR if breaks else WARNING,
        file=declared.dockerfile,
        rule="resolution",
    )
