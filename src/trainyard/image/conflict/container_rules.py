"""Rules on the container (EFA, variables, pins, the user, secrets), and the run of every rule."""

from collections.abc import Iterator
from dataclasses import replace

from trainyard.config.secret_forms import (
    baked_secret_kind,
    is_build_variable,
    is_secret_name,
    secret_kind,
    secret_value_kind,
)
from trainyard.image.conflict.conflict_rule import ERROR, WARNING, TargetMachine, image_finding
from trainyard.image.conflict.declared_versions import DeclaredVersions
from trainyard.image.conflict.package_rules import PACKAGE_RULES, Rule
from trainyard.image.conflict.pair_rules import PAIR_RULES
from trainyard.image.conflict.version_facts import (
    Version,
    row_of,
    rows_with,
    torch_row,
    version,
    version_text,
)
from trainyard.image.context.dockerfile import arguments_of, is_stated, pairs_of
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
            yield image_finding(
                0,
                f"{name} {version_text(found)} is too old for {machine.family}",
                "NCCL falls back to TCP there, without an error",
                f"take {name} {version_text(oldest)} or newer",
            )


def _efa_missing(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    if machine.efa and not declared.has_efa and declared.base.kind not in ("dlc", "other"):
        yield image_finding(
            declared.base.line,
            "the machine has EFA, but neither the EFA installer nor aws-ofi-nccl is installed",
            "NCCL finds no plugin and uses TCP, several times slower, without an error",
            "install both as docker/fsdp/Dockerfile does",
            severity=WARNING,
        )


def _efa_nccl(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    row, torch = next(rows_with("efa", "oldest_installer")), declared.torch
    own = torch_row(torch.version).get("nccl", "") if torch and torch.build != "cpu" else ""
    nccl = declared.nccl or version(own)
    name, _, value = row["unless"].partition("=")
    without = any((one.name, one.value) == (name, value) for one in declared.variables)
    needed = version(row["oldest_installer"])
    if (
        declared.efa_installer
        and declared.efa_installer < needed
        and nccl >= version(row["nccl"])
        and not without
    ):
        yield image_finding(
            0,
            f"NCCL {version_text(nccl)} does not run with EFA installer "
            f"{version_text(declared.efa_installer)}",
            "with GPUDirect RDMA it ends with 'Unable to register memory (type = 2) … Invalid argument'",
            f"take installer {version_text(needed)} or newer, or set {row['unless']}",
            severity=ERROR if machine.rdma else WARNING,
        )


def _two_nccl(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    torch = declared.torch
    own = version(torch_row(torch.version).get("nccl", "")) if torch else ()
    paths = [one for one in declared.variables if one.name in ("LD_LIBRARY_PATH", "LD_PRELOAD")]
    first = next((one for one in paths if "nccl" in one.value.replace("ofi-nccl", "")), None)
    if first and own and declared.nccl and declared.nccl < own:
        yield image_finding(
            first.line,
            f"{first.name} puts NCCL {version_text(declared.nccl)} before torch's own {version_text(own)}",
            "the loader takes the first; a function that the older one lacks is an undefined symbol",
            "leave NCCL to torch, or install the newer one",
            severity=ERROR if machine.efa and declared.nccl < _oldest(machine, "nccl") else WARNING,
        )


_JUDGED = frozenset(
    (
        *("FI_EFA_MTU_SIZE", "FI_EFA_TX_IOV_LIMIT", "FI_EFA_RX_IOV_LIMIT", "FI_PROVIDER"),
        "FI_EFA_USE_DEVICE_RDMA",
        *("NCCL_P2P_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_PROTO", "CUDA_LAUNCH_BLOCKING"),
        *("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT"),
        *("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT"),
    )
)
"""Variables that are wrong in an image for the same reason as in a job; `judge_variable` judges both."""


def _environment(declared: DeclaredVersions, machine: TargetMachine) -> Iterator[Finding]:
    place = VariableScope(machine.instance, efa=None if machine.efa is None else int(machine.efa))
    for variable in declared.variables:
        name, value = variable.name, variable.value
        severity, why, fix = Severity.INFO, "", "remove it"
        if name == "RDMAV_FORK_SAFE":
            # It is right over InfiniBand, and wrong only with EFA.
            uses_efa = machine.efa or (machine.efa is None and declared.has_efa)
            severity, why = ERROR if uses_efa else WARNING, "it conflicts with the EFA provider"
        elif name in _JUDGED and (found := judge_variable(name, value, place)):
            severity, why, fix = found.severity, found.evidence, found.fix
        if severity is not Severity.INFO:
            yield image_finding(variable.line, f"ENV {name}={value}", why, fix, severity=severity)


def _unpinned(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    for stage in (one for one in declared.parsed.unpinned if is_stated(one.image)):
        yield image_finding(
            stage.line,
            f"{stage.image} is a tag, which can move",
            "two builds of one commit may differ, and a build of the same content is never skipped",
            f"add its digest: {stage.image}@sha256:…",
            severity=WARNING,
        )


def _user(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    user = declared.parsed.last("USER")
    if user is None or user.text.split(":")[0] in ("root", "0"):
        yield image_finding(
            user.line if user else declared.parsed.stages[-1].line,
            "the image runs as root",
            "the restricted Pod Security Standard refuses it, and root owns what it writes to shared volumes",
            "end the last stage with USER and a number, such as USER 1000",
            severity=WARNING,
        )


def _secret(declared: DeclaredVersions, _: TargetMachine) -> Iterator[Finding]:
    for instruction in declared.parsed.instructions:
        severities = dict[str, Severity | None]()
        if instruction.name == "ENV":
            found = (
                key for key, value in pairs_of(instruction.text).items() if baked_secret_kind(key, value)
            )
            severities = dict.fromkeys(found, ERROR)
        elif instruction.name == "ARG":
            values = arguments_of(instruction.text, {}, {})
            severities = {key: _severity_of_argument(key, value or "") for key, value in values.items()}
        for name, severity in severities.items():
            if severity:
                yield image_finding(
                    instruction.line,
                    f"{instruction.name} {name} keeps a secret in the image",
                    "build arguments and variables stay readable in its history, for all who can pull it",
                    "use RUN --mount=type=secret, or hand it to the job as a Secret",
                    severity=severity,
                )


def _severity_of_argument(name: str, value: str) -> Severity | None:
    """Return the severity of an ARG; one that is only named like a secret gets a warning."""
    in_value = secret_value_kind(f"{name}={value}".encode(errors="surrogateescape"))
    if in_value or (secret_kind(name, value) and not is_build_variable(value)):
        return ERROR
    return WARNING if is_secret_name(name) else None


RULES: tuple[Rule, ...] = (
    *PACKAGE_RULES,
    *PAIR_RULES,
    *(_efa_versions, _efa_missing, _efa_nccl, _two_nccl, _environment, _unpinned, _user, _secret),
)
"""Each gives its findings its name, such as `efa-missing`."""


def judge_versions(declared: DeclaredVersions, machine: TargetMachine) -> list[Finding]:
    """Run all rules; the worst findings come first, then they are sorted by place."""
    found = [
        *declared.installed.findings,
        *(
            replace(one, rule=rule.__name__[1:].replace("_", "-"), file=one.file or declared.dockerfile)
            for rule in RULES
            for one in rule(declared, machine)
        ),
    ]
    return sorted(found, key=lambda f: ((ERROR, WARNING).index(f.severity), f.file, f.line, f.rule))
