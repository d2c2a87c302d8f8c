"""The training workflow against the scripts it calls and against `make train`."""

import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.artifacts.store.layout import READINESS, READINESS_PARTS, READINESS_SMALL
from trainyard.commands.run import parse_args, pipeline_of
from trainyard.config.load import load_config
from trainyard.github.job_times import JOB_MINUTES, LEAST_STORING_MINUTES, ROLE_MINUTES, STORING_MINUTES
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.target import PLACES
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


def step_that_runs(job: dict[str, Any], script: str) -> dict[str, Any]:
    """The first step that calls `scripts/SCRIPT.py`, and not beside the training."""
    runs = ((step, step.get("run", "")) for step in job["steps"])
    found: dict[str, Any] = next(
        s for s, run in runs if f"scripts/{script}.py" in run and "--follow" not in run
    )
    return found


def pipeline_steps(root: Path) -> list[list[str]]:
    """The commands of `trainyard run`, each as its script's name and words."""
    words = ["--config", str(root / "configs" / "smoke.yaml"), "--set", "training.max_steps=5"]
    found = replace(pipeline_of(parse_args(words)), notifies=True)
    steps = [*found.before(), found.train(), *found.after(), *found.notify("succeeded")]
    return [[Path(step[1]).stem, *step[2:]] for step in steps]


def test_the_workflow_runs_the_pipeline_in_order(training_job: dict[str, Any], pipeline: list[str]) -> None:
    beside_it = (
        'notify_slack.py "$MOMENT"',
        "--follow",
        "scripts/fetch_resume.py",
        "scripts/gather_records.py",
        "scripts/find_proven_run.py",
        "scripts/prune_runs.py",
    )
    steps = [
        s["run"] for s in training_job["steps"] if "run" in s and not any(x in s["run"] for x in beside_it)
    ]
    assert first_calls([name for run in steps for name, _ in calls(run)]) == pipeline


def test_trainyard_run_runs_the_same_scripts_in_the_same_order(root: Path, pipeline: list[str]) -> None:
    assert [name for name, *_ in pipeline_steps(root)] == pipeline


def test_started_is_said_before_training(training_job: dict[str, Any]) -> None:
    runs = [step.get("run", "") for step in training_job["steps"]]
    started = next(i for i, run in enumerate(runs) if 'notify_slack.py "$MOMENT"' in run)
    assert started < next(i for i, run in enumerate(runs) if "scripts/train.py" in run)


def test_every_called_script_exists_and_knows_its_flags(shipped: Any, root: Path, help_of: Help) -> None:
    for step in shipped.steps():
        for script, words in calls(step.get("run", "")):
            assert (root / "scripts" / f"{script}.py").is_file(), script
            for flag in (word for word in words if word.startswith("--")):
                assert re.search(rf"{flag.partition('=')[0]}\b", help_of(script)), f"{script}.py {flag}"
            if any("--set=" in word for word in words):
                assert "--set" in help_of(script)


def test_trainyard_run_gives_flags_that_the_scripts_know(root: Path, help_of: Help) -> None:
    for script, *words in pipeline_steps(root):
        for flag in (word for word in words if word.startswith("--")):
            assert re.search(rf"{flag}\b", help_of(script)), f"{script}.py {flag}"


def test_a_shell_line_is_one_call_and_python_gets_the_signals(training_job: dict[str, Any]) -> None:
    for step in training_job["steps"]:
        run = step.get("run", "")
        assert len(calls(run)) <= 1, step["name"]
        if calls(run):
            assert "exec .venv/bin/python scripts/" in run, step["name"]


def test_the_trainer_stops_itself_inside_the_limit_of_the_job(training_job: dict[str, Any]) -> None:
    assert '--deadline "$DEADLINE"' in step_that_runs(training_job, "train")["run"]
    assert training_job["env"]["DEADLINE"] == "${{ needs.plan.outputs.deadline }}"
    assert 15 <= STORING_MINUTES <= 60


@pytest.mark.parametrize(("planned", "limit"), [("480", 480), ("355", 355), (None, 480), ("", 480)])
def test_the_limit_of_the_job_is_that_of_the_plan(
    training_job: dict[str, Any], expressions: Any, planned: str | None, limit: int
) -> None:
    """A plan of an older commit, whose next segment this is, names none."""
    outputs = {} if planned is None else {"job_minutes": planned}
    context = {"needs": {"plan": {"outputs": outputs}}}
    assert expressions.value(training_job["timeout-minutes"], **context) == limit
    assert expressions.value(training_job["env"]["JOB_MINUTES"], **context) == str(limit)
    assert limit <= JOB_MINUTES


