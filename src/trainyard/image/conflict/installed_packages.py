"""Follow the installing commands of a Dockerfile: the packages after each, by its pins and by the resolver.

    command --pins--> packages;  --uv--> what else it installs, what it replaces, or why pip would refuse

A package that a base image may hold is unknown, unless it is torch and the base's name states its version.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import InvalidVersion
from packaging.version import Version as PackageVersion

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, image_finding
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.resolution import (
    BUILD_PARTS,
    OF_TORCH,
    PYPI,
    Resolver,
    ResolverRequest,
    Stated,
    ask,
    python_flags,
    refuse,
    request_of,
    required_torch,
    resolve,
    without_build,
)
from trainyard.image.conflict.stated_packages import Package, StatedRequirement
from trainyard.image.conflict.version_facts import torch_builds, version, version_text
from trainyard.plan.finding import Finding

_PYTORCH_INDEX = re.compile(
    r"https?://download\.pytorch\.org/whl/(?:(cu\d{3}|cpu|rocm[\d.]+)/?|torch_stable\.html)"
)
_OTHER_ENVIRONMENT = re.compile(r"\b(?:venv|virtualenv|conda|mamba|micromamba)\b")


@dataclass
class InstalledPackages:
    """The packages of an image while its commands are followed."""

    dockerfile: str
    resolver: Resolver | None = None
    machine: str = "x86_64"
    packages: dict[str, Package] = field(default_factory=dict)
    unstated: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    unchecked: dict[str, None] = field(default_factory=dict)
    """Places that were not checked, each with its reason."""
    pythons: set[str] = field(default_factory=set)
    """The Pythons with which commands were resolved."""

    def follow(self, steps: Sequence[InstallStep], commands: str) -> None:
        """Follow all commands, then judge the packages in the end; `commands` is the text of all RUNs."""
        for step in steps:
            stated = list(step.requirements(self.dockerfile))
            before = self._packages_before(step)
            self._take_pins(step, stated)
            if step.unread:
                self.unchecked[
                    f"{self.dockerfile}:{step.line}: the packages of {step.unread} are not read"
                ] = None
            # What a lock pins was resolved when it was made.
            if self.resolver and not step.install.removes and not step.install.locks:
                self._resolve(step, [pair for pair in stated if pair[0].written], before, self.resolver)
        torch = self.packages.get("torch")
        if torch and torch.build == "base" and _OTHER_ENVIRONMENT.search(commands):
            self.packages["torch"] = replace(torch, build="")
        environments = {step.install.environment for step in steps if not step.install.removes}
        if self.resolver and len(self.pythons) == len(environments) == 1:
            self.findings += self._judge_end(self.resolver, steps)

    def _packages_before(self, step: InstallStep) -> dict[str, Package]:
        """Return the known packages before a command, with the torch of its base."""
        base = step.base
        if not base.torch or not step.is_last or "torch" in self.unstated:
            return dict(self.packages)
        text = version_text((*base.torch, 0)[:3])
        torch = Package("torch", text, self.dockerfile, base.line, step.stage, build="base")
        return {"torch": torch, **self.packages}

    def _take_pins(
        self, step: InstallStep, here: Sequence[tuple[StatedRequirement, tuple[str, int]]]
    ) -> None:
        install = step.install
        self.removed |= {one.name for one, _ in here if install.removes}
        for one, (file, line) in here:
            pins = {other.pin for other, _ in here if other.name == one.name and other.pin}
            if one.pin and install.certain and not install.removes and len(pins) == 1:
                text, build, index = _build_of(one, step)
                self.packages[one.name] = Package(
                    one.name, text, file, line, step.stage, index=index, step=step.number, build=build
                )
                self.unstated.discard(one.name)
            elif one.name and not self._is_kept(one, step):
                self.packages.pop(one.name, None)
                self.unstated.add(one.name)

    def _is_kept(self, one: StatedRequirement, step: InstallStep) -> bool:
        """Return whether what is installed already fulfils the requirement, so that pip leaves it."""
        install, before = step.install, self._packages_before(step).get(one.name)
        if install.removes or one.pin or (not install.certain and (one.allowed is None or one.allowed)):
            return False
        if not before or install.upgrades or one.allowed is None:
            return False
        try:
            return one.allowed.contains(PackageVersion(before.text), prereleases=True)
        except InvalidVersion:
            return False

    def _resolve(
        self, step: InstallStep, stated: Sequence[Stated], before: Mapping[str, Package], resolver: Resolver
    ) -> None:
        request = request_of(step, [one for one, _ in stated], before, self.machine)
        if not stated or isinstance(request, str):
            self.unchecked |= {f"{self.dockerfile}:{step.line}: {request}": None} if stated else {}
            return
        answer = resolve(request, resolver, step.base, next(iter(self.pythons), ""))
        self.pythons.add(answer.python)
        if answer.unchecked:
            self.unchecked[f"{self.dockerfile}:{step.line}: {answer.unchecked}"] = None
        elif answer.conflict:
            found = refuse(step, stated, self.dockerfile, answer=answer, request=request, resolver=resolver)
            self.findings.append(found)
        elif step.is_last and step.install.certain:
            names = {one.name for one, _ in stated}
            self._take_versions(step, names, before, answer.versions)
            pinned = "" if "torch" in names else required_torch(request, resolver, step.base, answer.python)
            if pinned:
                place = (self.dockerfile, step.line, step.stage, "", step.number)
                self.packages["torch"] = Package("torch", pinned, *place, build="pypi")

    def _take_versions(
        self, step: InstallStep, names: set[str], before: Mapping[str, Package], versions: Mapping[str, str]
    ) -> None:
        """Add what the resolver chose, and report each pin that the command replaces without naming it."""
        urls = [url for url in (step.index_urls[0], *step.index_urls[1]) if url and not PYPI.fullmatch(url)]
        for name, text in versions.items():
            known, now = before.get(name), self.packages.get(name)
            if known and name not in names and without_build(f"{name}=={known.text}") != f"{name}=={text}":
                self.findings += self._replacement(step, known, text)
            elif known or (now and now.step == step.number):
                continue
            # Another index may have other versions, and another build of torch needs other CUDA libraries.
            is_foreign = (bool(urls) and name in OF_TORCH) or (name in BUILD_PARTS and name not in names)
            if not is_foreign and (known or not step.base.has_packages):
                place = (self.dockerfile, step.line, step.stage, "", step.number)
                is_new = known is None or known.is_resolved
                self.packages[name] = Package(name, text, *place, is_resolved=is_new, build="pypi")
                self.unstated.discard(name)

    def _replacement(self, step: InstallStep, known: Package, text: str) -> Iterator[Finding]:
        # What an unknown base holds may keep the package; the rule torch-twice judges the torch of a base.
        is_certain = step.base.kind != "other" or known.name in OF_TORCH
        if known.step >= 0 and not known.is_resolved and is_certain:
            yield image_finding(
                step.line,
                f"{known.name} {known.text} of line {known.line} is replaced by {text}",
                "a package of this command requires that version, and pip changes it without asking",
                f"install both with one command, or take {known.name} {text} in line {known.line}",
                severity=WARNING,
                file=self.dockerfile,
                rule="replaced",
            )

    def _judge_end(self, resolver: Resolver, steps: Sequence[InstallStep]) -> Iterator[Finding]:
        """Yield a finding if the packages installed in the end are incompatible, which pip permits."""
        last = [step for step in steps if step.is_last]
        if not last:
            return
        packages = self._packages_before(last[-1])
        if last[-1].base.kind == "ngc" and packages.get("torch", Package("", "", "", 0, 0)).build == "base":
            del packages["torch"]  # a development version, which is in no index
        stages = {step.stage for step in last}
        packages = {
            name: one for name, one in packages.items() if one.stage in stages and not one.is_resolved
        }
        if len({one.step for one in packages.values()}) < 2:
            return
        pins = (without_build(f"{one.name}=={one.text}") for one in packages.values())
        is_pypi = packages.get("torch", Package("", "", "", 0, 0)).build == "pypi"
        dropped = BUILD_PARTS.difference(packages) if is_pypi else BUILD_PARTS
        request = request_of(last[-1], [], {}, self.machine)
        flags = () if isinstance(request, str) else request.flags
        flags = (*(flag for flag in flags if flag != "--no-deps"), *python_flags(next(iter(self.pythons))))
        kept = tuple(pin for pin in pins if pin and pin.partition("==")[0] not in dropped)
        answer = ask(ResolverRequest(kept, dropped=dropped, flags=flags), resolver)
        if not answer.conflict:
            return
        named = [one for one in packages.values() if f"{one.name}==" in answer.conflict]
        line = max((one.line for one in named), default=last[-1].line)
        yield image_finding(
            line,
            "the packages that are installed in the end are not compatible",
            answer.conflict,
            "install these packages with one command, so that pip chooses compatible versions",
            severity=ERROR if re.search(r"depends? on torch[=<>]", answer.conflict) else WARNING,
            file=self.dockerfile,
            rule="resolution",
        )


def _build_of(one: StatedRequirement, step: InstallStep) -> tuple[str, str, str]:
    """Return the version of a pin with its build, the origin of the build, and the index that states it."""
    main, others = step.index_urls
    main = "" if PYPI.fullmatch(main) else main
    urls = [*filter(None, [main]), *(url for url in others if not PYPI.fullmatch(url))]
    indexes = [_PYTORCH_INDEX.fullmatch(url) for url in urls]
    suffix = next((match[1] for match in indexes if match and match[1]), "")
    kind, local, base = re.sub(r"[\d.]+$", "", suffix), one.pin.partition("+")[2], step.base
    if one.name not in OF_TORCH:
        return one.pin, "", ""
    if local:
        own = re.match(r"cpu|rocm", local)
        return one.pin, own[0] if own else "named" if all(indexes) else "private", ""
    if (
        one.name == "torch"
        and base.torch == version(one.pin)
        and base.torch
        and not step.install.upgrades
        and base.kind != "ngc"
    ):
        return one.pin, "base", ""
    unknown = base.kind == "other" or (base.kind in ("pytorch", "dlc") and not base.torch)
    if not all(indexes) or (not main and unknown) or len(urls) > 1:
        return one.pin, "", ""
    if not urls:
        return one.pin, "pypi", ""
    if kind in ("cpu", "rocm"):
        return one.pin, kind if main else "", ""
    if suffix and (main or version(f"{suffix[2:4]}.{suffix[4:]}") in torch_builds(version(one.pin))):
        return f"{one.pin}+{suffix}", "named", suffix
    return one.pin, "", ""
