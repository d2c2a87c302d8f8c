"""The training workflow against the scripts it calls and against `make train`."""

import inspect
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainyard.commands import COMMANDS
from trainyard.commands import step as step_command
from trainyard.commands.run import RunRequest, pipeline_of
from trainyard.config.load import load_config
from trainyard.github.job_times import STORING_MINUTES
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.target import AS_SET_UP, PLACES
from trainyard.pipeline import Step
from trainyard.run.segment import Handover, Segment, first_segment

Help = Callable[[str], str]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]
CALL = re.compile(r"scripts/(\w+)\.py(?P<arguments>[^\n]*)")


def calls(text: str) -> list[tuple[str, list[str]]]:
    """Script name and words of each call in a shell text."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(found[1], shlex.split(found["arguments"])) for found in CALL.finditer(joined)]


def first_calls(names: list[str]) -> list[str]:
    return list(dict.fromkeys(names))


def pipeline_steps(root: Path) -> list[Step]:
    """The steps of `trainyard run` for the smoke test."""
    request = RunRequest(config=root / "configs" / "smoke.yaml", changes=["training.max_steps=5"])
    found = replace(pipeline_of(request), notifies=True)
    return [*found.steps(), *found.notify("succeeded")]


def test_trainyard_run_takes_the_steps_of_the_pipeline_in_their_order_with_values_that_they_take(
    root: Path, pipeline: list[str]
) -> None:
    steps = pipeline_steps(root)
    assert [step.name for step in steps] == pipeline
    for step in steps:
        inspect.signature(step.apply).bind(**step.values)


def test_every_called_script_exists_and_knows_its_flags(shipped: Any, root: Path, help_of: Help) -> None:
    for step in shipped.steps():
        for script, words in calls(step.get("run", "")):
            assert (root / "scripts" / f"{script}.py").is_file(), script
            (module,) = re.findall(r"commands\.(\w+) import", (root / "scripts" / f"{script}.py").read_text())
            for flag in (word for word in words if word.startswith("--")):
                assert re.search(rf"{flag.partition('=')[0]}\b", help_of(module)), f"{script}.py {flag}"
            if any("--set=" in word for word in words):
                assert "--set" in help_of(module)


def test_only_the_job_that_trains_waits_for_the_gpu(training: Any) -> None:
    assert [name for name, job in training.jobs.items() if "concurrency" in job] == ["train"]
    assert "concurrency" not in training.content
    own = {name: job for name, job in training.jobs.items() if "uses" not in job}
    others = {name: job["runs-on"] for name, job in own.items() if name != "train"}
    assert set(others.values()) == {"ubuntu-24.04"}


def test_after_the_plan_nothing_looks_at_an_input(training: Any) -> None:
    for name, job in training.jobs.items():
        assert ("inputs." in str(job)) == (name == "plan"), name


def test_nothing_else_starts_a_training(training: Any) -> None:
    """A called job would get no secret of its environment, and the caller's numbers, which may collide."""
    assert set(training.content["on"]) == {"push", "schedule", "workflow_dispatch"}


def test_a_dispatch_offers_what_a_plan_knows_and_a_push_leaves_the_choice_to_it(training: Any) -> None:
    target = training.content["on"]["workflow_dispatch"]["inputs"]["target"]
    assert target["options"] == [AS_SET_UP, *map(str, PLACES)]
    assert target["default"] == target["options"][0]
    [plan] = [step for step in training.jobs["plan"]["steps"] if step.get("id") == "plan"]
    assert plan["env"] == {"INPUTS": "${{ toJSON(inputs) }}"}


def test_the_next_segment_is_dispatched_with_inputs_that_the_workflow_has(training: Any) -> None:
    handover = Handover(Segment("1", 1, 1, "0" * 40), DispatchInputs("x.yaml").inputs(), "main", "s3://a", 3)
    inputs = handover.inputs_of(handover.segment.next(step=1, died=False), manifest="run-1-manifest.json")
    assert inputs.keys() <= training.content["on"]["workflow_dispatch"]["inputs"].keys()