@pytest.mark.parametrize("minutes", ["60", "355", "360", "361", "480"])
@pytest.mark.parametrize("machine", ["self-hosted", "github-hosted", ""])
def test_a_machine_of_github_with_a_limit_beyond_its_life_is_refused_before_anything_trains(
    training_job: dict[str, Any], shell: Shell, tmp_path: Path, machine: str, minutes: str
) -> None:
    step = next(
        s
        for s in training_job["steps"]
        if s["name"] == "Refuse a limit or a store that this machine does not keep"
    )
    assert training_job["steps"].index(step) == 1
    output = tmp_path / "output"
    output.touch()
    more = {"RUNNER_ENVIRONMENT": machine, "JOB_MINUTES": minutes, "DEADLINE": f"{int(minutes) - 30}m"}
    more["STORE"] = "s3://ml-runs/phase2"
    refused = False
    try:
        shell(step["run"], tmp_path, GITHUB_OUTPUT=str(output), **more)
    except subprocess.CalledProcessError as error:
        refused = True
        assert "::error::GitHub ends jobs on its own machines after 360 minutes" in error.stdout
    assert refused is (machine == "github-hosted" and int(minutes) > 360)
    assert ("gh variable set TRAINYARD_JOB_MINUTES --body 355" in output.read_text()) is refused


@pytest.mark.parametrize("store", ["file:///mnt/storage/store", "s3://ml-runs/phase2"])
@pytest.mark.parametrize("machine", ["self-hosted", "github-hosted", ""])
def test_a_folder_of_a_machine_of_github_is_refused_as_a_store_before_anything_trains(
    training_job: dict[str, Any], shell: Shell, tmp_path: Path, machine: str, store: str
) -> None:
    """GitHub destroys the machine with the job, and with it what is stored there and proven."""
    step = next(step for step in training_job["steps"] if step.get("id") == "limit")
    output = tmp_path / "output"
    output.touch()
    more = {"RUNNER_ENVIRONMENT": machine, "JOB_MINUTES": "355", "DEADLINE": "325m", "STORE": store}
    refused = False
    try:
        shell(step["run"], tmp_path, GITHUB_OUTPUT=str(output), **more)
    except subprocess.CalledProcessError as error:
        refused = True
        assert f"::error::{store} is a folder of a machine that GitHub destroys" in error.stdout
    assert refused is (machine == "github-hosted" and store.startswith("file://"))
    assert ("gh variable set TRAINYARD_STORE --body s3://BUCKET/PREFIX" in output.read_text()) is refused


def test_the_deadline_counts_from_the_first_step_as_the_limit_does(training_job: dict[str, Any]) -> None:
    first = training_job["steps"][0]["run"].splitlines()[0]
    assert first == 'echo "TRAINYARD_JOB_STARTED=$(date +%s)" >> "$GITHUB_ENV"'


def test_no_step_before_training_can_be_skipped_but_what_only_some_runs_need(
    training_job: dict[str, Any],
) -> None:
    steps = training_job["steps"]
    training = steps.index(step_that_runs(training_job, "train"))
    optional = [step["name"] for step in steps[: training + 1] if "if" in step]
    assert optional == [
        "Check the store, the run number and the signing key",
        "Assume the AWS role for reading",
        "Look for a proven run of the same",
        "Tell Slack that it started or goes on",
        "Store each checkpoint while training goes on",
        "Train",
    ]


def test_what_is_done_or_stopped_with_a_checkpoint_is_stored_and_what_failed_is_not(
    training_job: dict[str, Any],
) -> None:
    train, store = (step_that_runs(training_job, name) for name in ("train", "training_artifact_sync"))
    role = next(s for s in training_job["steps"] if s["name"] == "Assume the AWS role")
    assert (train["id"], role["id"]) == ("train", "role")
    assert "configure-aws-credentials" in role["uses"]
    good = "(steps.train.outcome == 'success' || steps.train.outputs.exit_code == '75')"
    for step in (role, store):
        assert step["if"].startswith("${{ always() && ")
        assert step["if"].endswith(f" && {good} }}}}")
    assert "steps.role.outcome != 'failure'" in store["if"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("", []),
        ("a.b=1\nc=2 of them\nd=*", ["--set=a.b=1", "--set=c=2 of them", "--set=d=*"]),
        ("path=C:\\data", ["--set=path=C:\\data"]),
    ],
)
def test_every_override_reaches_the_scripts_also_those_on_later_lines(
    training_job: dict[str, Any], root: Path, shell: Shell, overrides: str, words: list[str]
) -> None:
    runs = [step["run"] for step in training_job["steps"] if "$OVERRIDES" in step.get("run", "")]
    assert len(runs) == 5
    for run in runs:
        done = shell(re.sub(r"exec \S+python", "printf '%s\\n'", run), root, OVERRIDES=overrides)
        assert [word for word in done.stdout.splitlines() if word.startswith("--set")] == words


