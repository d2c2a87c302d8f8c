"""Rules that every workflow and composite action keeps, read from the shipped files."""

import re
from pathlib import Path
from typing import Any

import yaml

STEP_LIMIT_MINUTES = 360
"""GitHub caps a step's time limit here, on self-hosted runners too."""
OF_THE_RUNNER = re.compile(r"GITHUB_\w+|RUNNER_\w+|HOME|PATH|CI")


def uses(shipped: Any) -> list[dict[str, Any]]:
    return [step for step in shipped.steps() if "uses" in step]


def runs(shipped: Any) -> list[dict[str, Any]]:
    return [step for step in shipped.steps() if "run" in step]


def test_every_file_says_when_and_why_it_runs(shipped: Any) -> None:
    assert shipped.text.startswith("# ")


def test_nothing_is_permitted_at_the_top(workflow: Any) -> None:
    assert workflow.content["permissions"] == {}


def test_every_job_names_its_permissions_each_with_its_reason(workflow: Any) -> None:
    for name, job in workflow.jobs.items():
        assert "permissions" in job, name
        for scope, level in job["permissions"].items():
            assert re.search(rf"^ +{scope}: {level} # \w", workflow.text, re.M), (
                f"{scope}: {level} has no comment"
            )


def test_every_job_has_a_time_limit(workflow: Any) -> None:
    assert [name for name, job in workflow.jobs.items() if "timeout-minutes" not in job] == []


def test_no_step_has_a_limit_that_github_would_cut(shipped: Any) -> None:
    limits = [int(step["timeout-minutes"]) for step in shipped.steps() if "timeout-minutes" in step]
    assert [limit for limit in limits if limit > STEP_LIMIT_MINUTES] == []


def test_every_foreign_action_is_pinned_by_full_commit_with_its_version_beside(shipped: Any) -> None:
    for step in uses(shipped):
        if step["uses"].startswith("./"):
            continue
        pinned = rf"uses: {re.escape(step['uses'])} # v\d+\.\d+\.\d+$"
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        assert re.search(pinned, shipped.text, re.M), f"{step['uses']} has no version comment"


def test_one_action_has_one_pin_everywhere(root: Path) -> None:
    pins: dict[str, set[str]] = {}
    for path in (root / ".github").rglob("*.yml"):
        for name, pin in re.findall(r"uses: ([\w.-]+/[\w./-]+)@(\S+)", path.read_text()):
            pins.setdefault(name, set()).add(pin)
    assert pins
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


def test_no_expression_stands_in_a_shell_line(shipped: Any) -> None:
    assert [step["name"] for step in runs(shipped) if "${{" in step["run"]] == []


def test_every_step_has_a_name(shipped: Any) -> None:
    assert [step for step in shipped.steps() if "name" not in step] == []


def test_a_checkout_leaves_no_credentials_behind(shipped: Any) -> None:
    for step in uses(shipped):
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] == "false", step["name"]


def test_a_local_action_exists_and_gets_the_inputs_it_has(shipped: Any, root: Path) -> None:
    for step in uses(shipped):
        if not step["uses"].startswith("./"):
            continue
        action = yaml.load((root / step["uses"] / "action.yml").read_text(), Loader=yaml.BaseLoader)
        inputs, given = action.get("inputs", {}), step.get("with", {})
        assert given.keys() <= inputs.keys()
        assert {name for name, i in inputs.items() if i.get("required") == "true"} <= given.keys()


def test_every_input_is_used_and_every_used_input_exists(shipped: Any) -> None:
    declared = shipped.content.get("inputs", {})
    declared = declared or (shipped.content.get("on", {}).get("workflow_dispatch") or {}).get("inputs", {})
    assert set(re.findall(r"\binputs\.([\w-]+)", shipped.text)) == set(declared)


def test_a_shell_line_reads_only_variables_that_it_was_given(shipped: Any) -> None:
    for job in [*shipped.jobs.values(), shipped.content.get("runs")]:
        for step in (job or {}).get("steps", []):
            given = {
                *job.get("env", {}),
                *step.get("env", {}),
                *re.findall(r"\bread .*-a (\w+)", step.get("run", "")),
            }
            used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", step.get("run", "")))
            assert {name for name in used - given if not OF_THE_RUNNER.fullmatch(name)} == set(), step["name"]


def test_secrets_are_given_to_steps_not_to_jobs(workflow: Any) -> None:
    for scope in [workflow.content, *workflow.jobs.values()]:
        assert "secrets." not in str(scope.get("env", {}))


def test_a_pull_request_never_reaches_a_self_hosted_runner(workflow: Any) -> None:
    if "pull_request" in workflow.content["on"]:
        assert {job["runs-on"] for job in workflow.jobs.values()} <= {"ubuntu-24.04"}
    assert "pull_request_target" not in workflow.content["on"]


def test_one_summary_job_needs_all_others_and_runs_always(root: Path) -> None:
    jobs = yaml.load((root / ".github/workflows/ci.yml").read_text(), Loader=yaml.BaseLoader)["jobs"]
    summary = jobs.pop("ci")
    assert set(summary["needs"]) == set(jobs)
    assert summary["if"] == "${{ always() }}"
    condition = summary["steps"][0]["if"]
    assert all(
        f"contains(needs.*.result, '{bad}')" in condition for bad in ("failure", "cancelled", "skipped")
    )
