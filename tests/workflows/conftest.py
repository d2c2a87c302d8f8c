"""The common parts of workflow tests: the shipped files, parsed, and GitHub's evaluator of expressions."""

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Shipped:
    """A workflow or composite action as it is shipped."""

    path: Path
    text: str
    content: dict[str, Any]
    """Parsed with every scalar a string, so that the key `on` stays what it is."""

    @property
    def jobs(self) -> dict[str, Any]:
        jobs: dict[str, Any] = self.content.get("jobs", {})
        return jobs

    def steps(self) -> list[dict[str, Any]]:
        """Every step, of all jobs or of the composite action; a job that calls a workflow has none."""
        if "runs" in self.content:
            return list(self.content["runs"]["steps"])
        return [step for job in self.jobs.values() for step in job.get("steps", ())]


def read(path: Path) -> Shipped:
    text = path.read_text(encoding="utf-8")
    return Shipped(path, text, yaml.load(text, Loader=yaml.BaseLoader))


def shipped_workflow(name: str) -> Shipped:
    return read(ROOT / ".github" / "workflows" / name)


PIPELINE = shipped_workflow("train.yml")
"""The pipeline, which other workflows call."""
PIPELINE_JOB: dict[str, Any] = PIPELINE.jobs["train"]
CALLER = shipped_workflow("training_ci.yml")
"""This repository's own caller of it."""
WORKFLOWS = [read(path) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
ACTIONS = [read(path) for path in sorted((ROOT / ".github" / "actions").glob("*/action.yml"))]


def name_of(shipped: Shipped) -> str:
    return shipped.path.relative_to(ROOT).as_posix()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`workflow` runs a test over every workflow, `shipped` over the composite actions too."""
    if "workflow" in metafunc.fixturenames:
        metafunc.parametrize("workflow", WORKFLOWS, ids=name_of)
    if "shipped" in metafunc.fixturenames:
        metafunc.parametrize("shipped", [*WORKFLOWS, *ACTIONS], ids=name_of)


@cache
def help_of(script: str) -> str:
    """Return the help of a command, read once."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        import_module(f"trainyard.commands.{script}").main(["--help"])
    return printed.getvalue()


def shell(text: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step's `run` as GitHub's bash does; keyword arguments are its variables. A failure raises."""
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    given = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(line, cwd=cwd, env=given, capture_output=True, text=True, timeout=60, check=True)


@dataclass(frozen=True)
class Expressions:
    """GitHub's own evaluator (`@actions/expressions` of npm) in a process: a line in, a line out."""

    process: "subprocess.Popen[str]"

    def value(self, text: str, *, status: str = "success", **contexts: Any) -> Any:
        """Return the value of an expression, with or without `${{ }}` around it.

        `contexts` are `github`, `needs`, `vars`, `inputs` …; a name that the expression uses and is not
        given is an error. `status` is what status functions read: success, failure or cancelled.
        """
        return self._ask(text, contexts, status=status, condition=False)

    def holds(self, condition: str, *, status: str = "success", **contexts: Any) -> bool:
        """Return whether an `if:` lets its job or step run; `success()` is added as GitHub does."""
        answer = self._ask(condition, contexts, status=status, condition=True)
        assert isinstance(answer, bool)
        return answer

    def _ask(self, text: str, contexts: Mapping[str, Any], **more: Any) -> Any:
        whole = re.fullmatch(r"\s*\$\{\{(.*)\}\}\s*", text, re.S)
        expression = whole[1].strip() if whole else text
        assert "${{" not in expression, "an expression within a text has to be taken out of it first"
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        question = {"expression": expression, "contexts": contexts, **more}
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise ValueError(f"{expression}: {answer['error']}")
        return answer["value"]


@pytest.fixture(scope="session")
def expressions() -> Iterator[Expressions]:
    """Skips, with the reason, where Node is missing; at GitHub that is a failure."""
    folder, node = Path(__file__).parent / "expressions", shutil.which("node")
    missing = "" if (folder / "node_modules").is_dir() else "@actions/expressions is not installed: "
    missing = missing or ("" if node else "node is not installed: ")
    if missing:
        reason = f"{missing}make install-dev, with Node 20 or newer and npm, installs what evaluates if:"
        (pytest.fail if os.environ.get("GITHUB_ACTIONS") == "true" else pytest.skip)(reason)
    line = [str(node), str(folder / "evaluate.mjs")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Expressions(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=20)
