"""Each command in a block of a document exists and parses, or its page says that it is not run.

A line of Trainyard goes to the parser of its command; a line with `…` is compared by its flags only
(`test_docs.py`). A target of make is in the Makefile. For other programs a page says "Not run by our tests",
unless a test runs the page.
"""

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case

from trainyard.commands import COMMANDS, module_name

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.M | re.S)
START = re.compile(
    r"(?:^|(?<=[ /(]))(?:scripts/(?P<script>\w+)\.py|trainyard (?P<words>[a-z][\w -]*))(?P<rest>.*)"
)
AFTER = re.compile(r" (?:&|&&|\|)(?: |$)| {3,}\S.*$")
"""The end of a command: another one, the background, or a remark after several spaces."""
FOREIGN = re.compile(
    r"^ *(?:[A-Z_]+=\S+ )*(?:sudo |exec )?(git|gh|aws|kubectl|helm|docker|eksctl|curl|wsl|openssl"
    r"|model_signing|oras|nvidia-smi|apt-get|useradd|reboot|python|tar|mkdir|uv|\./\w+\.sh)(?![/\w])"
)
MARK = "Not run by our tests"
RUN_BY = {
    "README.md": "tests/scripts/init_github/test_setup.py",
    "docs/bring_your_own.md": "tests/integration/any_program/test_bring_your_own.py",
}
"""Pages whose commands of other programs a test runs or follows."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def shell_lines(path: Path) -> Iterator[str]:
    """Every line of a block without language, or of `sh` and `bash`; continued lines are one."""
    for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if block["language"] in ("", "sh", "bash"):
            yield from re.sub(r"\\\n *", " ", block["code"]).splitlines()


def commands_of(path: Path) -> Iterator[str]:
    for line in shell_lines(path):
        if START.search(line) and "…" not in line and not line.startswith(("usage", "  ", "When this")):
            yield line.removeprefix("$ ")


def parse(line: str) -> None:
    """Hand a line to the parser of its command. Raises AssertionError if it is refused."""
    found = START.search(line)
    assert found is not None
    rest = AFTER.split(
        f"{found['words'] or ''}{found['rest']}".strip()
        .replace("OWNER_ID", "1")
        .replace("REPOSITORY_ID", "1")
    )[0]
    words = shlex.split(rest, comments=True)
    if found["script"]:
        file = ROOT / "scripts" / f"{found['script']}.py"
        module = re.findall(r"commands\.(\w+) import", file.read_text())[0]
    else:
        count = next((n for n in (2, 1) if " ".join(words[:n]) in COMMANDS), 0)
        assert count, f"{line}: there is no such command"
        module = module_name(" ".join(words[:count]))
        words = words[count:]
    refused = io.StringIO()
    try:
        with contextlib.redirect_stderr(refused):
            importlib.import_module(f"trainyard.commands.{module}").parse_args(words)
    except SystemExit:
        raise AssertionError(f"{line}: {refused.getvalue()}") from None


SPAN = re.compile(r"`((?:\.venv/bin/)?(?:python )?(?:trainyard |scripts/\w+\.py )[^`\n…]+)`")
SHORTENED = re.compile(
    r"arguments are required|one of the arguments|expected one argument|name the program after"
)
"""Refusals that are right in a sentence: its command may leave out other arguments."""


def spans_of(path: Path) -> list[str]:
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    return [span for span in SPAN.findall(text) if "$" not in span and not BARE.fullmatch(span)]


BARE = re.compile(rf"(?:\.venv/bin/)?trainyard (?:{'|'.join(sorted(COMMANDS, key=len, reverse=True))})")
"""The name of a command, without an argument."""


@each_case("path", [path for path in PAGES if spans_of(path)], ids=name_of)
def test_every_command_in_a_sentence_parses(path: Path) -> None:
    for span in spans_of(path):
        try:
            parse(re.sub(r"\bN\b", "7", re.sub(r"\b(JOB|NAME|CLAIM)\b", "job-1", span)))
        except AssertionError as refused:
            assert SHORTENED.search(str(refused)), f"{name_of(path)}: {refused}"


@each_case("path", [path for path in PAGES if any(commands_of(path))], ids=name_of)
def test_every_command_of_trainyard_parses(path: Path) -> None:
    for line in commands_of(path):
        parse(line.replace("REPO_ID", "1").replace("CLAIM", "claim"))


@pytest.mark.parametrize(
    "line",
    [
        "trainyard watch --follow",
        "trainyard train --confg x",
        "trainyard tranis",
        "trainyard plan --num-nodes none",
    ],
)
def test_a_wrong_command_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        parse(line)


def test_many_commands_are_found() -> None:
    assert sum(len(list(commands_of(path))) for path in PAGES) > 60


def test_the_options_of_model_signing_exist() -> None:
    from model_signing._cli import main

    (line,) = (line for line in shell_lines(ROOT / "docs/runbooks/signing.md") if "model_signing" in line)
    _, *names = [word for word in shlex.split(line) if not word.startswith("-")][:3]
    command: Any = main
    for name in names:
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"--[\w-]+", line)) <= known


@each_case("path", PAGES, ids=name_of)
def test_a_page_with_commands_of_other_programs_says_that_they_are_not_run(path: Path) -> None:
    found = [line for line in shell_lines(path) if FOREIGN.match(line)]
    text = " ".join(path.read_text(encoding="utf-8").split())
    marked = MARK in text or name_of(path) in RUN_BY
    assert marked or not found, f'{name_of(path)} has no "{MARK}": {found}'


@each_case("path", PAGES, ids=name_of)
def test_every_target_of_make_is_in_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    targets |= set(re.findall(r"^(train|resume|test|quick)\b", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = {m[1] for line in shell_lines(path) if (m := re.match(r" *make ([a-z-]+)", line))}
    assert named <= targets


def test_the_tests_that_run_a_page_are_there() -> None:
    for page, test in RUN_BY.items():
        assert (ROOT / page).is_file() and (ROOT / test).is_file()
