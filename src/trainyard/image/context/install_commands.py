"""Find in the commands of a RUN the packages, requirement files and indexes that they install from.

It runs nothing. What depends on a condition, on a variable without a value or on another program (`uv sync`,
conda, a script) is unknown.
"""

import json
import posixpath
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trainyard.image.version_facts import fact, rows_with

_SPLITS = re.compile(r"[;&|()\n]+")
_REDIRECTS = re.compile(r"[<>&]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PIP = re.compile(r"pip[23]?(\.\d+)?")
_OWN_SCRIPT = "install_environment.sh"
"""This repository's own script: `install_environment.sh training` installs requirements-training.txt."""
_EFA_INSTALLERS = ("efa_installer.sh", "install_efa.sh")
"""AWS's script and the one of this repository that calls it, which install no Python packages."""
_BEGINS, _ENDS = frozenset(("if", "for", "while", "until", "case")), frozenset(("fi", "done", "esac"))
_KEYWORDS = _BEGINS | _ENDS | {"then", "else", "elif", "do", "{", "}", "!"}
_PREFIXES = frozenset(("sudo", "exec", "time", "env", "nice", "command"))
_TESTS = frozenset(("[", "[[", "test"))
_PROJECT = re.compile(r"(?:file://)?(\.{1,2}(?:/[^\[\]]*)?|/[^\[\]]+)(?:\[([^\]]*)\])?")
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")


@dataclass(frozen=True)
class Install:
    """One command that installs or removes packages."""

    removes: bool = False
    certain: bool = True
    """False in a condition or a loop, and where a failure is ignored."""
    words: tuple[str, ...] = ()
    """Requirements as written, such as `torch==2.6.0`."""
    files: tuple[str, ...] = ()
    """Files of requirements, as written."""
    folder: str = ""
    """The folder that `cd` set before it; empty if there is none."""
    main_index: str = ""
    """The index that replaces PyPI."""
    other_indexes: tuple[str, ...] = ()
    upgrades: bool = False
    is_uv: bool = False
    is_isolated: bool = False
    """Whether builds from source see no installed package: the default, but of pip only for new setups."""
    opaque: str = ""
    """What installs packages that cannot be read here: a URL, a script, another program; empty for none."""
    constraints: tuple[str, ...] = ()
    """Files of constraints, as written."""
    projects: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Folders of projects that it installs, each with the extras."""
    with_dependencies: bool = True
    environment: str = ""
    """The environment that it installs into, as far as the command names one."""


@dataclass
class _Command:
    words: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    """The files that its output is written to."""
    before: str = ""
    depth: int = 0
    certain: bool = True


def installs_of(text: str) -> tuple[Install, ...]:
    """Return the installing commands of a RUN, whose variables are filled in."""
    try:
        commands = _commands(text)
    except ValueError:  # an open quote: the shell would refuse it, or it is not a shell
        return (Install(opaque="a command with an open quote"),)
    found, folder = [], ""
    for command in commands:
        words = _program(command.words)
        if words[:1] == ["cd"] and len(words) > 1:
            folder = posixpath.join(folder, words[1])
        elif (install := _install(words)) is not None:
            certain = install.certain and command.certain
            found.append(replace(install, certain=certain, folder=folder))
    return tuple(found)


def other_words_of(text: str) -> tuple[str, ...]:
    """Return the words of the commands of a RUN that may change a file which they name."""
    try:
        commands = _commands(text)
    except ValueError:
        return tuple(text.split())
    found, harmless = list[str](), fact("commands", "harmless")
    for command in commands:
        program = _program(command.words)
        if program[:1] and posixpath.basename(program[0]) not in harmless and _install(program) is None:
            found += command.words
        found += command.written
    return tuple(found)


def _commands(text: str) -> list[_Command]:
    words = text.replace("\\\n", " ").lstrip()  # a here-document may continue its lines
    while words.startswith("--"):
        words = words.partition(" ")[2].lstrip()
    if words.startswith("["):
        try:
            listed = json.loads(words)
        except ValueError:
            listed = []
        if listed and all(isinstance(one, str) for one in listed):
            is_shell = len(listed) > 2 and listed[1] in ("-c", "-lc", "-ec")
            return _commands(listed[2]) if is_shell else [_Command(list(listed))]
    lexer = shlex.shlex(words, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found, depth, redirect = [_Command()], 0, ""
    for word in lexer:
        now = found[-1]
        if _SPLITS.fullmatch(word):
            found.append(_Command(before=word.strip("\n") or ";", depth=depth))
        elif _REDIRECTS.fullmatch(word):
            redirect = word
        elif redirect:
            now.written += [word] if ">" in redirect else []
            redirect = ""
        elif not now.words and word in _KEYWORDS:
            depth += (word in _BEGINS) - (word in _ENDS)
            now.depth = depth
        else:
            now.words.append(word)
    for last, now, following in zip([_Command(), *found], found, [*found[1:], _Command()], strict=False):
        is_tested = now.before == "&&" and last.words[:1] and last.words[0] in _TESTS
        is_ignored = following.before.startswith("||") and following.words[:1] not in (["exit"], ["false"])
        is_other = now.before.startswith("||")  # it runs only if the command before it failed
        now.certain = now.depth <= 0 and not (is_tested or is_ignored or is_other)
    return [one for one in found if one.words or one.written]


def _program(words: Sequence[str]) -> list[str]:
    """Return the words from the program's name on."""
    left = list(words)
    while left and (_ASSIGNMENT.match(left[0]) or left[0] in _PREFIXES):
        left.pop(0)
    return left


def _install(words: Sequence[str]) -> Install | None:
    if not words:
        return None
    name, rest = posixpath.basename(words[0]), list(words[1:])
    place = posixpath.dirname(words[0])
    if name.startswith("python") and rest[:1] == ["-mpip"]:
        name, rest = "pip", rest[1:]
    if name.startswith("python") and rest[:2] in (["-m", "pip"], ["-m", "uv"]):
        name, rest = rest[1], rest[2:]
    if _PIP.fullmatch(name) or (name == "uv" and rest[:1] == ["pip"]):
        action = next((word for word in rest if word in ("install", "sync", "uninstall")), "")
        read = _read_pip(action, rest[rest.index(action) + 1 :], place) if action else None
        return read and replace(
            read,
            is_uv=name == "uv",
            is_isolated=not any(word.startswith("--no-build-isolation") for word in rest),
        )
    if name == "uv" and rest[:1] in (["sync"], ["run"], ["add"]):
        return Install(opaque=f"uv {rest[0]}")
    scripts = [
        word for word in words if word.endswith((".sh", "setup.py")) and not word.endswith(_EFA_INSTALLERS)
    ]
    if scripts and posixpath.basename(scripts[0]) == _OWN_SCRIPT:
        kinds = words[words.index(scripts[0]) + 1 :]
        return Install(files=tuple(f"requirements-{kind}.txt" for kind in kinds if "$" not in kind))
    row = next(rows_with("commands", "installers"))
    is_other = name in row["installers"] and (name == "make" or not {*row["actions"]}.isdisjoint(rest[:2]))
    return Install(opaque=posixpath.basename((scripts or [name])[0])) if scripts or is_other else None


def _read_pip(action: str, rest: Sequence[str], place: str) -> Install:
    values, flags, words = _split_options(rest)
    files, packages = (words, []) if action == "sync" else ([], words)
    folders = [_PROJECT.fullmatch(value) for value in values["projects"]]
    named = {word: _PROJECT.fullmatch(word) for word in packages if not word.endswith(_ARCHIVES)}
    return Install(
        removes=action == "uninstall",
        words=tuple(word for word in packages if not named.get(word)),
        files=(*values["files"], *files),
        main_index=values["main"][-1] if values["main"] else "",
        other_indexes=tuple(values["others"]),
        upgrades=not flags.isdisjoint(fact("commands", "upgrades")),
        opaque="" if all(folders) else "an editable install of a URL",
        constraints=tuple(values["constraints"]),
        projects=tuple(
            (match[1], tuple(extra.strip() for extra in (match[2] or "").split(",") if extra.strip()))
            for match in (*folders, *named.values())
            if match
        ),
        with_dependencies="--no-deps" not in flags,
        environment=values["environment"][-1] if values["environment"] else place,
    )


def _split_options(words: Sequence[str]) -> tuple[dict[str, list[str]], set[str], list[str]]:
    """Return the values of the options by what they are, the options without a value, and the other words."""
    values, flags, others = defaultdict[str, list[str]](list), set[str](), list[str]()
    kinds = {option: row["value"] for row in rows_with("commands", "options") for option in row["options"]}
    left = list(words)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if option in kinds:
            values[kinds[option]].append(value if equals else left.pop(0) if left else "")
        elif word.startswith("-r"):  # pip's `-rFILE`
            values["files"].append(word[2:])
        elif word.startswith("-"):
            flags.add(option)
        else:
            others.append(word)
    return values, flags, others
