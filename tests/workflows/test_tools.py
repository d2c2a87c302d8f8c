"""The usual checkers on the shipped workflows, offline: schemas, zizmor, actionlint, shellcheck."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workflows.conftest import ACTIONS, ROOT, WORKFLOWS, name_of

TOOLS = Path(sys.executable).parent


def run(*line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=240)


def tool(name: str) -> str:
    return str(TOOLS / name)


def test_every_file_fits_its_schema() -> None:
    """Also that every job has a time limit."""
    workflows = [shipped.path for shipped in WORKFLOWS]
    for schema, paths in {
        "vendor.github-workflows": workflows,
        "custom.github-workflows-require-timeout": workflows,
        "vendor.github-actions": [shipped.path for shipped in ACTIONS],
        "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    }.items():
        done = run(tool("check-jsonschema"), "--builtin-schema", schema, *map(str, paths))
        assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing_even_when_pedantic() -> None:
    options = ("--offline", "--persona", "pedantic", "--no-progress", "--quiet", "--format", "json")
    done = run(tool("zizmor"), *options, ".", cwd=ROOT)
    assert [(f["ident"], f["desc"]) for f in json.loads(done.stdout)] == []
    assert done.returncode == 0, done.stderr


def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
    for shipped in (*WORKFLOWS, *ACTIONS):
        for number, step in enumerate(shipped.steps()):
            name = f"{name_of(shipped)} {number} {step['name']}".replace("/", "_")
            (tmp_path / name).write_text(step.get("run", ""))
    files = map(str, sorted(tmp_path.iterdir()))
    done = run(tool("shellcheck"), "--shell=bash", "--severity=style", *files)
    assert done.returncode == 0, done.stdout
    done = run(tool("shellcheck"), *map(str, ROOT.glob("scripts/*.sh")))  # of any shell, as make calls it
    assert done.returncode == 0, done.stdout


def test_actionlint_has_nothing_to_say() -> None:
    program = os.environ.get("ACTIONLINT") or shutil.which("actionlint")
    if not program:
        pytest.skip(
            "needs actionlint: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12, or ACTIONLINT"
        )
    files = [str(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
    done = run(program, "-no-color", "-shellcheck", tool("shellcheck"), *files, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
