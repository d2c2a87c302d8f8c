"""Check that CodeBuild can use a buildspec: its keys, their types, and the rules of this repository.

    text of buildspec.yml  ──>  Problem (file, line, dotted key, message)

CodeBuild has no public schema and ignores some wrong keys silently: a misspelt `finally` never runs. Known
are the keys of version 0.2 in AWS's build specification reference. Of `batch` only the names are judged.
https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import yaml

from trainyard.config.problems import Origin, Problem
from trainyard.config.yaml.syntax import compose

VERSION = "0.2"
_PHASES = ("install", "pre_build", "build", "post_build")
_ON_FAILURE = re.compile(r"ABORT|CONTINUE|RETRY(-\d+)?(-.+)?")
_SHELLS = ("bash", "/bin/sh", "sh", "powershell.exe", "cmd.exe")
_REPORTS = (
    *("CUCUMBERJSON", "JUNITXML", "NUNITXML", "NUNIT3XML", "TESTNGXML", "VISUALSTUDIOTRX"),
    *("CLOVERXML", "COBERTURAXML", "JACOCOXML", "SIMPLECOV"),
)
_YES_NO = ("yes", "no", "true", "false")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Path = tuple[str, ...]
Found = Iterator[tuple[yaml.Node, Path, str]]
"""The node, its dotted key, and what is wrong with it."""
Check = Callable[[yaml.Node, Path], Found]


def find_buildspec_problems(text: str, shown: str) -> list[Problem]:
    """Everything that is wrong with a buildspec that is called `shown`, in the order of its lines."""
    root = compose(text, shown)
    if isinstance(root, Problem):
        return [root]
    if not isinstance(root, yaml.MappingNode):
        line = None if root is None else root.start_mark.line + 1
        return [Problem(Origin(shown, line), "", "a buildspec is a mapping that begins with version: 0.2")]
    found = [*_ROOT(root, ()), *_exported(root)]
    ordered = sorted(found, key=lambda each: each[0].start_mark.line)
    return [Problem(Origin(shown, n.start_mark.line + 1), ".".join(path), said) for n, path, said in ordered]


@dataclass(frozen=True)
class _Mapping:
    """A mapping with known keys."""

    keys: Mapping[str, Check]
    required: tuple[str, ...] = ()

    def __call__(self, node: yaml.Node, path: Path) -> Found:
        if not isinstance(node, yaml.MappingNode):
            yield node, path, "expected a mapping of keys"
            return
        names: list[str] = []
        for key, value in node.value:
            name = str(key.value)
            if name in names:
                yield key, (*path, name), "is given twice; CodeBuild uses one of them"
            elif name not in self.keys:
                near = difflib.get_close_matches(name[:40], self.keys, n=1)
                hint = f"did you mean {near[0]}?" if near else f"valid here: {', '.join(self.keys)}"
                yield key, (*path, name), f"unknown key; {hint}"
            else:
                yield from self.keys[name](value, (*path, name))
            names.append(name)
        for name in self.required:
            if name not in names:
                yield node, (*path, name), "is missing"


@dataclass(frozen=True)
class _Named:
    """A mapping whose keys the user chooses."""

    inner: Check
    names: re.Pattern[str] = re.compile(".+")

    def __call__(self, node: yaml.Node, path: Path) -> Found:
        if not isinstance(node, yaml.MappingNode):
            yield node, path, "expected a mapping of names"
            return
        for key, value in node.value:
            if not self.names.fullmatch(str(key.value)):
                yield key, (*path, str(key.value)), "is not the name of a variable: letters, digits and _"
            yield from self.inner(value, (*path, str(key.value)))


@dataclass(frozen=True)
class _List:
    """A list with at least one element."""

    inner: Check

    def __call__(self, node: yaml.Node, path: Path) -> Found:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            yield node, path, "expected a list of one element or more, each after a dash"
            return
        for number, value in enumerate(node.value, 1):
            yield from self.inner(value, (*path, str(number)))


@dataclass(frozen=True)
class _Text:
    """A single value: one of some words, or in a certain form, or any."""

    words: tuple[str, ...] = ()
    form: re.Pattern[str] | None = None

    def __call__(self, node: yaml.Node, path: Path) -> Found:
        if not isinstance(node, yaml.ScalarNode):
            yield node, path, "expected one value"
        elif self.words and str(node.value) not in self.words:
            yield node, path, f"{node.value!r} is none of {', '.join(self.words)}"
        elif self.form and not self.form.fullmatch(str(node.value)):
            yield node, path, f"{node.value!r} does not fit {self.form.pattern}"


def _anything(node: yaml.Node, path: Path) -> Found:  # noqa: ARG001 - has the form of a Check
    yield from ()


def _command(node: yaml.Node, path: Path) -> Found:
    """One command on one line: CodeBuild reports and times each, and joins several lines in its own way."""
    if not isinstance(node, yaml.ScalarNode):
        yield node, path, "expected a command as one text; quote a command with a colon and a blank"
        return
    command = str(node.value).strip()
    if not command:
        yield node, path, "is empty"
    elif "\n" in command:
        yield node, path, "has several lines; write one command per line, or fold it with >-"
    elif re.match(r"(exec|exit)\b", command):
        word = command.split()[0]
        yield node, path, f"{word} ends the shell that all commands share, so finally does not run"


_ARTIFACT: dict[str, Check] = {
    "files": _List(_Text()),
    "name": _Text(),
    "discard-paths": _Text(_YES_NO),
    "base-directory": _Text(),
    "exclude-paths": _anything,
    "enable-symlinks": _Text(_YES_NO),
    "s3-prefix": _Text(),
}
_ARTIFACTS: dict[str, Check] = {**_ARTIFACT, "secondary-artifacts": _Named(_Mapping(_ARTIFACT, ("files",)))}


def _phase(name: str) -> _Mapping:
    keys: dict[str, Check] = {
        "run-as": _Text(),
        "on-failure": _Text(form=_ON_FAILURE),
        "commands": _List(_command),
        "finally": _List(_command),
    }
    if name == "install":
        keys["runtime-versions"] = _Named(_Text())
    return _Mapping(keys, ("commands",))


_REPORT = _Mapping(
    {
        "files": _List(_Text()),
        "base-directory": _Text(),
        "discard-paths": _Text(_YES_NO),
        "file-format": _Text(_REPORTS),
    },
    ("files",),
)
_VARIABLES = _Named(_Text(), _VARIABLE)
_ROOT = _Mapping(
    {
        "version": _Text((VERSION,)),
        "run-as": _Text(),
        "env": _Mapping(
            {
                "shell": _Text(_SHELLS),
                "variables": _VARIABLES,
                "parameter-store": _VARIABLES,
                "secrets-manager": _VARIABLES,
                "exported-variables": _List(_Text(form=_VARIABLE)),
                "git-credential-helper": _Text(_YES_NO),
            }
        ),
        "proxy": _Mapping({"upload-artifacts": _Text(_YES_NO), "logs": _Text(_YES_NO)}),
        "batch": _Mapping(
            {
                "fast-fail": _Text(_YES_NO),
                "build-list": _anything,
                "build-matrix": _anything,
                "build-graph": _anything,
                "build-fanout": _anything,
            }
        ),
        "phases": _Mapping({name: _phase(name) for name in _PHASES}),
        "reports": _Named(_REPORT),
        "artifacts": _Mapping(_ARTIFACTS),
        "cache": _Mapping(
            {
                "key": _Text(),
                "fallback-keys": _List(_Text()),
                "action": _Text(("restore", "save")),
                "paths": _List(_Text()),
            }
        ),
    },
    ("version", "phases"),
)


def _exported(root: yaml.MappingNode) -> Found:
    """An exported variable that nothing sets is lost without an error."""
    env, phases = _child(root, "env"), _child(root, "phases")
    declared = {
        str(key.value)
        for section in ("variables", "parameter-store", "secrets-manager")
        for key, _ in _pairs(_child(env, section))
    }
    commands = "\n".join(_texts(phases))
    names = _child(env, "exported-variables")
    for number, node in enumerate(names.value if isinstance(names, yaml.SequenceNode) else (), 1):
        set_here = re.search(rf"(?<![\w$]){re.escape(str(node.value))}=", commands)
        if str(node.value) not in declared and not set_here:
            path = ("env", "exported-variables", str(number))
            yield node, path, f"{node.value} is exported, but neither declared nor set by a command"


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    return next((value for key, value in _pairs(node) if key.value == name), None)


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    return node.value if isinstance(node, yaml.MappingNode) else []


def _texts(node: yaml.Node | None) -> Iterator[str]:
    if isinstance(node, yaml.ScalarNode):
        yield str(node.value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _texts(value)
    for _, value in _pairs(node):
        yield from _texts(value)
