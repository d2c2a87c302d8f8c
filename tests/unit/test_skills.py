"""Skills are valid in the Agent Skills format, and every command and call in them exists.

Files, flags, keys and links in them are compared by `test_docs.py`, like those of every document.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cases import each_case
from tests.unit.test_documented_commands import parse

from trainyard import functions
from trainyard.cluster.checks import CHECKS
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.network_verdict import Network

ROOT = Path(__file__).resolve().parents[2]
SKILLS = sorted((ROOT / "skills").glob("*/SKILL.md"))
NAMES = {
    *("training-job-deployer", "k8s-cluster-manager", "ray-cluster-manager", "pytorchjob-manager"),
    *("checkpoint-manager", "training-monitor", "hyperpod-manager", "docker-image-builder"),
    *("docker-image-tester", "ecr-image-pusher", "eks-cluster-manager"),
    *("training-run", "training-failure"),
}
"""The names of source document 000, and two for agents: to train, and to find a cause.

The format has no underscore, so `k8s_cluster_manager` has hyphens."""
FIELDS = {"name": 64, "description": 1024, "license": 500, "compatibility": 500}
"""Fields of the front matter -> their greatest length (agentskills.io/specification)."""
MOST_LINES = 200
PATTERN = re.compile(r"\A---\n(?P<fields>.*?)\n---\n\n(?P<body># .*)\Z", re.S)
BLOCK = re.compile(r"^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
every_skill = each_case("path", SKILLS, ids=lambda path: path.parent.name)


def blocks(path: Path, language: str) -> list[str]:
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [inspect.cleandoc(block["code"]) for block in found if block["language"] == language]


def command_lines(path: Path) -> Iterator[str]:
    """Every line of a shell, and every span of code that begins with `trainyard`."""
    for block in blocks(path, "bash"):
        yield from block.replace("\\\n", " ").splitlines()
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    yield from (span for span in SPAN.findall(text) if span.startswith("trainyard "))


def test_the_skills_are_those_that_the_documents_name() -> None:
    assert {path.parent.name for path in SKILLS} == NAMES


@every_skill
def test_the_front_matter_is_valid(path: Path) -> None:
    found = PATTERN.match(path.read_text(encoding="utf-8"))
    assert found is not None, "a front matter, an empty line, a heading"
    fields = yaml.safe_load(found["fields"])
    assert fields["name"] == path.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert "description" in fields
    for name, value in fields.items():
        assert isinstance(value, str)
        assert 0 < len(value) <= FIELDS[name], name
    assert " Use " in fields["description"], "the description says when to use it"


@every_skill
def test_it_is_short_enough_to_load(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < MOST_LINES


@every_skill
def test_it_loads_alone(path: Path) -> None:
    """Its folder is copied into other repositories, without anything else of this one."""
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert re.findall(r"(?:scripts|docs|src|configs)/[\w./]+", text) == []


@every_skill
def test_every_command_parses(path: Path) -> None:
    lines = list(command_lines(path))
    assert len(lines) > 3
    for line in lines:
        assert line.startswith("trainyard "), f"{line}: only commands of Trainyard can be checked"
        if len(line.split()) > 3:  # a bare name says which command to use
            parse(line)


@every_skill
def test_every_call_from_python_fits_its_function(path: Path) -> None:
    for block in blocks(path, "python"):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert node.module == "trainyard.functions"
                assert [name.name for name in node.names if not hasattr(functions, name.name)] == []
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and hasattr(functions, node.func.id)
            ):
                arguments = {keyword.arg: None for keyword in node.keywords if keyword.arg}
                inspect.signature(getattr(functions, node.func.id)).bind(*node.args, **arguments)


@pytest.mark.parametrize(
    ("skill", "heading", "known"),
    [
        ("pytorchjob-manager", "class", {str(each) for each in FailureClass}),
        ("training-monitor", "verdict", {str(each) for each in Network}),
        ("k8s-cluster-manager", "check", {check.name for check in CHECKS}),
    ],
)
def test_everything_that_a_table_explains_exists(skill: str, heading: str, known: set[str]) -> None:
    text = (ROOT / "skills" / skill / "SKILL.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {heading} \|.*\n((?:\|.*\n)+)", text, re.M)
    names = {name for row in table.splitlines() for name in SPAN.findall(row.split("|")[1])}
    assert len(names) > 5
    assert names - known == set()


def test_an_installed_package_has_them_all() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = project["tool"]["setuptools"]["data-files"]
    expected = {f"share/trainyard/skills/{name}": [f"skills/{name}/*.md"] for name in NAMES}
    assert {folder: names for folder, names in files.items() if "skills" in folder} == expected


def test_the_workflow_that_promotes_a_model_calls_commands_that_parse() -> None:
    steps = yaml.safe_load((ROOT / "docs/examples/promote_model.yml").read_text())["jobs"]["promote"]["steps"]
    lines = [step["run"].replace("\\\n", " ") for step in steps if "trainyard " in step.get("run", "")]
    for variable in ("RUN_NUMBER", "STEP"):
        lines = [line.replace(f'"${variable}"', "812") for line in lines]
    lines = [line.replace('"$NAME"', "production").strip() for line in lines]
    for line in lines:
        parse(" ".join(line.removeprefix("exec .venv/bin/").split()))
    assert len(lines) == 3
    assert "--require evaluation,proof" in lines[0]