def uploads(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact@")]


def test_results_are_kept_for_thirty_days_even_of_a_failed_run(training_job: dict[str, Any]) -> None:
    [upload] = uploads(training_job)
    assert upload["with"]["retention-days"] == "30"
    assert "always()" in upload["if"]


def test_the_daily_run_is_off_the_hour(training: Any) -> None:
    minute = training.content["on"]["schedule"][0]["cron"].split()[0]
    assert minute not in ("0", "00", "30", "*")


def steps_called(job: dict[str, Any]) -> list[str]:
    """The words after `trainyard step` of a job, in their order."""
    runs = (step.get("run", "") for step in job["steps"])
    return [found[1] for run in runs if (found := re.search(r"-m trainyard step (\w+)", run))]


def test_the_steps_of_the_job_that_trains_are_the_pipeline_in_its_order(training_job: dict[str, Any]) -> None:
    order = ["check", "prepare", "fetch", "start", "follow", "train"]
    order += ["evaluate", "store", "prove", "report", "notify"]
    assert steps_called(training_job) == order


def test_every_shell_line_of_a_step_is_one_command_of_python_that_gets_the_signals(training: Any) -> None:
    called = []
    for name, job in training.jobs.items():
        for step in job.get("steps", ()):
            if "trainyard" in step.get("run", ""):
                assert step["run"].startswith("exec .venv/bin/python -m trainyard step "), step["name"]
                assert "\n" not in step["run"]
                called.append((name, steps_called({"steps": [step]})[0]))
    known = {*step_command.STEPS, "plan", "continue", "wait"}
    taken = {f"step {name}" for name in step_command.STEPS}
    assert taken & set(COMMANDS) == set(), "a command of two words would be called instead"
    assert {step for _, step in called} == known


def test_the_workflow_is_short_and_has_no_logic(training: Any) -> None:
    assert len(training.text.splitlines()) <= 300
    for name, job in training.jobs.items():
        for step in job.get("steps", ()):
            condition = str(step.get("if", ""))
            assert condition.count("&&") <= 1 and "||" not in condition, step["name"]
        assert ") &&" not in str(job.get("with", "")), name


def test_the_job_notes_its_start_before_all_else_and_keeps_what_git_ignores(
    training_job: dict[str, Any], tmp_path: Path, shell: Shell
) -> None:
    step = training_job["steps"][0]
    shell(step["run"], tmp_path, GITHUB_ENV=str(tmp_path / "env"))
    assert re.fullmatch(r"TRAINYARD_JOB_STARTED=\d+\n", (tmp_path / "env").read_text())
    assert training_job["steps"][1]["with"]["clean"] == "false"
    assert training_job["steps"][2]["run"] == "git clean -ffd"


def test_every_job_checks_out_the_commit_of_the_plan(training: Any) -> None:
    for name, job in training.jobs.items():
        for step in job.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@") and name != "plan":
                assert "fromJSON(needs.plan.outputs.plan" in step["with"]["ref"], name
                assert ").commit" in step["with"]["ref"], name


def test_the_plan_has_every_value_that_the_workflow_reads_of_it(training: Any) -> None:
    variables = {"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "1", "GITHUB_SHA": "0" * 40}
    config = load_config(training.path.parents[2] / "configs" / "training_configuration.yaml").config
    plan = resolve(DispatchInputs("x.yaml"), config, first_segment(variables), variables=variables).job_plan()
    used = re.findall(
        r"fromJSON\((?:needs|steps)\.plan\.outputs\.plan(?: \|\| '{}')?\)\.([\w.]+)", training.text
    )
    for path in set(used):
        first, _, second = path.partition(".")
        assert first in plan, path
        assert not second or second in plan[first], path
    assert len(set(used)) >= 9


def test_another_branches_commit_and_a_newer_workflow_file_are_refused_before_any_code_runs(
    training: Any, tmp_path: Path, shell: Shell
) -> None:
    checkout, step, setup = training.jobs["plan"]["steps"][:3]
    assert checkout["with"]["fetch-depth"] == "0"
    assert setup["uses"] == "./.github/actions/setup"
    person = "git -c user.name=A -c user.email=a@example.org -c commit.gpgsign=false commit --quiet"
    workflow = ".github/workflows/training_ci.yml"
    shell("git init --quiet && mkdir -p .github/workflows", tmp_path)
    for changed in (workflow, workflow, "other"):
        shell(f"echo more >> {changed} && git add . && {person} --message {changed}", tmp_path)
    tip = shell("git rev-parse HEAD", tmp_path).stdout.strip()
    fork = shell(f"git checkout --quiet --orphan fork && {person} -m fork && git rev-parse HEAD", tmp_path)
    for commit, refusal in (
        (tip, ""),
        (f"{tip}~1", ""),
        (f"{tip}~2", "is newer than the scripts"),
        (fork.stdout.strip(), "may be a fork's"),
    ):
        shell(f"git checkout --quiet --force --detach {commit}", tmp_path)
        if not refusal:
            shell(step["run"], tmp_path, GITHUB_SHA=tip)
            continue
        with pytest.raises(subprocess.CalledProcessError) as caught:
            shell(step["run"], tmp_path, GITHUB_SHA=tip)
        assert refusal in caught.value.stdout


def test_only_the_steps_that_sign_have_the_key_and_only_the_training_has_no_secret_of_ours(
    training: Any,
) -> None:
    holders: dict[str, list[str]] = {}
    for job in training.jobs.values():
        for step in job.get("steps", ()):
            for secret in re.findall(r"secrets\.(\w+)", str(step.get("env", {}))):
                holders.setdefault(secret, []).append(step["name"])
    assert holders["TRAINYARD_SIGNING_KEY"] == [
        "Check the store, the run number and the signing key",
        "Check",
        "Store each checkpoint during training",
        "Store",
    ]
    assert holders["WANDB_API_KEY"] == ["Train"]
    assert "Train" not in holders["SLACK_BOT_TOKEN"]


def test_messages_reports_and_copies_decide_nothing_and_all_else_does(training_job: dict[str, Any]) -> None:
    quiet = [step["name"] for step in training_job["steps"] if "continue-on-error" in step]
    assert quiet == [
        "Notify of the start",
        "Store each checkpoint during training",
        "Report",
        "Keep report and records for 30 days",
        "Notify",
    ]
    names = [step["name"] for step in training_job["steps"]]
    assert names[-1] == "Notify", "that a copy was refused is part of the end"
    assert names.index("Prove") < names.index("Keep report and records for 30 days")
    assert int(uploads(training_job)[0]["timeout-minutes"]) <= STORING_MINUTES / 2


def test_what_can_change_a_result_starts_a_run_and_a_pin_of_an_action_does_not(training: Any) -> None:
    push = training.content["on"]["push"]
    assert push["branches"] == ["**", "!gh-readonly-queue/**"]
    assert {"src/**", "scripts/**", "configs/**", "requirements-training.txt"} <= set(push["paths"])
    assert not any(".github" in path for path in push["paths"])
