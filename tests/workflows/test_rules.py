"""Rules that every workflow and composite action keeps, and buildspec.yml; the usual checkers, offline."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflows.conftest import ACTIONS, ROOT, WORKFLOWS, name_of

STEP_LIMIT_MINUTES = 360
"""GitHub caps a step's time limit here, on self-hosted runners too."""
OF_THE_RUNNER = re.compile(r"GITHUB_\w+|RUNNER_\w+|HOME|PATH|PWD|CI")


def uses(shipped: Any) -> list[dict[str, Any]]:
    return [step for step in shipped.steps() if "uses" in step]


def runs(shipped: Any) -> list[dict[str, Any]]:
    return [step for step in shipped.steps() if "run" in step]


def test_every_file_says_when_and_why_it_runs(shipped: Any) -> None:
    assert shipped.text.startswith("# ")


def test_no_step_has_a_limit_that_github_would_cut(shipped: Any) -> None:
    limits = [int(step["timeout-minutes"]) for step in shipped.steps() if "timeout-minutes" in step]
    assert [limit for limit in limits if limit > STEP_LIMIT_MINUTES] == []


def test_one_action_has_one_pin_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in (ROOT / ".github").rglob("*.yml"):
        for name, pin in re.findall(r"uses: ([\w.-]+/[\w./-]+)@(\S+)", path.read_text()):
            pins.setdefault(name, set()).add(pin)
    assert pins
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


def test_no_action_assumes_a_role(shipped: Any) -> None:
    """Commands assume TRAINYARD_AWS_ROLE themselves, and refresh its credentials while they run."""
    assert [step for step in uses(shipped) if step["uses"].startswith("aws-actions/")] == []


def test_a_shell_line_reads_only_variables_that_it_was_given(shipped: Any) -> None:
    for job in [*shipped.jobs.values(), shipped.content.get("runs")]:
        for step in (job or {}).get("steps", []):
            given = {
                *job.get("env", {}),
                *step.get("env", {}),
                *re.findall(r"\b(?:read (?:.*-a|-r)|mapfile -t) (\w+)", step.get("run", "")),
            }
            used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", step.get("run", "")))
            assert {name for name in used - given if not OF_THE_RUNNER.fullmatch(name)} == set(), step["name"]


def test_secrets_are_given_to_steps_not_to_jobs(workflow: Any) -> None:
    for scope in [workflow.content, *workflow.jobs.values()]:
        assert "secrets." not in str(scope.get("env", {}))


def called(job: dict[str, Any]) -> dict[str, Any]:
    """The workflow that a job calls."""
    content: dict[str, Any] = yaml.load((ROOT / job["uses"][2:]).read_text(), Loader=yaml.BaseLoader)
    return content


def callers(workflow: Any) -> dict[str, dict[str, Any]]:
    return {name: job for name, job in workflow.jobs.items() if "uses" in job}


def test_a_caller_may_what_the_jobs_it_calls_may(workflow: Any) -> None:
    """A called job gets no permission that its caller lacks."""
    ranks = ("none", "read", "write")
    for name, caller in callers(workflow).items():
        for job in called(caller)["jobs"].values():
            for scope, level in job["permissions"].items():
                given = caller["permissions"].get(scope, "none")
                assert ranks.index(given) >= ranks.index(level), f"{name}: {scope}: {level}"


def test_commands_in_the_documents_dispatch_what_there_is() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        (workflow, rest)
        for page in pages
        for workflow, rest in re.findall(r"gh workflow run (\S+\.yml)([^\n`]*)", page.read_text())
    ]
    assert found
    for workflow, rest in found:
        path = ROOT / ".github" / "workflows" / workflow
        dispatch = yaml.load(path.read_text(), Loader=yaml.BaseLoader)["on"]["workflow_dispatch"] or {}
        assert set(re.findall(r"-f (\w+)=", rest)) <= set(dispatch.get("inputs", {})), (
            f"gh workflow run {workflow}{rest}"
        )


def runners(workflow: Any) -> set[str]:
    """Return the runners of all jobs, including those of called workflows."""
    own = {str(job["runs-on"]) for job in workflow.jobs.values() if "runs-on" in job}
    return own | {str(j["runs-on"]) for c in callers(workflow).values() for j in called(c)["jobs"].values()}


def test_a_pull_request_never_reaches_a_self_hosted_runner_nor_a_secret(workflow: Any) -> None:
    if "pull_request" in workflow.content["on"]:
        assert runners(workflow) <= {"ubuntu-24.04"}
        assert "secrets." not in workflow.text
    assert {"pull_request_target", "workflow_run", "issue_comment"}.isdisjoint(workflow.content["on"])


def test_what_a_pull_request_may_write_it_may_not_write_from_a_fork(workflow: Any) -> None:
    if "pull_request" not in workflow.content["on"]:
        return
    ours = "github.event.pull_request.head.repo.full_name == github.repository"
    for name, job in workflow.jobs.items():
        if "write" in job["permissions"].values():
            assert ours in job["if"], name
            of_checkout = "actions/checkout@"
            checkouts = [each for each in job["steps"] if each.get("uses", "").startswith(of_checkout)]
            refs = {step["with"].get("ref") for step in checkouts}
            assert refs <= {"${{ github.event.pull_request.base.sha }}"}, f"{name} runs code of the change"


def test_a_token_that_may_write_to_the_code_is_behind_an_environment(workflow: Any) -> None:
    for name, job in workflow.jobs.items():
        if job["permissions"].get("contents") == "write" and "uses" not in job:
            assert "environment" in job, name


def secrets_of(job: dict[str, Any]) -> set[str]:
    return set(re.findall(r"\bsecrets\.(\w+)", str(job)))


