#!/usr/bin/env python3
"""Write the reference of all commands, docs/scripts.md, from their docstrings and their --help.

A docstring has the sections Reads, Writes, Exit codes and Example; the help is argparse's.

Reads:  src/trainyard/commands: docstrings and the help of each command.
Writes: docs/scripts.md, below --root.
Exit codes: 0 written, or current already; 1 with --check: it is not current, or a script gives no help;
        2 wrong usage.

Example: tools/write_script_reference.py --check
"""

import inspect
import io
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from trainyard.command import generator, handler
from trainyard.commands import COMMANDS, GROUPS, INTERNAL, module_name
from trainyard.errors import CheckFailedError, ExitCode

REFERENCE = Path("docs/scripts.md")
_ROOT = Path(__file__).resolve().parent.parent
_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.NO: "the training, a check or a verification failed",
    ExitCode.USAGE: "the configuration, the data or the command line is wrong; nothing was started",
    ExitCode.BUG: "a bug; the traceback is shown",
    ExitCode.REFUSED: "an outside service refused, and retries did not help",
    ExitCode.TIMED_OUT: "something did not happen in time",
    ExitCode.NOT_PROVEN: "a pod trained and is not proven, or TCP joins machines that have EFA; not repeated",
    ExitCode.STOPPED: "stopped early with a good checkpoint: repeat the command to continue",
    ExitCode.INTERRUPTED: "interrupted",
}
_INTRODUCTION = """\
# Commands

<!-- Written by tools/write_script_reference.py from the commands themselves; edits here are lost. -->

After `make install`, run `.venv/bin/trainyard NAME …`. `--help` has the meaning and the default of each
option, and what the command reads and writes. Messages go to stderr, data to stdout; with `--json` a failure
is `{"error": …, "exit_code": …}`.
An argument with \\* is required; of those with †, one is required; one with + may be repeated.

| exit code | meaning |
|---|---|
"""
_COMMON = """
Of several commands:

- `--help`, `--log-level debug|info|warning|error`
- `--json`, of every command with a result: print it as JSON
- `--dry-run`, of every command that trains, stores, sends or sets up: print the plan, change nothing
- `--set=KEY=VALUE`+: change one value of the configuration
- *cluster options*, of every command that talks to a cluster:
"""
_CLUSTER = ("--kubeconfig", "--context", "--cluster", "--region", "--call-seconds")
"""The cluster options, which come together."""
_INTERNAL_TITLE = """
## Internal commands

Workflows, pods and the project itself call these; `--help` says what each does:

"""
_FILES_TITLE = """
## Files in scripts/

The names that documents and workflows use, each with the flags and exit codes of its command; and
`install_environment.sh`, which `make install` calls.

| file | command |
|---|---|
"""
_EVERYWHERE = ("--json", "--dry-run")
_COMMON_FROM = 3
"""An option is common if so many commands have it with the same meaning."""
_SECTION = re.compile(r"^(Reads|Writes|Exit codes|Example): *", re.M)
_REPEATED = re.compile(r"(^|; )may be repeated(; |$)")
_SHARED = ("-h,", "--log-level")


@dataclass(frozen=True)
class Script:
    """The docstring and the help of a command."""

    name: str
    """Without `.py`."""
    docstring: str
    help: str
    words: str
    """The words after `trainyard`."""

    @property
    def title(self) -> str:
        return f"trainyard {self.words}"

    @property
    def is_internal(self) -> bool:
        return self.words in INTERNAL

    @property
    def summary(self) -> str:
        return " ".join(_SECTION.split(self.docstring)[0].strip().split("\n\n")[0].split())

    @property
    def sections(self) -> list[str]:
        """The headings and the texts of the docstring's sections, in turn."""
        return _SECTION.split(self.docstring)[1:]


@dataclass(frozen=True)
class Argument:
    """One line of the help."""

    name: str
    """The name with its value: `--run-dir DIR`."""
    meaning: str
    needed: str
    """`yes`, `one of these`, or empty."""

    @property
    def flag(self) -> str:
        return self.name.split()[0]


def main(argv: Sequence[str] | None = None) -> int:
    return generator.run_generator(__doc__, __file__, generated, argv)


def generated() -> dict[Path, str]:
    """Return the content of the reference, by its path relative to the root."""
    return {REFERENCE: render_script_reference([describe(words) for words in COMMANDS])}


def describe(words: str) -> Script:
    """Return the docstring and the help of the command `trainyard WORDS`."""
    module = import_module(f"trainyard.commands.{module_name(words)}")
    os.environ.update(COLUMNS="1000", PYTHON_COLORS="0")  # no line breaks inside a text
    with redirect_stdout(io.StringIO()) as text, suppress(SystemExit):
        module.main(["--help"])
    if module.__doc__ is None or not text.getvalue():
        raise CheckFailedError(f"trainyard {words}: gives no help.")
    return Script(module_name(words), inspect.cleandoc(module.__doc__), text.getvalue(), words=words)


def list_files() -> Iterator[str]:
    """Yield a row of a table for each script: its file, and the command whose module it imports."""
    for path in sorted((_ROOT / "scripts").glob("*.py")):
        module = re.search(r"trainyard\.commands\.(\w+)", path.read_text(encoding="utf-8"))
        words = next(words for words in COMMANDS if module and module_name(words) == module[1])
        yield f"| `{path.name}` | `trainyard {words}` |"


