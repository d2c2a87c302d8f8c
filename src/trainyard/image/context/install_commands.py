"""Find in the commands of a RUN the packages, requirement files and indexes that they install from.

It runs nothing. What depends on a condition, on a variable without a value or on another program is unknown.
"""

import itertools
import json
import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

_SPLITS = re.compile(r"[;&|()\n]+")
_REDIRECTS = re.compile(r"[<>&]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PIP = re.compile(r"pip[23]?(\.\d+)?")
_OWN_SCRIPT = "install_environment.sh"
"""This repository's own script: `install_environment.sh training` installs requirements-training.txt."""
_BEGINS, _ENDS = frozenset(("if", "for", "while", "until", "case")), frozenset(("fi", "done", "esac"))
_KEYWORDS = _BEGINS | _ENDS | {"then", "else", "elif", "do", "{", "}", "!"}
_PREFIXES = frozenset(("sudo", "exec", "time", "env", "nice", "command"))
_HARMLESS = frozenset(("rm", "cat", "ls", "chmod", "chown", "test", "[", "echo", "head", "mkdir"))
"""Programs that do not change the content of a file which they name, except to remove it."""
_TESTS = frozenset(("[", "[[", "test"))
_FILES = frozenset(("-r", "--requirement", "--requirements"))
_CONSTRAINTS = frozenset(("-c", "--constraint", "--constraints"))
_ENVIRONMENTS = frozenset(("-t", "--target", "--prefix", "--root", "-p", "--python", "-n", "--name"))
_PROJECT = re.compile(r"(?:file://)?(\.{1,2}(?:/[^\[\]]*)?|/[^\[\]]+)(?:\[([^\]]*)\])?")
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2")
_MAIN_INDEX = frozenset(("-i", "--index-url", "--default-index", "--pypi-url"))
_OTHER_INDEX = frozenset(("--extra-index-url", "--index", "-f", "--find-links", "--torch-backend"))
_TAKE_A_VALUE = frozenset(
    (
        *("--platform", "--python-version", "--python-platform", "--implementation", "--abi"),
        *("--only-binary", "--no-binary", "--cache-dir", "--timeout", "--retries", "--trusted-host"),
        *("--global-option", "--build-option", "--config-settings", "--config-setting", "-C"),
        *("--progress-bar", "--log", "--src", "-P", "--upgrade-package", "--no-build-isolation-package"),
        *("--no-build-package", "--proxy", "--cert", "--no-binary-package", "--index-strategy"),
        *("--prerelease", "--resolution", "--exclude-newer", "--override", "--overrides"),
        *("--build-constraint", "--build-constraints", "-b", "--extra", "--group", "--upgrade-strategy"),
        *("--report", "--link-mode", "--keyring-provider", "--allow-insecure-host", "--channel"),
    )
)
_WITH_VALUE = _FILES | _CONSTRAINTS | _MAIN_INDEX | _OTHER_INDEX | _ENVIRONMENTS | {"-e", "--editable"}
_UPGRADES = frozenset(("-U", "--upgrade", "--force-reinstall", "-I", "--ignore-installed", "--reinstall"))


@dataclass(frozen=True)
class Install:
    """One command that installs or removes packages."""

    removes: bool = False
    certain: bool = True
    """False in a condition or a loop, and where a failure is ignored."""
    wheels: bool = True
    """Whether it takes wheels from a package index, as pip and uv do; conda does not."""
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
    opaque: bool = False
    """Whether it also installs packages that cannot be read here: of a URL, or of another program."""
    constraints: tuple[str, ...] = ()
    """Files of constraints, as written."""
    projects: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Folders of projects that it installs, each with the extras."""
    locks: tuple[str, ...] = ()
    """Files that another installer reads: uv.lock, poetry.lock, an environment of conda."""
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
        return (Install(opaque=True),)
    found, folder = [], ""
    for command in commands:
        words = _program(command.words)
        if words[:1] == ["cd"] and len(words) > 1:
            folder = posixpath.join(folder, words[1])
        elif (install := _install(words)) is not None:
            certain = install.certain and command.certain
            found.append(Install(**{**vars(install), "certain": certain, "folder": folder}))
    return tuple(found)


def other_words_of(text: str) -> tuple[str, ...]:
    """Return the words of the commands of a RUN that may change a file which they name."""
    try:
        commands = _commands(text)
    except ValueError:
        return tuple(text.split())
    found = list[str]()
    for command in commands:
        program = _program(command.words)
        if program[:1] and posixpath.basename(program[0]) not in _HARMLESS and _install(program) is None:
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
            if word.startswith("||"):
                now.certain = False
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
    for last, now in zip([_Command(), *found], found, strict=False):
        after_test = now.before == "&&" and last.words[:1] and last.words[0] in _TESTS
        now.certain = now.certain and now.depth <= 0 and not now.before.startswith("||") and not after_test
    for now, following in itertools.pairwise(found):
        if following.before.startswith("||") and following.words[:1] in (["exit"], ["false"]):
            now.certain = now.depth <= 0
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
    if name.startswith("python") and (rest[:2] == ["-m", "pip"] or rest[:1] == ["-mpip"]):
        name, rest = "pip", rest[1 if rest[0] == "-mpip" else 2 :]
    if name == "uv" and rest[:1] == ["pip"]:
        name, rest = "pip", rest[1:]
    if _PIP.fullmatch(name) or (name == "uv" and rest[:1] == ["add"]):
        action = next((word for word in rest if word in ("install", "sync", "uninstall", "add")), "")
        return _read_pip(action, rest[rest.index(action) + 1 :], place) if action else None
    if name in ("conda", "mamba", "micromamba"):
        return _read_conda(rest)
    if name == "uv" and rest[:1] == ["sync"]:
        return _read_project_lock("uv.lock", rest[1:])
    if name == "poetry" and rest[:1] in (["install"], ["sync"]):
        return _read_project_lock("poetry.lock", rest[1:])
    scripts = [word for word in words if word.endswith((".sh", "setup.py"))]
    if scripts and posixpath.basename(scripts[0]) == _OWN_SCRIPT:
        kinds = words[words.index(scripts[0]) + 1 :]
        return Install(files=tuple(f"requirements-{kind}.txt" for kind in kinds if "$" not in kind))
    others = {"uv": ("run",), "poetry": ("add",), "pdm": ("install", "sync", "add")}
    others |= {"pipenv": ("install", "sync"), "make": ("",)}
    if scripts or (name in others and (name == "make" or (rest[:1] and rest[0] in others[name]))):
        return Install(opaque=True)
    return None


def _read_conda(rest: Sequence[str]) -> Install | None:
    """Return what conda installs: packages whose versions it chooses itself, or an environment file."""
    verbs = ("install", "create", "update", "env")
    if not set(verbs) & set(rest[:2]):
        return None
    words, files, environment = list[str](), list[str](), "conda"
    left = [word for word in rest if word not in verbs]
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            words.append(word)
        elif option in ("-f", "--file", "-n", "--name", "-p", "--prefix", "-c", "--channel"):
            value = value if equals else (left.pop(0) if left else "")
            files += [value] if option in ("-f", "--file") else []
            environment = value if option in ("-n", "--name", "-p", "--prefix") else environment
    return Install(wheels=False, opaque=True, words=tuple(words), locks=tuple(files), environment=environment)


def _read_project_lock(name: str, rest: Sequence[str]) -> Install:
    """Return what `uv sync` or `poetry install` installs: the lock beside the project."""
    folder, extras, left = ".", list[str](), list(rest)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if option in ("--extra", "-E", "--extras", "--directory", "--project", "-C", "--package"):
            value = value if equals else (left.pop(0) if left else "")
            extras += value.split() if option in ("--extra", "-E", "--extras") else []
            folder = value if option in ("--directory", "--project", "-C") else folder
        elif option == "--all-extras":
            extras.append("*")
    return Install(
        locks=(posixpath.join(folder, name),), projects=((folder, tuple(extras)),), environment=name
    )


def _read_pip(action: str, rest: Sequence[str], place: str = "") -> Install:
    words, files, main, others = list[str](), list[str](), "", list[str]()
    constraints, projects, environment = list[str](), list[tuple[str, tuple[str, ...]]](), place
    upgrades = opaque = False
    left = list(rest)
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if word.startswith("-r") and not word.startswith("--") and len(word) > 2:
            files.append(word[2:])
        elif word.startswith("-") and option in _WITH_VALUE:
            value = value if equals else (left.pop(0) if left else "")
            if option in _FILES:
                files.append(value)
            elif option in _CONSTRAINTS:
                constraints.append(value)
            elif option in _MAIN_INDEX:
                main = value
            elif option in _OTHER_INDEX:
                others.append(value)
            elif option in _ENVIRONMENTS:
                environment = value
            elif project := _PROJECT.fullmatch(value):
                projects.append(_project(project))
            else:
                opaque = True
        elif word.startswith("-"):
            upgrades = upgrades or option in _UPGRADES
            if option in _TAKE_A_VALUE and not equals and left:
                left.pop(0)
        elif action == "sync":
            files.append(word)
        elif (project := _PROJECT.fullmatch(word)) and not word.endswith(_ARCHIVES):
            projects.append(_project(project))
        else:
            words.append(word)
    return Install(
        removes=action == "uninstall",
        words=tuple(words),
        files=tuple(files),
        main_index=main,
        other_indexes=tuple(others),
        upgrades=upgrades,
        opaque=opaque,
        constraints=tuple(constraints),
        projects=tuple(projects),
        with_dependencies="--no-deps" not in rest,
        environment=environment,
    )


def _project(match: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    return match[1], tuple(extra.strip() for extra in (match[2] or "").split(",") if extra.strip())
