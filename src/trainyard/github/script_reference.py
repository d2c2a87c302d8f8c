"""Write the reference of all scripts, `docs/scripts.md`, from their docstrings and help texts.

Pure: the texts are passed in and no script is run. Each docstring has the sections Reads, Writes, Exit codes
and Example; the help is argparse's, with unwrapped lines.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainyard.errors import ExitCode

PIPELINE = (
    "check_environment",
    "check_readiness",
    "prepare_data",
    "train",
    "training_artifact_sync",
    "prove_run",
    "training_dashboard",
    "notify_slack",
)
"""The steps of a run, in order."""
_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.NO: "it ran and the answer is no: the training, a check or a verification failed",
    ExitCode.USAGE: "the configuration, the data or the command line is wrong; nothing was started",
    ExitCode.BUG: "a bug; the traceback is shown",
    ExitCode.REFUSED: "an outside service refused, and retries did not help",
    ExitCode.TIMED_OUT: "something did not happen in time",
    ExitCode.NOT_PROVEN: "of a pod: trained and stored, but not proven; it is not restarted",
    ExitCode.STOPPED: "stopped early with a good checkpoint: run the same command again to continue",
    ExitCode.INTERRUPTED: "interrupted",
}
_INTRODUCTION = """\
# Commands

<!-- Written by tools/write_script_reference.py from the commands themselves; edits here are lost. -->

Each command is one step. `make install` creates the environment that runs it: `.venv/bin/trainyard train …`,
or for those with a script `.venv/bin/python scripts/train.py …`. Messages go to stderr. Stdout is for data,
which is JSON with `--json`.
`--dry-run` changes nothing. Every command also takes `--help` and `--log-level debug|info|warning|error`.

| exit code | meaning |
|---|---|
"""
_SECTION = re.compile(r"^(Reads|Writes|Exit codes|Example): *", re.M)
_LINE_CHARACTERS = 110
_SHARED = ("-h,", "--log-level")
_WORD = re.compile(r"(?:<[^<>]*>|\S)+")
"""A placeholder such as `<run id>` may hold a space."""
_CODE = re.compile(r"--\w|[/_*<|=$]|[A-Za-z]\.[a-z]")
"""Matches flags, paths, variables and keys."""


@dataclass(frozen=True)
class Script:
    """The docstring and the help of a command."""

    name: str
    """Without `.py`."""
    docstring: str
    help: str
    words: str = ""
    """The words after `trainyard`; empty where only a script calls it."""
    has_file: bool = True
    """Whether `scripts/NAME.py` calls it."""

    @property
    def title(self) -> str:
        return f"{self.name}.py" if self.has_file else f"trainyard {self.words}"


@dataclass(frozen=True)
class Argument:
    """One line of the help."""

    name: str
    """The name with its value: `--run-dir DIR`."""
    meaning: str
    needed: str
    """`yes`, `one of these`, or empty."""


def render_script_reference(scripts: Sequence[Script]) -> str:
    """The whole document: the pipeline in its order, then the other scripts by name."""
    by_name = {script.name: script for script in scripts}
    codes = "\n".join(f"| {int(code)} | {_MEANINGS[code]} |" for code in ExitCode)
    others = sorted(by_name.keys() - set(PIPELINE), key=lambda name: by_name[name].title)
    return "\n".join(
        [
            _INTRODUCTION + codes,
            "\n## The pipeline",
            "\nThese are the steps of `make train` and of `training_ci.yml`, in their order.",
            *(_section(by_name[name]) for name in PIPELINE),
            "\n## Other commands",
            *(_section(by_name[name]) for name in others),
            "",
        ]
    )


def _section(script: Script) -> str:
    purpose, *sections = _SECTION.split(script.docstring)
    said = dict(zip(sections[::2], sections[1::2], strict=True))
    facts = [_wrapped(f"- {name}: {said[name]}") for name in ("Reads", "Writes", "Exit codes")]
    paragraphs = [_wrapped(paragraph) for paragraph in purpose.strip().split("\n\n")]
    example = " \\\n  ".join(line.strip() for line in said["Example"].strip().splitlines())
    return "\n\n".join(
        [
            f"\n### {script.title}",
            *([f"The same as `trainyard {script.words}`."] if script.words and script.has_file else []),
            *paragraphs,
            _table(script.help),
            "\n".join(facts),
            f"```\n{example}\n```",
        ]
    )


def _table(text: str) -> str:
    rows = [
        f"| `{_cell(found.name)}` | {found.needed} | {_cell(_marked(found.meaning))} |"
        for found in list_arguments(text)
    ]
    return "\n".join(["| argument | needed | meaning |", "|---|---|---|", *rows])


def list_arguments(text: str) -> list[Argument]:
    """The arguments in a help text, without those that all scripts share."""
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
    """Name and meaning of each argument; argparse puts the meaning of a long name on the next line."""
    _, *blocks = re.split(r"^(?:positional arguments|options):\n", text, flags=re.M)
    for entry in re.split(r"^  (?=\S)", "".join(blocks), flags=re.M):
        if entry.strip():
            name, _, meaning = entry.strip().replace("\n", "  ").partition("  ")
            yield name, " ".join(meaning.split())


def _without_optional(usage: str) -> str:
    """The usage without the text in brackets, which may be nested."""
    shorter = re.sub(r"\[[^][]*\]", "", usage)
    return usage if shorter == usage else _without_optional(shorter)


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(
        _marked(text),
        _LINE_CHARACTERS,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _marked(text: str) -> str:
    """The text on one line, with backticks around words that look like code."""
    return " ".join(_as_code(word) for word in _WORD.findall(text))


def _as_code(word: str) -> str:
    match = re.fullmatch(r"([(\"']*)(.*?)([)\"',.:;]*)", word)
    if match is None or "`" in word or not _CODE.search(match[2]):
        return word
    return f"{match[1]}`{match[2]}`{match[3]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