def test_a_later_trigger_waits_and_never_cancels(training_job: dict[str, Any]) -> None:
    concurrency = training_job["concurrency"]
    assert concurrency["queue"] == "max"
    assert concurrency["cancel-in-progress"] == "false"
    assert concurrency["group"] == "${{ needs.plan.outputs.queue }}"


def test_only_the_job_that_trains_waits_for_the_gpu(training: Any) -> None:
    assert [name for name, job in training.jobs.items() if "concurrency" in job] == ["train"]
    assert "concurrency" not in training.content
    own = {name: job for name, job in training.jobs.items() if "uses" not in job}
    others = {name: job["runs-on"] for name, job in own.items() if name != "train"}
    assert set(others.values()) == {"ubuntu-24.04"}


def roles(training_job: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for step in training_job["steps"] if "configure-aws-credentials" in step.get("uses", "")]


def test_the_role_that_writes_is_assumed_after_training_and_only_if_there_is_one(
    training_job: dict[str, Any],
) -> None:
    steps = training_job["steps"]
    reader, writer = roles(training_job)
    train = steps.index(step_that_runs(training_job, "train"))
    store = next(i for i, step in enumerate(steps) if step["name"] == "Store the artifacts")
    assert steps.index(reader) < train < steps.index(writer) < store
    assert all("vars.TRAINYARD_AWS_ROLE != ''" in role["if"] for role in (reader, writer))
    rights = {"contents": "read", "id-token": "write", "attestations": "write"}
    assert training_job["permissions"] == rights


def test_a_role_that_cannot_be_assumed_leaves_the_time_that_is_reserved_for_storing(
    training_job: dict[str, Any],
) -> None:
    steps = training_job["steps"]
    after = steps[steps.index(step_that_runs(training_job, "train")) :]
    minutes = sum(int(role["timeout-minutes"]) for role in roles({"steps": after}))
    assert minutes == ROLE_MINUTES
    for reserved in (STORING_MINUTES, LEAST_STORING_MINUTES):
        assert reserved - minutes >= 8 > 2 * minutes


def test_before_training_the_role_may_only_read_and_only_steps_that_read_have_its_keys(
    training_job: dict[str, Any],
) -> None:
    reader = roles(training_job)[0]
    assert reader["with"]["output-env-credentials"] == "false"
    policy = json.loads(reader["with"]["inline-session-policy"])
    actions = [action for statement in policy["Statement"] for action in statement["Action"]]
    assert actions == ["s3:ListBucket", "s3:GetObject", "kms:Decrypt"]
    given = [s["name"] for s in training_job["steps"] if "steps.reader.outputs" in str(s)]
    assert given == ["Bring what it goes on from", "Look for a proven run of the same"]


def test_the_check_on_a_hosted_runner_may_write_one_object_and_one_step_has_its_keys(training: Any) -> None:
    job = training.jobs["ready"]
    (role,) = roles(job)
    assert role["uses"] == roles(training.jobs["train"])[0]["uses"]
    assert role["with"]["output-env-credentials"] == "false"
    policy = json.loads(role["with"]["inline-session-policy"])
    writing = [s for s in policy["Statement"] if {"s3:PutObject", "s3:DeleteObject"} & set(s["Action"])]
    assert [s["Resource"] for s in writing] == ["arn:*:s3:::*/trainyard-readiness.*"]
    runbook = (Path(__file__).resolve().parents[2] / "docs/runbooks/permissions.md").read_text(
        encoding="utf-8"
    )
    found = re.search(r"### The check before a run\n.*?```json\n(.*?)```", runbook, re.S)
    assert found is not None
    documented = json.loads(found[1])["Statement"][-1]
    assert set(writing[0]["Action"]) == set(documented["Action"])
    assert documented["Resource"].endswith("/trainyard-readiness.*")
    for key in (READINESS, READINESS_SMALL, READINESS_PARTS):
        assert fnmatch.fnmatchcase(f"arn:aws:s3:::b/p/{key}", writing[0]["Resource"])
    assert len(role["with"]["inline-session-policy"]) < 2048, "what AWS takes at most"
    given = [s["name"] for s in job["steps"] if "steps.role.outputs" in str(s)]
    assert given == ["Check the store, the run number and the signing key"]
    assert job["environment"] == training.jobs["train"]["environment"]
    assert job["permissions"] == {"contents": "read", "id-token": "write"}


