"""Lint the environment of training: every variable of every file, and the manifests around them.

files + facts of the caller ──lint──> findings with reason and fix, by file and line, the worst first
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainyard.config.secret_forms import baked_secret_kind, secret_kind
from trainyard.plan.environment.job_manifest_rules import PLAIN_SECRET, judge_manifest
from trainyard.plan.environment.located_yaml import locate_objects
from trainyard.plan.environment.settings_reading import EnvironmentFile, SettingGroup, manifest_groups
from trainyard.plan.environment.variable_rules import VariableScope, judge_variable, missing_variables
from trainyard.plan.finding import Finding, Severity

_BY_OPERATORS = re.compile(r"PET_\w+|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|NODE_RANK|LOCAL_RANK")
_JOBS = ("PyTorchJob", "TrainJob", "HyperPodPyTorchJob")
_LONGEST_VALUE = 60


def lint_record(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    kept = ("file", "line", "subject", "value", "severity", "evidence", "fix")
    return {key: getattr(finding, key) for key in kept} | {"where": finding.area}


def lint(files: Iterable[EnvironmentFile]) -> list[Finding]:
    """Return all findings, by file and line, the worst first."""
    found = [finding for file in files for finding in _of_file(file)]
    order = list(Severity)
    return sorted(found, key=lambda finding: (finding.file, finding.line, order.index(finding.severity)))


def lint_objects(name: str, objects: Iterable[Mapping[str, Any]], given: VariableScope) -> list[Finding]:
    """Return the findings of Kubernetes objects."""
    documents = locate_objects(objects)
    return lint([EnvironmentFile(name, tuple(manifest_groups(documents, given)), tuple(documents))])


def _of_file(file: EnvironmentFile) -> Iterator[Finding]:
    """The findings of one file; a line that several containers share (a YAML anchor) is reported once."""
    variables = [finding for group in file.groups for finding in _of_group(file.name, group)]
    judged = (each for document in file.documents for each in judge_manifest(document))
    fields = [replace(each, file=file.name) for each in judged]
    seen = set()
    for finding in (*variables, *fields):
        key = (finding.line, finding.subject, finding.evidence)
        if key not in seen:
            seen.add(key)
            yield finding


def _of_group(name: str, group: SettingGroup) -> Iterator[Finding]:
    for setting in group.settings:
        if setting.by_reference:
            continue
        secret = (baked_secret_kind if setting.is_baked else secret_kind)(setting.name, setting.value)
        judgement = (
            (PLAIN_SECRET if secret else None)
            or _by_operator(setting.name, group)
            or judge_variable(setting.name, setting.value, group.place)
        )
        if judgement is not None:
            value = "" if secret else setting.value[:_LONGEST_VALUE]
            found = replace(judgement, subject=setting.name, value=value, area=group.what)
            yield replace(found, file=name, line=setting.line)
    names = frozenset(setting.name for setting in group.settings)
    lacking: dict[str, Finding] = {}
    if {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} <= names:
        both = "both names are set; torch reads PYTORCH_ALLOC_CONF only"
        lacking["PYTORCH_CUDA_ALLOC_CONF"] = Finding.warning(both, "keep one of them")
    for variable, judgement in (lacking | missing_variables(names, group.place)).items():
        yield replace(judgement, subject=variable, file=name, line=group.line, area=group.what)


def _by_operator(name: str, group: SettingGroup) -> Finding | None:
    kind = group.what.partition(" ")[0]
    if kind not in _JOBS or not _BY_OPERATORS.fullmatch(name):
        return None
    if kind == "TrainJob" and name.startswith("PET_"):
        return Finding.error("Trainer sets it and refuses a TrainJob with it", "remove it")
    return Finding.warning(f"the operator of {kind}s overwrites it in each pod", "remove it")
