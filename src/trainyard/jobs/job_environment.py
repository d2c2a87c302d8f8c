"""Lint a job as it would be sent: every variable that reaches its processes, and its manifests.

    JobSpec ──rendered──> manifests + the program's variables + those in its command ──lint──> findings

The rules are those of `plan.environment`. Their findings about devices and the image are left out,
because the plan judges these itself, with the facts of the cluster's nodes.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.recipes.wrapped_program import PROGRAM_FILE
from trainyard.plan.environment.environment_lint import lint
from trainyard.plan.environment.settings_reading import (
    Setting,
    SettingGroup,
    read_environment_objects,
)
from trainyard.plan.environment.surroundings import VariableScope
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import EFA, GPU, instance_called

_PRESET = "the program"
_JUDGED_BY_THE_PLAN = (GPU, EFA, "image")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELLS = ("sh", "bash", "dash", "zsh")
_SEPARATORS = re.compile(r"[;&|()]+")
_BEFORE_VARIABLES = ("env", "export", "exec", "time")


def job_findings(plan: JobSpec) -> list[Finding]:
    """Return what the linter of the environment finds in the job, each finding once, the worst first."""
    place = variable_scope(plan)
    file = read_environment_objects("the job", KINDS[plan.kind].render(plan).all, place)
    beside = (
        SettingGroup(_PRESET, tuple(_program_settings(plan)), place),
        SettingGroup("the command", tuple(command_settings(plan.program.command)), place),
    )
    found = lint([replace(file, groups=(*file.groups, *beside))])
    return [
        finding
        for finding in found
        if finding.subject not in _JUDGED_BY_THE_PLAN
        # A hint, such as that a variable is for Megatron only, is for others than the preset that sets it.
        and (finding.area != _PRESET or finding.severity is not Severity.INFO)
    ]


def variable_scope(plan: JobSpec) -> VariableScope:
    """Return the known facts of the machines on which the job's variables take effect."""
    return VariableScope(
        instance=instance_called(plan.instance_type),
        nodes=plan.nodes,
        efa=plan.resources.efa,
        gpus=plan.resources.gpus,
        network=plan.network,
    )


def _program_settings(plan: JobSpec) -> Iterator[Setting]:
    """The variables that a recipe sets for its program."""
    described = json.loads(plan.program.files.get(PROGRAM_FILE, "{}"))
    for name, value in described.get("environment", {}).items():
        yield Setting(name, value, 1)


def command_settings(words: Sequence[str]) -> Iterator[Setting]:
    """Yield the variables that a command sets by itself: with `env`, or in the text that it gives a shell."""
    yield from _shell_settings(shlex.join(words))
    if any(PurePosixPath(word).name in _SHELLS for word in words):
        texts = (after for word, after in pairwise(words) if re.fullmatch(r"-[a-z]*c", word))
        yield from _shell_settings(next(texts, ""))


def _shell_settings(text: str) -> Iterator[Setting]:
    """The assignments at the beginning of a shell's commands; loops and functions are not read."""
    reader = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    at_start = True
    try:
        for word in reader:
            if _SEPARATORS.fullmatch(word):
                at_start = True
            elif at_start and (found := _ASSIGNMENT.fullmatch(word)):
                yield Setting(found[1], found[2], 1)
            else:
                is_before = word.startswith("-") or PurePosixPath(word).name in _BEFORE_VARIABLES
                at_start = at_start and is_before
    except ValueError:  # an open quote: the shell refuses it too
        return
