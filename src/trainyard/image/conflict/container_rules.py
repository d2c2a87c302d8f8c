"""Rules on the container (EFA, variables, loader, pins, user, secrets), and the run of all rules.

Their words are rows of facts/rules.yaml.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from trainyard.config.secret_forms import (
    baked_secret_kind,
    is_build_variable,
    is_secret_name,
    secret_kind,
    secret_value_kind,
)
from trainyard.image.conflict.conflict_rule import ERROR, WARNING, TargetMachine, answer
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.package_rules import PACKAGE_RULES, Rule
from trainyard.image.context.dockerfile import arguments_of, is_stated, pairs_of
from trainyard.image.version_facts import Version, minor, row_of, rows_with, torch_row, version, version_text
from trainyard.plan.environment.variable_rules import VariableScope, judge_variable
from trainyard.plan.finding import Finding, Severity


def _oldest(machine: TargetMachine, key: str) -> Version:
    """Return the oldest version of installer, plugin or nccl for the machine, the highest of all rows."""
    listed = (one for one in rows_with("efa", "families") if machine.family in one["families"])
    return max((version(one[key]) for one in listed if key in one), default=())


def _efa_versions(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    bundle = row_of("efa", installer=version_text(declared.efa_installer))
    wanted = (
        ("EFA installer", declared.efa_installer, "installer"),
        ("aws-ofi-nccl", declared.efa_plugin or version(bundle.get("plugin", "")), "plugin"),
        ("NCCL", declared.nccl, "nccl"),
    )
    for name, found, key in wanted:
        oldest = _oldest(machine, key)
        if machine.efa and found and found < oldest:
            yield answer("efa-versions", None, name=name, found=found, family=machine.family, oldest=oldest)


def _efa_missing(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    if machine.efa and not declared.has_efa and declared.base.kind not in ("dlc", "other"):
        yield answer("efa-missing", declared.base)


def _efa_nccl(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    row, torch = next(rows_with("efa", "oldest_installer")), declared.torch
    own = torch_row(torch.version).get("nccl", "") if torch and torch.build != "cpu" else ""
    nccl, installer = declared.nccl or version(own), declared.efa_installer
    needed, unless = version(row["oldest_installer"]), row["unless"]
    without = any(f"{one.name}={one.value}" == unless for one in declared.variables)
    if installer and installer < needed and nccl >= version(row["nccl"]) and not without:
        kind = ERROR if machine.rdma else WARNING
        yield answer(
            "efa-nccl", None, severity=kind, nccl=nccl, installer=installer, needed=needed, unless=unless
        )


def _two_nccl(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    own = version(torch_row(declared.torch.version).get("nccl", "")) if declared.torch else ()
    paths = [one for one in declared.variables if one.name in ("LD_LIBRARY_PATH", "LD_PRELOAD")]
    first = next((one for one in paths if "nccl" in one.value.replace("ofi-nccl", "")), None)
    found = declared.nccl
    if first and own and found and found < own:
        severity = ERROR if machine.efa and found < _oldest(machine, "nccl") else WARNING
        yield answer("two-nccl", first, severity=severity, name=first.name, found=found, own=own)


_REMOVED_LOADER_FILES = re.compile(r"\brm\b[^;&|\n]*(?:ofi-?nccl[^;&|\n]*\.conf|ld\.so\.conf\.d/\*)")


def _library_path(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    """Judge the folders that LD_LIBRARY_PATH names: they come before those of torch and of the driver."""
    path, base, torch = declared.variable("LD_LIBRARY_PATH"), declared.base, declared.torch
    folders = path.value.split(":") if path else []
    own = version(row_of("cuda", toolkit=version_text(minor(base.cuda))).get("bundled_driver", ""))
    has_compat = any(re.fullmatch(r"/usr/local/cuda[\d.-]*/compat/?", folder) for folder in folders)
    if has_compat and own and machine.driver[:1] > own[:1]:
        yield answer("library-path.compat", path, cuda=base.cuda, own=own)
    cudnn = next(rows_with("pairs", "cudnn"))
    is_old = re.search(r"cudnn8(?!\d)", base.image)
    is_first = any("/lib/x86_64-linux-gnu" in folder for folder in folders)
    if torch and is_old and is_first and torch.version >= version(cudnn["torch"]) and torch.build != "base":
        severity = WARNING if declared.base_is_used else ERROR
        yield answer("library-path.cudnn", path, severity=severity, cudnn=cudnn["cudnn"], torch=torch.text)
    row, installer = next(rows_with("pairs", "absent")), declared.efa_installer
    dead = [one for one in folders if one.startswith(tuple(row["absent"]))]
    made = any(f"={folder}" in declared.commands for folder in row["absent"])
    found = any(one.startswith(row["folder"]) for one in folders)
    is_hidden = installer >= version(row["installer"]) and _REMOVED_LOADER_FILES.search(declared.commands)
    if dead and machine.efa and is_hidden and not made and not found:
        yield answer("library-path.absent", path, dead=dead[0], installer=installer, folder=row["folder"])


def _net_plugin(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    row = next(rows_with("pairs", "net_plugin"))
    known = declared.efa_plugin >= version(row["plugin"]) or declared.efa_installer
    for one in (one for one in declared.variables if one.name == "NCCL_NET_PLUGIN" and machine.efa):
        is_file = "/" in one.value or one.value.endswith(".so")
        if one.value not in ("", row["net_plugin"]) and not is_file and (known or one.value == "none"):
            yield answer("net-plugin", one, value=one.value, right=row["net_plugin"])


def _environment(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    place = VariableScope(machine.instance, efa=None if machine.efa is None else int(machine.efa))
    judged = row_of("rules", rule="environment")["variables"]
    for one in declared.variables:
        if found := judge_variable(one.name, one.value, place) if one.name in judged else None:
            words = {"name": one.name, "value": one.value, "reason": found.evidence, "remedy": found.fix}
            yield answer("environment", one, severity=found.severity, edit=None, **words)


def _unpinned(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    for stage in (one for one in declared.parsed.unpinned if is_stated(one.image)):
        yield answer("unpinned", stage, image=stage.image)


def _user(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    user = declared.parsed.last("USER")
    if user is None or user.text.split(":")[0] in ("root", "0"):
        yield answer("user", user or declared.parsed.stages[-1])


def _secret(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    for one in declared.parsed.instructions:
        severities = dict[str, Severity | None]()
        if one.name == "ENV":
            pairs = pairs_of(one.text).items()
            severities = {key: ERROR for key, value in pairs if baked_secret_kind(key, value)}
        elif one.name == "ARG":
            values = arguments_of(one.text, {}, {})
            severities = {key: _severity_of_argument(key, value or "") for key, value in values.items()}
        for name, severity in severities.items():
            if severity:
                yield answer("secret", one, severity=severity, instruction=one.name, name=name)


def _severity_of_argument(name: str, value: str) -> Severity | None:
    """Return the severity of an ARG; one that is only named like a secret gets a warning."""
    in_value = secret_value_kind(f"{name}={value}".encode(errors="surrogateescape"))
    if in_value or (secret_kind(name, value) and not is_build_variable(value)):
        return ERROR
    return WARNING if is_secret_name(name) else None


RULES: tuple[Rule, ...] = (
    *PACKAGE_RULES,
    *(_efa_versions, _efa_missing, _efa_nccl, _two_nccl, _library_path, _net_plugin),
    *(_environment, _unpinned, _user, _secret),
)


def judge_versions(declared: DeclaredVersions, machine: TargetMachine) -> list[Finding]:
    """Run all rules; the worst findings come first, then they are sorted by place."""
    found = [*declared.installed.findings, *(one for rule in RULES for one in rule(declared, machine))]
    placed = (replace(one, file=one.file or declared.dockerfile) for one in found)
    return sorted(placed, key=lambda f: ((ERROR, WARNING).index(f.severity), f.file, f.line, f.rule))
