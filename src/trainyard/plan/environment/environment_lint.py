"""Lint the environment of training: every variable of every file, and the manifests around them.

files + facts of the caller ──lint──> findings with reason and fix, by file and line, the worst first
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.config.secret_forms import baked_secret_kind, secret_kind
from trainyard.plan.environment.job_manifest_rules import judge_manifest
from trainyard.plan.environment.settings_reading import EnvironmentFile, SettingGroup
from trainyard.plan.environment.variable_rules import (
    Judgement,
    LintSeverity,
    judge_variable,
    missing_variables,
)

_BY_OPERATORS = re.compile(r"PET_\w+|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|NODE_RANK|LOCAL_RANK")
_JOBS = ("PyTorchJob", "TrainJob", "HyperPodPyTorchJob")
_LONGEST_VALUE = 60
_PLAIN_SECRET = Judgement(
    LintSeverity.ERROR,
    "a secret in plain text: everyone who can read the file, the image or the object can use it",
    "store it in a Secret, refer to that with valueFrom.secretKeyRef, and replace the exposed value",
)


@dataclass(frozen=True)
class LintFinding:
    """One error, warning or hint."""

    file: str
    line: int
    subject: str
    """The variable, or the field of a manifest."""
    value: str
    """The value as it is set; empty for a secret and for a missing variable."""
    severity: LintSeverity
    reason: str
    remedy: str
    where: str = ""
    """The object and container in a manifest."""

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "subject": self.subject,
            "value": self.value,
            "severity": self.severity.value,
            "evidence": self.reason,
            "remedy": self.remedy,
            "where": self.where,
        }


def lint(files: Iterable[EnvironmentFile]) -> list[LintFinding]:
    """Return all findings, by file and line, the worst first."""
    found = [finding for file in files for finding in _of_file(file)]
    order = list(LintSeverity)
    return sorted(found, key=lambda finding: (finding.file, finding.line, order.index(finding.severity)))


def _of_file(file: EnvironmentFile) -> Iterator[LintFinding]:
    """The findings of one file; a line that several containers share (a YAML anchor) is reported once."""
    variables = [finding for group in file.groups for finding in _of_group(file.name, group)]
    fields = [
        _finding(file.name, line, subject, judgement, where=where)
        for document in file.documents
        for line, subject, where, judgement in judge_manifest(document)
    ]
    seen = set()
    for finding in (*variables, *fields):
        key = (finding.line, finding.subject, finding.reason)
        if key not in seen:
            seen.add(key)
            yield finding


def _of_group(name: str, group: SettingGroup) -> Iterator[LintFinding]:
    for setting in group.settings:
        if setting.by_reference:
            continue
        secret = (baked_secret_kind if setting.is_baked else secret_kind)(setting.name, setting.value)
        judgement = (
            (_PLAIN_SECRET if secret else None)
            or _by_operator(setting.name, group)
            or judge_variable(setting.name, setting.value, group.place)
        )
        if judgement is not None:
            value = "" if secret else setting.value[:_LONGEST_VALUE]
            yield _finding(name, setting.line, setting.name, judgement, where=group.what, value=value)
    names = frozenset(setting.name for setting in group.settings)
    if {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} <= names:
        both = Judgement(
            LintSeverity.WARNING,
            "both names are set; torch reads PYTORCH_ALLOC_CONF only",
            "keep one of them",
        )
        yield _finding(name, group.line, "PYTORCH_CUDA_ALLOC_CONF", both, where=group.what)
    for variable, judgement in missing_variables(names, group.place).items():
        yield _finding(name, group.line, variable, judgement, where=group.what)


def _finding(
    file: str, line: int, subject: str, judgement: Judgement, *, where: str, value: str = ""
) -> LintFinding:
    return LintFinding(
        file, line, subject, value, judgement.severity, judgement.reason, judgement.remedy, where
    )


def _by_operator(name: str, group: SettingGroup) -> Judgement | None:
    kind = group.what.partition(" ")[0]
    if kind not in _JOBS or not _BY_OPERATORS.fullmatch(name):
        return None
    if kind == "TrainJob" and name.startswith("PET_"):
        return Judgement(LintSeverity.ERROR, "Trainer sets it and refuses a TrainJob with it", "remove it")
    return Judgement(LintSeverity.WARNING, f"the operator of {kind}s overwrites it in each pod", "remove it")