def test_both_checks_of_the_store_ask_for_the_same(training: Any) -> None:
    """On a hosted runner there is no directory of the run: identity and number are those of the plan."""
    name = "Check the store, the run number and the signing key"
    hosted, here = (
        next(step for step in training.jobs[job]["steps"] if step["name"] == name)
        for job in ("ready", "train")
    )
    known = {**training.jobs["train"]["env"], **here["env"]}
    for variable in (
        "CONFIG",
        "OVERRIDES",
        "STORE",
        "TRAINYARD_RUN_ID",
        "RUN_NUMBER",
        "TRAINYARD_SIGNING_KEY",
    ):
        assert hosted["env"][variable] == known[variable]


def test_a_run_is_followed_only_where_no_role_would_have_to_be_assumed_before_it(
    training_job: dict[str, Any],
) -> None:
    follower = next(step for step in training_job["steps"] if "--follow" in step.get("run", ""))
    assert "vars.TRAINYARD_AWS_ROLE == ''" in follower["if"]


def test_after_the_plan_nothing_looks_at_an_input(training: Any) -> None:
    for name, job in training.jobs.items():
        assert ("inputs." in str(job)) == (name == "plan"), name


def test_the_plan_hands_on_all_that_it_resolves_and_nothing_else(training: Any) -> None:
    variables = {"GITHUB_RUN_ID": "1", "GITHUB_RUN_NUMBER": "1", "GITHUB_SHA": "0" * 40}
    config = load_config(training.path.parents[2] / "configs" / "training_configuration.yaml").config
    plan = resolve(DispatchInputs("x.yaml"), config, first_segment(variables), variables=variables)
    declared = training.jobs["plan"]["outputs"]
    assert declared == {
        name: f"${{{{ steps.plan.outputs.{name} }}}}" for name in (*plan.outputs(), "expected")
    }
    used = set(re.findall(r"needs\.plan\.outputs\.(\w+)", training.text))
    assert used == set(declared)


def test_a_commit_of_the_segment_before_is_checked_before_any_of_its_code_runs(training: Any) -> None:
    checkout, check, newer, setup = training.jobs["plan"]["steps"][:4]
    assert newer["run"].startswith("git diff ")
    assert checkout["with"]["fetch-depth"] == "0"
    assert check["run"].startswith('git merge-base --is-ancestor HEAD "$GITHUB_SHA" ||')
    assert setup["uses"] == "./.github/actions/setup"
    told = next(step for step in training.jobs["tell"]["steps"] if "ref" in step.get("with", {}))
    assert told["with"]["ref"] == "${{ needs.plan.outputs.commit || github.sha }}"
    for name in ("train", "continue"):
        steps = training.jobs[name]["steps"]
        found = next(step for step in steps if step.get("uses", "").startswith("actions/checkout@"))
        assert found["with"]["ref"] == "${{ needs.plan.outputs.commit }}"


def test_a_workflow_that_is_newer_than_the_scripts_it_calls_is_named(
    training: Any, tmp_path: Path, shell: Shell
) -> None:
    [step] = [s for s in training.jobs["plan"]["steps"] if "git diff" in s.get("run", "")]
    person = "git -c user.name=A -c user.email=a@example.org -c commit.gpgsign=false commit --quiet"
    workflow = ".github/workflows/training_ci.yml"
    shell("git init --quiet && mkdir -p .github/workflows", tmp_path)
    for changed in (workflow, "other", workflow):
        shell(f"echo more >> {changed} && git add . && {person} --message {changed}", tmp_path)
    tip = shell("git rev-parse HEAD", tmp_path).stdout.strip()
    warned = []
    for back in (0, 1, 2):
        shell(f"git checkout --quiet --detach {tip}~{back}", tmp_path)
        warned.append("::warning::" in shell(step["run"], tmp_path, GITHUB_SHA=tip).stdout)
    assert warned == [False, True, True]