def render_script_reference(
    scripts: Sequence[Script], groups: Mapping[str, Mapping[str, str]] = GROUPS
) -> str:
    """Return the complete document: the listed commands by group, the internal ones, and the scripts."""
    by_words = {script.words: script for script in scripts}
    codes = "\n".join(f"| {int(code)} | {_MEANINGS[code]} |" for code in ExitCode)
    common = _common_options(scripts)
    internal = ", ".join(f"`{script.title}`" for script in scripts if script.is_internal)
    sections = []
    for title, names in groups.items():
        sections += [f"\n## {title}", *(_section(by_words[words], set(common)) for words in names)]
    return "\n".join(
        [
            _INTRODUCTION + codes,
            _COMMON.rstrip("\n"),
            *(textwrap.indent(_bullet(option), "    ") for option in common),
            *sections,
            _INTERNAL_TITLE + generator.wrap_markdown(f"{internal}."),
            _FILES_TITLE + "\n".join(list_files()),
            "",
        ]
    )


def _common_options(scripts: Sequence[Script]) -> list[Argument]:
    """Return the cluster options, each with its most frequent name and meaning."""
    found = Counter(
        (option.name, option.meaning) for script in scripts for option in list_arguments(script.help)
    )
    options: dict[str, Argument] = {}
    for (name, meaning), count in found.most_common():
        flag = Argument(name, meaning, "").flag
        if count >= _COMMON_FROM and flag in _CLUSTER:
            options.setdefault(flag, Argument(name, meaning, ""))
    return [options[flag] for flag in sorted(options)]


def _section(script: Script, common: Set[Argument]) -> str:
    example = dict(zip(script.sections[::2], script.sections[1::2], strict=True))["Example"]
    lines = re.sub(r"\s*\n\s*(?!trainyard )(?=\S)", r" \\\n  ", example.strip())
    lines = re.sub(r"\n +(?=trainyard )", "\n", lines)
    return "\n\n".join(
        [
            f"\n### {script.title}",
            generator.wrap_markdown(generator.mark_code(script.summary)),
            *_list_options(script, common),
            f"```\n{lines}\n```",
        ]
    )


def _list_options(script: Script, common: Set[Argument]) -> Iterator[str]:
    """Yield the list of the words that the command needs, and the names of its options."""
    needed, names = [], {}
    for argument in list_arguments(script.help):
        if argument.name in _EVERYWHERE:
            continue
        is_common = Argument(argument.name, argument.meaning, "") in common
        if argument.needed and not argument.name.startswith("--"):
            needed.append(_bullet(argument))
        else:
            names[argument.flag] = _name(argument, short=is_common)
    if names.keys() >= set(_CLUSTER):
        names = {flag: name for flag, name in names.items() if flag not in _CLUSTER}
        names["cluster"] = "*cluster options*"
    if names:
        needed.append(generator.wrap_markdown(f"- {', '.join(names.values())}"))
    if needed:
        yield "\n".join(needed)


_MARKS = {"yes": "\\*", "one of these": "†", "": ""}


def _bullet(argument: Argument) -> str:
    text = _REPEATED.sub(lambda found: found[1] and found[2], argument.meaning)
    meaning = f": {generator.mark_code(text)}" if text else ""
    return generator.wrap_markdown(f"- {_name(argument)}{meaning}")


def _name(argument: Argument, *, short: bool = False) -> str:
    """Return the argument's name with its value, and the marks of the introduction."""
    name = argument.flag if short else re.sub(r"^(--[\w-]+) ", r"\1=", argument.name)
    repeated = "+" if _REPEATED.search(argument.meaning) and not short else ""
    return f"`{name}`{_MARKS[argument.needed]}{repeated}"


def list_arguments(text: str) -> list[Argument]:
    """Return the arguments in a help text, without those that all scripts share."""
    usage, _, rest = text.partition("\n\n")
    needed = _without_optional(usage)
    choice = " ".join(re.findall(r"\(([^()]*)\)", needed))
    found = []
    for name, meaning in _entries(rest):
        word = name.split()[0]
        kind = "one of these" if word in choice.split() else "yes" if word in needed.split() else ""
        if not name.startswith(_SHARED):
            found.append(Argument(name, meaning, kind))
    return found


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and meaning of each argument; argparse puts the meaning of a long name on the next line."""
    _, *blocks = re.split(r"^(?:positional arguments|options):\n", text, flags=re.M)
    listed = re.sub(r"^\S.*\n?", "", "".join(blocks), flags=re.M)  # headings of further groups
    for entry in re.split(r"^  (?=\S)", listed, flags=re.M):
        if entry.strip():
            name, _, meaning = entry.strip().replace("\n", "  ").partition("  ")
            yield name, " ".join(meaning.split())


def _without_optional(usage: str) -> str:
    """Return the usage without the text in brackets, which may be nested."""
    shorter = re.sub(r"\[[^][]*\]", "", usage)
    return usage if shorter == usage else _without_optional(shorter)


if __name__ == "__main__":
    sys.exit(handler.exit_code_of(main))
