"""Follow the installing commands of a Dockerfile: the packages after each, by its pins and by the resolver.

    command --pins--> packages;  --uv--> what else it installs, what it replaces, or why pip would refuse

A package that a base image may hold is unknown, unless it is torch and the base's name states its version.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainyard.image.conflict.conflict_rule import ERROR, WARNING, answer
from trainyard.image.conflict.install_steps import InstallStep
from trainyard.image.conflict.resolution import (
    OF_TORCH,
    PYPI,
    Resolver,
    ResolverRequest,
    build_parts,
    platform_flags,
    refuse,
    request_of,
    required_torch,
    resolve,
    without_build,
)
from trainyard.image.conflict.stated_packages import Package, StatedRequirement
from trainyard.image.version_facts import torch_builds, version, version_text
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
            before = self._packages_before(step)
            self._take_pins(step, before)
            if step.unread:
                self._leave_unchecked(step, f"the packages of {step.unread} are not read")
            is_resolved = any(one.written for one in step.stated) and not step.is_locked
            if self.resolver and is_resolved and not step.install.removes:
                self._resolve(step, before, self.resolver)
        torch = self.packages.get("torch")
        if torch and torch.build == "base" and _OTHER_ENVIRONMENT.search(commands):
            self.packages["torch"] = replace(torch, build="")
        environments = {step.install.environment for step in steps if not step.install.removes}
        if self.resolver and len(self.pythons) == len(environments) == 1:
            self.findings += self._judge_end(self.resolver, [step for step in steps if step.is_last])

    def _leave_unchecked(self, step: InstallStep, reason: str) -> None:
        self.unchecked[f"{self.dockerfile}:{step.line}: {reason}"] = None

    def _packages_before(self, step: InstallStep) -> dict[str, Package]:
        """Return the known packages before a command, with the torch of its base."""
        base = step.base
        if not base.torch or not step.is_last or "torch" in self.unstated:
            return dict(self.packages)
        text = version_text((*base.torch, 0)[:3])
        torch = Package("torch", text, self.dockerfile, base.line, step.stage, build="base")
        return {"torch": torch, **self.packages}

    def _take_pins(self, step: InstallStep, before: Mapping[str, Package]) -> None:
        install, pins = step.install, dict[str, set[str]]()
        for one in step.stated:
            pins.setdefault(one.name, set()).update([one.pin] if one.pin else [])
        for one in step.stated:
            if install.removes:
                self.removed.add(one.name)
            if one.pin and not install.removes and len(pins[one.name]) == 1:
                text, build = _build_of(one, step)
                place = (one.file, one.line, step.stage, step.number)
                self.packages[one.name] = Package(one.name, text, *place, build=build)
                self.unstated.discard(one.name)
            elif one.name and not _is_kept(one, step, before.get(one.name)):
                self.packages.pop(one.name, None)
                self.unstated.add(one.name)

    def _resolve(self, step: InstallStep, before: Mapping[str, Package], resolver: Resolver) -> None:
        request = request_of(step, before, self.machine, next(iter(self.pythons), ""))
        if isinstance(request, str):
            self._leave_unchecked(step, request)
            return
        found = resolve(request, resolver)
        self.pythons.add(found.python)
        if found.without:
            left = ", ".join(found.without)
            self._leave_unchecked(step, f"the index has no wheel of {left}: what it requires is not read")
        if found.unchecked:
            self._leave_unchecked(step, found.unchecked)
        elif found.conflict:
            self.findings.append(refuse(step, self.dockerfile, found, request=request, resolver=resolver))
        elif step.is_last:
            names = {one.name for one in step.stated if one.written}
            self._take_versions(step, names, before, found.versions)
            # No release is equal to the torch of NGC (a development version) and of AMD's images.
            has_own_build = step.base.kind in ("ngc", "rocm") and "torch" not in names
            if has_own_build and (torch := required_torch(request, resolver)):
                self._add(step, "torch", torch)

    def _add(self, step: InstallStep, name: str, text: str, *, is_resolved: bool = False) -> None:
        place = (self.dockerfile, step.line, step.stage, step.number)
        self.packages[name] = Package(name, text, *place, is_resolved=is_resolved, build="pypi")

    def _take_versions(
        self, step: InstallStep, names: set[str], before: Mapping[str, Package], versions: Mapping[str, str]
    ) -> None:
        """Add what the resolver chose, and report each pin that the command replaces without naming it."""
        has_other_index = any(url and not PYPI.fullmatch(url) for url in step.indexes)
        parts = build_parts()
        for name, text in versions.items():
            known, now = before.get(name), self.packages.get(name)
            if known and name not in names and without_build(f"{name}=={known.text}") != f"{name}=={text}":
                # What an unknown base holds may keep it; the rule torch-twice judges the torch of a base.
                is_certain = step.base.kind != "other" or name in OF_TORCH
                if is_certain and known.step >= 0 and not known.is_resolved:
                    self.findings.append(
                        answer("replaced", step, name=name, found=known.text, before=known.line, now=text)
                    )
            elif known or (now and now.step == step.number):
                continue
            # Another index may have other versions, and another build of torch needs other CUDA libraries.
            is_foreign = (has_other_index and name in OF_TORCH) or (name in parts and name not in names)
            if not is_foreign and (known or not step.base.has_packages):
                self._add(step, name, text, is_resolved=known is None or known.is_resolved)
                self.unstated.discard(name)

    def _judge_end(self, resolver: Resolver, steps: Sequence[InstallStep]) -> Iterator[Finding]:
        """Yield a finding if the packages installed in the end are incompatible, which pip permits."""
        stages = {step.stage for step in steps}
        found = self._packages_before(steps[-1]) if steps else {}
        packages = {name: one for name, one in found.items() if one.stage in stages and not one.is_resolved}
        torch = packages.get("torch")
        if torch and torch.build == "base" and steps[-1].base.kind == "ngc":
            del packages["torch"]  # a development version, which is in no index
        if len({one.step for one in packages.values()}) < 2:
            return
        is_pypi = torch is not None and torch.build == "pypi"
        dropped = build_parts().difference(packages if is_pypi else ())
        pins = (without_build(f"{one.name}=={one.text}") for one in packages.values())
        kept = tuple(pin for pin in pins if pin and pin.partition("==")[0] not in dropped)
        flags = platform_flags(steps[-1].base, self.machine)
        request = ResolverRequest(kept, dropped=dropped, flags=flags, pythons=tuple(self.pythons))
        if conflict := resolve(request, resolver).conflict:
            named = [one for one in packages.values() if f"{one.name}==" in conflict]
            place = max(named, key=lambda one: one.line, default=steps[-1])
            severity = ERROR if re.search(r"depends? on torch[=<>]", conflict) else WARNING
            one = answer("resolution.end", place, severity=severity, conflict=conflict)
            yield replace(one, file=self.dockerfile)


def _is_kept(one: StatedRequirement, step: InstallStep, before: Package | None) -> bool:
    """Return whether what is installed already fulfils the requirement, so that pip leaves it."""
    install = step.install
    if install.removes or install.upgrades or one.pin or before is None or one.allowed is None:
        return False
    return one.allowed.contains(before.text, prereleases=True)


def _build_of(one: StatedRequirement, step: InstallStep) -> tuple[str, str]:
    """Return the version of a pin with its build, and the origin of the build."""
    urls = [url for url in step.indexes if url and not PYPI.fullmatch(url)]
    is_main = bool(step.indexes[0]) and step.indexes[0] in urls
    indexes = [_PYTORCH_INDEX.fullmatch(url) for url in urls]
    suffix = next((match[1] for match in indexes if match and match[1]), "")
    kind, local, base = re.sub(r"[\d.]+$", "", suffix), one.pin.partition("+")[2], step.base
    if one.name not in OF_TORCH:
        return one.pin, ""
    if local:
        own = re.match(r"cpu|rocm", local)
        return one.pin, own[0] if own else "named" if all(indexes) else "private"
    is_of_base = one.name == "torch" and base.torch and base.torch == version(one.pin)
    if is_of_base and not step.install.upgrades and base.kind != "ngc":
        return one.pin, "base"
    unknown = base.kind == "other" or (base.kind in ("pytorch", "dlc") and not base.torch)
    if not all(indexes) or (not is_main and unknown) or len(urls) > 1:
        return one.pin, ""
    if not urls:
        return one.pin, "pypi"
    if kind in ("cpu", "rocm"):
        return one.pin, kind if is_main else ""
    if suffix and (is_main or version(f"{suffix[2:4]}.{suffix[4:]}") in torch_builds(version(one.pin))):
        return f"{one.pin}+{suffix}", "named"
    return one.pin, ""