@pytest.mark.parametrize(
    ("system", "version", "there"),
    [
        ('NAME="Amazon Linux"\nID="amzn"\n', (3, 11), True),
        ("ID=amzn\n", (3, 13), True),
        ('ID="amzn"\n', (3, 9), False),
        ("ID=ubuntu\n", (3, 12), False),
        ("", (3, 12), False),
    ],
)
def test_amazon_linux_keeps_its_python_because_there_is_no_other_for_it(
    root: Path, tmp_path: Path, shell: Shell, system: str, version: tuple[int, int], there: bool
) -> None:
    action = yaml.load((root / ".github/actions/setup/action.yml").read_text(), Loader=yaml.BaseLoader)
    look, python, _ = action["runs"]["steps"]
    assert look["env"] == {"SYSTEM": "/etc/os-release"}
    assert python["if"] == f"${{{{ steps.{look['id']}.outputs.there != 'true' }}}}"
    if system:
        (tmp_path / "os-release").write_text(system)
    asked = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{asked}" "$2"\n')
    (tmp_path / "python3").chmod(0o755)
    output = tmp_path / "output"
    path = f"{tmp_path}:{os.environ['PATH']}"
    shell(look["run"], tmp_path, PATH=path, SYSTEM=str(tmp_path / "os-release"), GITHUB_OUTPUT=str(output))
    assert (output.exists() and output.read_text() == "there=true\n") is there


def test_a_job_says_which_attempt_its_outputs_are_of(
    training_job: dict[str, Any], tmp_path: Path, shell: Shell
) -> None:
    step = training_job["steps"][0]
    assert training_job["outputs"]["attempt"] == f"${{{{ steps.{step['id']}.outputs.attempt }}}}"
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_ENV")}
    shell(step["run"], tmp_path, GITHUB_RUN_ATTEMPT="3", **files)
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "attempt=3\n"
    assert re.fullmatch(r"TRAINYARD_JOB_STARTED=\d+\n", (tmp_path / "GITHUB_ENV").read_text())


def test_nothing_else_starts_a_training(training: Any) -> None:
    """A called job gets no secret of its environment, and its numbers are the caller's, which may collide."""
    assert set(training.content["on"]) == {"push", "schedule", "workflow_dispatch"}


def test_a_dispatch_offers_what_a_plan_knows_and_a_push_leaves_the_choice_to_it(training: Any) -> None:
    target = training.content["on"]["workflow_dispatch"]["inputs"]["target"]
    assert target["options"] == [str(place) for place in PLACES]
    assert target["default"] == target["options"][0]
    [plan] = [step for step in training.jobs["plan"]["steps"] if step.get("id") == "plan"]
    assert plan["env"]["TARGET"] == "${{ inputs.target }}"


def test_the_next_segment_is_dispatched_with_inputs_that_the_workflow_has(training: Any) -> None:
    handover = Handover(Segment("1", 1, 1, "0" * 40), DispatchInputs("x.yaml").inputs(), "main", "s3://a", 3)
    inputs = handover.inputs_of(handover.segment.next(step=1, died=False), manifest="run-1-manifest.json")
    assert inputs.keys() <= training.content["on"]["workflow_dispatch"]["inputs"].keys()


def test_the_manifest_is_signed_by_the_step_that_stores_it_and_attested_after_it(
    training_job: dict[str, Any],
) -> None:
    steps = training_job["steps"]
    store = step_that_runs(training_job, "training_artifact_sync")
    holders = [step["name"] for step in steps if "SIGNING_KEY" in str(step.get("env", {}))]
    assert holders == ["Check the store, the run number and the signing key", store["name"]]
    attest = next(step for step in steps if step.get("uses", "").startswith("actions/attest@"))
    assert steps.index(attest) > steps.index(store)
    asked = "vars.TRAINYARD_ATTEST == 'true'"
    assert attest["if"].startswith(f"${{{{ always() && {asked} && steps.store.outcome == 'success'")
    assert attest["with"]["subject-digest"] == "sha256:${{ steps.store.outputs.manifest_sha256 }}"


