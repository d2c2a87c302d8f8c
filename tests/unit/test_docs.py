"""Everything that the documents name exists: links, anchors, files, flags, keys, variables, permissions.

Only the text is read, and the help of the scripts that it names.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case

from trainyard.commands import COMMANDS, module_name
from trainyard.github import variables

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / name
    for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    if (ROOT / name).is_file()
]
DOCUMENTS = [*PAGES, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "skills").rglob("*.md"))]
SOURCES = [
    *sorted((ROOT / "src" / "trainyard").rglob("*.py")),
    *sorted((ROOT / "scripts").glob("*.py")),
    *sorted((ROOT / ".github").rglob("*.yml")),
]
FOLDERS = ("src", "scripts", "configs", "docs", "tests", "benchmarks", "native", ".github", ".ci")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", flags=re.M | re.S)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
# Of all pages below docs/, decisions and generated references included.
MOST_WORDS = 30_000
WORDS = "|".join(sorted(COMMANDS, key=len, reverse=True))
CALL = re.compile(
    rf"(?<![\w/])(?:scripts/(?P<script>\w+)\.py|(?:\.venv/bin/|-m )?trainyard (?P<words>{WORDS})\b)"
    r"(?P<rest>[^\n`|]*)"
)
KEY_START = (
    r"model|training|compute|data|checkpointing|monitoring|grpo|program|kernel_optimization|artifacts|cluster|"
    r"proof(?!\.json)|evaluation|notifications|limits"
)
SET = re.compile(rf"(?:--set[ =]|SET=\"|overrides=\"|[ \"])((?:{KEY_START})\.[a-z_.]+)=")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


every_document = each_case("path", DOCUMENTS, ids=name_of)


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    """The text without blocks of code, spans of code, and comments."""
    text = re.sub(r"<!--.*?-->", "", CODE_BLOCK.sub("", text_of(path)), flags=re.S)
    return CODE_SPAN.sub("", text)


@cache
def anchors_of(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+?)\s*$", CODE_BLOCK.sub("", text_of(path)), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def problem_with(target: str, start: Path) -> str | None:
    """Why `target` leads nowhere from the folder `start`; None when it leads somewhere."""
    name, _, anchor = target.partition("#")
    path = (start / name).resolve()
    if not path.exists():
        return f"{target}: no such file"
    if anchor and anchor not in anchors_of(path):
        return f"{target}: no such heading"
    return None


@cache
def help_of(script: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        importlib.import_module(f"trainyard.commands.{script}").main(["--help"])
    return said.getvalue()


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """The module of each command that a text names, with the flags that follow it on its line."""
    for found in CALL.finditer(re.sub(r"\\\n\s*", " ", text)):
        rest = found["rest"].partition("scripts/")[0].partition(" #")[0].partition(" -- ")[0]
        rest = re.split(r" \S*(?:python|torchrun|accelerate) ", rest)[0]  # the rest is the program's
        if found["script"]:
            file = ROOT / "scripts" / f"{found['script']}.py"
            name = re.findall(r"commands\.(\w+) import", text_of(file))[0] if file.exists() else "no script"
        else:
            name = module_name(found["words"])
        yield name, re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest)


def code_of(path: Path) -> Iterator[str]:
    """Every span and every block of code in a document."""
    yield from CODE_BLOCK.findall(text_of(path))
    yield from CODE_SPAN.findall(CODE_BLOCK.sub("", text_of(path)))


@cache
def known_keys() -> set[str]:
    """Every key of the configuration, and every section."""
    from trainyard.config.key_lookup import leaf_keys

    keys = set(leaf_keys())
    parts = (key.split(".") for key in keys)
    return keys | {".".join(names[:count]) for names in parts for count in range(1, len(names))}


def is_module(name: str) -> bool:
    """Whether a dotted name is a file, or something in a module of the library:
    `artifacts.verify.verify.Depth`."""
    parts = name.split(".")
    paths = (ROOT / "src" / "trainyard" / Path(*parts[:count]) for count in range(2, len(parts) + 1))
    return parts[-1] in ("py", "yaml") or any(path.with_suffix(".py").is_file() for path in paths)


def test_there_are_documents() -> None:
    assert ROOT / "docs" / "scripts.md" in DOCUMENTS


@every_document
def test_every_link_leads_somewhere(path: Path) -> None:
    text = CODE_BLOCK.sub("", text_of(path))
    targets = [found["target"] for found in LINK.finditer(text)]
    # The page of a workflow on GitHub, seen from README.md there.
    inside = [t for t in targets if not re.match(r"\w+:|\.\./\.\./actions/workflows/\w+\.yml", t)]
    same_page = [f"{path.name}{target}" if target.startswith("#") else target for target in inside]
    assert [problem for target in same_page if (problem := problem_with(target, path.parent))] == []


@pytest.mark.parametrize(
    ("target", "leads_nowhere"),
    [
        ("workflows.md#queues", False),
        ("workflows.md#no-such-heading", True),
        ("no-such-page.md", True),
        ("runbooks/permissions.md#artifacts", False),
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(target: str, leads_nowhere: bool) -> None:
    assert (problem_with(target, ROOT / "docs") is not None) is leads_nowhere


def test_every_page_that_a_message_names_is_there() -> None:
    found = {
        (name_of(path), target)
        for path in SOURCES
        for target in re.findall(r"docs/[\w/.-]+\.md(?:#[\w-]+)?", text_of(path))
    }
    assert any(target == "docs/runbooks/permissions.md#artifacts" for _, target in found)
    assert [f"{name}: {problem}" for name, target in found if (problem := problem_with(target, ROOT))] == []


@every_document
def test_every_file_that_is_named_is_there(path: Path) -> None:
    spans = CODE_SPAN.findall(CODE_BLOCK.sub("", text_of(path)))
    named = [
        span for span in spans if re.fullmatch(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]+", span)
    ]
    built = ("native/build", "scripts/verb_noun.py", "tests/scripts/test_verb_noun.py")
    assert [name for name in named if not name.startswith(built) and not (ROOT / name).exists()] == []


@every_document
def test_every_script_that_is_called_knows_its_flags(path: Path) -> None:
    unknown = []
    for code in code_of(path):
        for script, flags in calls(code):
            if script == "verb_noun":  # the placeholder of the recipe
                continue
            assert (ROOT / "src/trainyard/commands" / f"{script}.py").is_file(), script
            unknown += [f"{script}.py {f}" for f in flags if not re.search(rf"{f}(?![\w-])", help_of(script))]
    assert unknown == []


def test_flags_are_found_behind_their_script() -> None:
    text = "trainyard train --config a \\\n  --resume auto  # --not-this\ntrainyard config show --explain"
    assert list(calls(text)) == [("train", ["--config", "--resume"]), ("config_show", ["--explain"])]


@every_document
def test_every_key_of_the_configuration_exists(path: Path) -> None:
    spans = CODE_SPAN.findall(CODE_BLOCK.sub("", text_of(path)))
    keys = [m[1] for span in spans if (m := re.fullmatch(rf"((?:{KEY_START})\.[a-z_.]+)(?:=\S*)?", span))]
    keys += [key for code in code_of(path) for key in SET.findall(code)]
    assert [key for key in keys if key not in known_keys() and not is_module(key)] == []


def test_the_sections_are_those_of_the_schema() -> None:
    sections = {key.partition(".")[0] for key in known_keys()}
    assert [name for name in sections if not re.fullmatch(rf"{KEY_START}|extends|recipe", name)] == []


@every_document
def test_no_line_ends_in_a_space_and_no_prose_shouts(path: Path) -> None:
    lines = text_of(path).splitlines()
    assert [number for number, line in enumerate(lines, 1) if line != line.rstrip()] == []
    prose = re.sub(r"!\[|^> \[!", "", prose_of(path), flags=re.M)
    assert [line for line in prose.splitlines() if "!" in line] == []


@every_document
def test_lines_of_prose_fit_a_screen(path: Path) -> None:
    lines = CODE_BLOCK.sub("", text_of(path)).splitlines()
    unbroken = ("|", "#", "description: ", "compatibility: ")  # tables, headings, the front matter of skills
    assert [line for line in lines if len(line) > 125 and not line.startswith(unbroken)] == []


def workflows() -> dict[str, dict[str, Any]]:
    paths = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {path.name: yaml.load(text_of(path), Loader=yaml.BaseLoader) for path in paths}


def test_the_pages_on_workflows_name_every_variable_and_secret_and_each_input_without_a_description() -> None:
    page = text_of(ROOT / "docs" / "workflows.md") + text_of(ROOT / "docs" / "variables.md")
    text = "".join(text_of(path) for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    names = set(re.findall(r"\b(?:vars|secrets)\.(\w+)", text)) | set(re.findall(r"\binputs\.(\w+)", text))
    names |= {variables.LABELS, variables.STORE, variables.WATCH, variables.ROLE, *variables.OTHERS}
    described: set[str] = set()
    for content in workflows().values():
        for trigger in ("workflow_dispatch", "workflow_call"):
            inputs = ((content.get("on", {}) or {}).get(trigger) or {}).get("inputs", {})
            names |= set(inputs)
            described |= {name for name, facts in inputs.items() if facts.get("description")}
    rows = set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M))
    assert names - described <= rows <= names
    assert all(f"`{name}`" in page for name in names - {"commit", "pull_request"})  # of another workflow


def test_the_page_on_permissions_lists_what_each_job_has() -> None:
    page = text_of(ROOT / "docs" / "runbooks" / "permissions.md")
    rows = {
        (workflow, job, grant)
        for workflow, jobs, cell in re.findall(r"^\| (\w+\.yml) \| ([\w, -]+) \| (.+) \|$", page, flags=re.M)
        for job in jobs.split(", ")
        for grant in CODE_SPAN.findall(cell) or [""]
    }
    granted = {
        (workflow, job, f"{name}: {level}")
        for workflow, content in workflows().items()
        for job, settings in content["jobs"].items()
        for name, level in (settings["permissions"] or {"": ""}).items()
    }
    assert rows == {(workflow, job, "" if grant == ": " else grant) for workflow, job, grant in granted}


def test_the_page_on_permissions_names_every_call_that_the_gateway_makes() -> None:
    page = text_of(ROOT / "docs" / "runbooks" / "permissions.md")
    gateway = "".join(text_of(p) for p in (ROOT / "src/trainyard/gateways/s3").glob("*.py"))
    called = set(
        re.findall(r'"((?:put|get|head|delete|copy|list|create|upload|complete|abort)_\w+)"', gateway)
    )
    assert {"put_object", "list_objects_v2", "abort_multipart_upload"} <= called
    names = {"".join(word.capitalize() for word in operation.split("_")) for operation in called}
    table = "".join(line for line in page.splitlines() if line.startswith("| `s3:"))
    assert {name for name in names if name not in table} == set()


def test_what_the_runner_keeps_between_jobs_is_ignored_by_git() -> None:
    page = text_of(ROOT / "docs" / "runbooks" / "gpu_runner.md")
    found = re.search(r"keeps what git ignores between jobs \(([^)]+)\)", page)
    assert found is not None
    folders = CODE_SPAN.findall(found[1])
    assert len(folders) >= 4
    ignored = text_of(ROOT / ".gitignore").splitlines()
    assert [folder for folder in folders if folder not in ignored] == []


def test_pages_stay_as_short_as_their_readers_need() -> None:
    words = {path: len(text_of(path).split()) for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")}
    limits = {"workflows.md": 1_200, "operations_card.md": 650, "jobs.md": 1_950}
    assert {
        name: words[ROOT / "docs" / name] for name in limits if words[ROOT / "docs" / name] > limits[name]
    } == {}
    assert sum(words.values()) <= MOST_WORDS


@every_document
def test_no_merge_left_its_marks(path: Path) -> None:
    assert re.findall(r"^(?:<{7}|>{7}) .*|^={7}$", text_of(path), flags=re.M) == []
