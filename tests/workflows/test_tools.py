"""The usual checkers on the shipped workflows, offline: schemas, zizmor, actionlint, shellcheck."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(sys.executable).parent


def run(*line: str, cwd: Path | None = None, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120)


def tool(name: str) -> str:
    return str(TOOLS / name)


def schema_check(schema: str, path: Path) -> None:
    done = run(tool("check-jsonschema"), "--builtin-schema", schema, str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_fit_the_schema(workflow: Any) -> None:
    schema_check("vendor.github-workflows", workflow.path)


def test_every_job_is_time_limited_by_the_schema_too(workflow: Any) -> None:
    schema_check("custom.github-workflows-require-timeout", workflow.path)


def test_composite_actions_fit_the_schema(root: Path) -> None:
    for path in sorted((root / ".github" / "actions").glob("*/action.yml")):
        schema_check("vendor.github-actions", path)


def test_dependabot_fits_the_schema(root: Path) -> None:
    schema_check("vendor.dependabot", root / ".github" / "dependabot.yml")


def test_zizmor_finds_nothing_even_when_pedantic(root: Path) -> None:
    options = ("--offline", "--persona", "pedantic", "--no-progress", "--quiet", "--format", "json")
    done = run(tool("zizmor"), *options, ".", cwd=root)
    assert [(f["ident"], f["desc"]) for f in json.loads(done.stdout)] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("settings", ["zizmor.yml", "actionlint.yaml"])
def test_every_rule_that_is_not_to_be_applied_has_its_reason(root: Path, settings: str) -> None:
    lines = (root / ".github" / settings).read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r" +(- [\w']|disable:)", line):
            assert lines[number - 1].strip().startswith("#"), line


def test_shellcheck_has_nothing_to_say(shipped: Any) -> None:
    for step in shipped.steps():
        if "run" in step:
            done = run(tool("shellcheck"), "--shell=bash", "--severity=style", "-", stdin=step["run"])
            assert done.returncode == 0, f"{step['name']}:\n{done.stdout}"


def test_actionlint_has_nothing_to_say(root: Path) -> None:
    program = os.environ.get("ACTIONLINT") or shutil.which("actionlint")
    if not program:
        pytest.skip(
            "needs actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12, or ACTIONLINT"
        )
    files = [str(path) for path in sorted((root / ".github" / "workflows").glob("*.yml"))]
    done = run(program, "-no-color", "-shellcheck", tool("shellcheck"), *files, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hooks_of_pre_commit_are_local_and_their_programs_exist(root: Path) -> None:
    import yaml

    config = yaml.safe_load((root / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook in config["repos"][0]["hooks"]:
        program = hook["entry"].split()[0]
        if program.startswith(".venv/bin/"):
            assert (TOOLS / Path(program).name).exists(), hook["id"]