def test_secrets_stand_in_an_environment(workflow: Any) -> None:
    """A push to any branch can read a repository's secret; an environment can be limited to main."""
    own = {name: job for name, job in workflow.jobs.items() if name not in callers(workflow)}
    assert [n for n, j in own.items() if secrets_of(j) and "environment" not in j] == []


def test_a_called_job_gets_every_secret_that_it_uses(workflow: Any) -> None:
    """GitHub gives a called job only secrets that its workflow declares and the caller names, even of the
    job's own environment (actions/runner 1490, 4453): an undeclared one is empty, without an error.

    The caller has no environment, so the value is that of the called job's environment.
    """
    for name, caller in callers(workflow).items():
        content = called(caller)
        declared = set((content["on"]["workflow_call"] or {}).get("secrets", {}))
        users = {job: secrets_of(each) for job, each in content["jobs"].items() if secrets_of(each)}
        used = set().union(*users.values())
        assert used == declared, name
        assert caller.get("secrets", {}) == {each: f"${{{{ secrets.{each} }}}}" for each in used}, name
        assert [job for job in users if "environment" not in content["jobs"][job]] == [], name


def test_dependabot_moves_every_kind_of_pin_and_waits_a_week() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    folders = {
        (update["package-ecosystem"], folder)
        for update in updates
        for folder in update.get("directories", [update.get("directory")])
    }
    locks = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/package-lock.json")}
    assert {("npm", f"/{folder}") for folder in locks if "node_modules" not in folder} <= folders
    assert {("github-actions", "/"), ("github-actions", "/.github/actions/*")} <= folders
    assert all(update["cooldown"]["default-days"] >= 7 for update in updates)


def test_everything_that_is_kept_is_kept_for_thirty_days(shipped: Any) -> None:
    uploads = [step for step in uses(shipped) if step["uses"].startswith("actions/upload-artifact@")]
    assert {step["with"]["retention-days"] for step in uploads} <= {"30"}


def test_every_test_is_in_one_group() -> None:
    jobs = yaml.load((ROOT / ".github/workflows/ci.yml").read_text(), Loader=yaml.BaseLoader)["jobs"]
    groups = [entry["tests"].split() for entry in jobs["test"]["strategy"]["matrix"]["include"]]
    line = jobs["workflows"]["steps"][-1]["run"].split("pytest ")[1]
    groups.append(line.replace('"', "").split(" -m ")[0:1])
    groups.append(["tests/unit/test_docs.py"])  # of `make docs`
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = file.relative_to(ROOT).as_posix()
        homes = [group for group in groups if is_in(name, group)]
        in_act = name.startswith("tests/workflows/")  # once with `-m act`, once with `-m "not act"`
        assert len(homes) == (2 if in_act else 1), f"{name}: {homes}"


def is_in(name: str, group: list[str]) -> bool:
    ignored = [word.partition("=")[2] for word in group if word.startswith("--ignore=")]
    paths = [word for word in group if word.startswith("tests/")]
    return any(name.startswith(path) for path in paths) and not any(name.startswith(i) for i in ignored)


NEED_TORCH = {"train", "prove", "prepare", "step_environment", "export"}
"""Other commands run without torch (`test_package.py`)."""


def test_a_job_installs_torch_only_for_a_command_that_needs_it(workflow: Any) -> None:
    wrong = {}
    for name, job in workflow.jobs.items():
        steps = job.get("steps", [])
        set_up = [step for step in steps if step.get("uses") == "./.github/actions/setup"]
        targets = [step.get("with", {}).get("target", "install") for step in set_up]
        lines = " ".join(step.get("run", "") for step in steps)
        called = set(re.findall(r"scripts/(\w+)|trainyard (?:step )?(train)\b", lines))
        called = {script or step for script, step in called}
        expected = "install" if called & NEED_TORCH else "install-core"
        if targets not in ([], ["install-dev"], [expected]):
            wrong[name] = targets
    assert wrong == {}


TEXT = (Path(__file__).resolve().parents[2] / "buildspec.yml").read_text()
SPEC: dict[str, Any] = yaml.safe_load(TEXT)
# CodeBuild ignores a misspelt key without an error, so that a `finally` never runs. check-jsonschema has no
# schema of it; these keys are those of ours, of https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html.
PHASE = {"on-failure", "commands", "finally"}
KEYS: dict[str, set[str]] = {
    "env": {"shell", "variables", "exported-variables"},
    "phases": {"install", "pre_build", "build", "post_build"},
    "cache": {"paths"},
    "artifacts": {"files"},
}


def test_every_key_is_one_that_codebuild_reads() -> None:
    assert SPEC.keys() == {"version", *KEYS}
    unknown = [key for name, known in KEYS.items() for key in SPEC[name] if key not in known]
    unknown += [key for phase in SPEC["phases"].values() for key in phase if key not in PHASE]
    assert (unknown, SPEC["version"], SPEC["env"]["shell"]) == ([], 0.2, "bash")


def test_every_command_is_one_line_that_does_not_end_the_shell() -> None:
    """All commands share one shell: after `exec` or `exit` nothing of the phase runs, `finally` included."""
    keys = ("commands", "finally")
    commands = [one for phase in SPEC["phases"].values() for key in keys for one in phase.get(key, ())]
    ends = r"(^|[;&|{(]\s*)(exec|exit)\b"
    wrong = [one for one in commands if not isinstance(one, str) or re.search(ends, one)]
    assert (len(commands) > 20, wrong) == (True, [])


def test_every_variable_that_we_export_is_declared_or_set_by_a_command() -> None:
    """CodeBuild loses an exported variable that nothing sets, without an error."""
    env = SPEC["env"]
    unset = [name for name in env["exported-variables"] if name not in env["variables"]]
    assert [name for name in unset if not re.search(rf"(?<![\w$]){name}=", TEXT)] == []


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