def uploads(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact@")]


def test_results_are_kept_for_thirty_days_even_of_a_failed_run(training_job: dict[str, Any]) -> None:
    [upload] = uploads(training_job)
    assert upload["with"]["retention-days"] == "30"
    assert "always()" in upload["if"]


def test_what_is_kept_is_what_was_gathered_and_never_the_run_directory(training: Any) -> None:
    [upload] = uploads(training.jobs["train"])
    gather = step_that_runs(training.jobs["train"], "gather_records")
    assert '--to "$RUNNER_TEMP/records"' in gather["run"]
    assert upload["with"]["path"] == "${{ runner.temp }}/records"
    [plan] = uploads(training.jobs["plan"])
    assert plan["with"]["path"] == "${{ runner.temp }}/plan.json"


def test_a_refused_artifact_is_a_warning_and_decides_nothing(
    training: Any, tmp_path: Path, shell: Shell
) -> None:
    for name in ("plan", "train"):
        job = training.jobs[name]
        [upload] = uploads(job)
        assert upload["continue-on-error"] == "true"
        follower = job["steps"][job["steps"].index(upload) + 1]
        assert f"steps.{upload['id']}.outcome == 'failure'" in follower["if"]
        said = shell(follower["run"], tmp_path, GITHUB_RUN_ID="99", RUN_DIR="runs/gh-99").stdout
        assert said.startswith("::warning::GitHub refused ")
        assert said.count("\n") == 1


def test_keeping_the_artifact_takes_nothing_of_the_time_for_storing(training_job: dict[str, Any]) -> None:
    """It comes after all that must not be lost, and ends soon."""
    steps = training_job["steps"]
    upload = next(s for s in steps if s.get("uses", "").startswith("actions/upload-artifact@"))
    for script in ("training_artifact_sync", "prove_run", "training_dashboard"):
        assert steps.index(upload) > steps.index(step_that_runs(training_job, script)), script
    assert int(upload["timeout-minutes"]) <= STORING_MINUTES / 2
    told = next(s for s in steps if "notify_slack.py degraded" in s.get("run", ""))
    assert steps.index(upload) < steps.index(told), "that it was refused is part of the ending"


def test_reports_and_messages_come_after_failures_and_never_decide(training_job: dict[str, Any]) -> None:
    told = [s for s in training_job["steps"] if "notify_slack" in s.get("run", "")]
    summary = next(s for s in training_job["steps"] if "training_dashboard" in s.get("run", ""))
    assert all(step["continue-on-error"] == "true" for step in (*told, summary))
    assert "always()" in summary["if"]
    verdicts = {calls(step["run"])[0][1][0]: step.get("if") for step in told}
    assert set(verdicts) == {"$MOMENT", "degraded", "succeeded", "stopped", "failed"}
    assert verdicts["succeeded"] == "${{ success() && steps.train.outcome == 'success' }}"


def test_nothing_that_decides_may_fail_in_silence(training_job: dict[str, Any]) -> None:
    quiet = [step for step in training_job["steps"] if "continue-on-error" in step]
    scripts = {calls(step["run"])[0][0] for step in quiet if "run" in step}
    unread = {"notify_slack", "training_dashboard", "gather_records", "prune_runs"}
    assert scripts == unread | {"find_proven_run"}, "where nothing is found out, it trains"
    reading = "Assume the AWS role for reading"  # may fail only where it looks for a proven run
    kept = [reading, "Keep report and records for 30 days"]
    assert [step["name"] for step in quiet if "uses" in step] == kept


def test_the_daily_run_is_off_the_hour(training: Any) -> None:
    minute = training.content["on"]["schedule"][0]["cron"].split()[0]
    assert minute not in ("0", "00", "30", "*")


def test_what_can_change_a_result_starts_a_run(training: Any) -> None:
    push = training.content["on"]["push"]
    assert push["branches"] == ["main"]
    assert {"src/**", "scripts/**", "configs/**", "requirements-training.txt"} <= set(push["paths"])


def test_a_segment_goes_on_in_the_directory_and_under_the_number_of_the_one_before(
    training_job: dict[str, Any],
) -> None:
    environment = training_job["env"]
    assert environment["TRAINYARD_RUN_ID"] == "${{ needs.plan.outputs.run_id }}"
    assert environment["RUN_DIR"] == "${{ needs.plan.outputs.run_dir }}"
    assert "GITHUB_RUN_NUMBER" not in str(training_job)
    checkout = next(s for s in training_job["steps"] if s.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"]["clean"] == "false"
