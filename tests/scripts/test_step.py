"""The steps of training_ci.yml: the commands that each runs, their rights, and its outputs."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard import pipeline
from trainyard.commands import notify, step_wait, train
from trainyard.commands import step as step_command
from trainyard.errors import CheckFailedError, ConfigError, ExitCode
from trainyard.pipeline import Step, StepRunner

ROOT = Path(__file__).resolve().parents[2]
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
PLAN: dict[str, Any] = {
    "jobs": {"ready": False, "train": True, "eks": False},
    "config": "configs/smoke.yaml",
    "overrides": "training.max_steps=5\nmodel.name=my model",
    "run_id": "gh-4711",
    "run_dir": "runs/gh-4711",
    "run_number": "812",
    "segment": "1",
    "most_segments": "20",
    "resume": "none",
    "may_begin": "true",
    "thread": "",
    "moment": "started",
    "reason": "",
    "fetch": "false",
    "store": "s3://ml-runs/phase2",
    "deadline": "450m",
    "job_minutes": 480,
    "unless_proven": "false",
    "branch": "main",
    "expected": "{}",
    "prepares": True,
    "runner": '["gpu"]',
}
VARIABLES = {"TRAINYARD_AWS_ROLE": ROLE, "TRAINYARD_SIGNING": "keyless", "SECRET": "x"}


class World:
    """The steps that are taken, and the step outputs."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.folder, self.environment = folder, environment
        self.steps: list[Step] = []
        self.access: list[str] = []
        self.exit_codes: dict[str, int] = {}
        self.proven: int | None = None
        """The answer of the search for a proven run; -1 for an error."""
        self.processes: list[list[str]] = []

    def run(self, runner: StepRunner, *steps: Step) -> int:
        """Note steps instead of `StepRunner.run`; notices are posted."""
        for step in steps:
            if step.name == "proven":
                runner.result = (self.proven, "", ())
                return ExitCode.REFUSED if self.proven == -1 else ExitCode.DONE
            self.steps.append(step)
            self.access.append(os.environ.get("TRAINYARD_AWS_ACCESS", ""))
            if code := self.exit_codes.get(step.name, 0):
                return code
        return ExitCode.DONE

    def step(self, name: str, plan: dict[str, Any] | None = None, **contexts: Any) -> int:
        self.environment.setenv("TRAINYARD_PLAN", json.dumps({**PLAN, **(plan or {})}))
        self.environment.setenv("TRAINYARD_VARIABLES", json.dumps(VARIABLES))
        for variable, value in contexts.items():
            self.environment.setenv(variable, value if isinstance(value, str) else json.dumps(value))
        return step_command.main([name])

    def outputs(self) -> dict[str, str]:
        file = self.folder / "output"
        lines = file.read_text().splitlines() if file.exists() else []
        return {lines[i].partition("<<")[0]: lines[i + 1] for i in range(0, len(lines), 3)}

    @property
    def names(self) -> list[str]:
        return [step.name for step in self.steps]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in (
        *("TRAINYARD_RUN_ID", "TRAINYARD_AWS_ROLE", "TRAINYARD_AWS_ACCESS", "TRAINYARD_SIGNING"),
        *("JOB_MINUTES", "TRAINYARD_JOB_MINUTES", "AWS_REGION", "RUNNER_ENVIRONMENT"),
        *("GITHUB_RUN_ATTEMPT", "STEPS", "NEEDS", "GITHUB_EVENT_NAME"),
        *("SLACK_WEBHOOK_URL", "SLACK_BOT_TOKEN", "TRAINYARD_SUPERSEDE", "TRAINYARD_FOLLOW", "RESUME"),
    ):
        monkeypatch.setenv(name, "x")  # so that a value that the step sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("GITHUB_RUN_ID", "99")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    there = World(tmp_path, monkeypatch)
    monkeypatch.setattr(StepRunner, "run", lambda runner, *steps: there.run(runner, *steps))

    def replace_process(command: list[str]) -> None:
        there.processes.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(step_command, "replace_process", replace_process)
    return there


@pytest.mark.parametrize(
    ("name", "steps", "access"),
    [
        ("ready", ["readiness"], "check"),
        ("check", ["machine", "readiness"], "check"),
        ("prepare", ["prepare"], ""),
        ("fetch", ["fetch", "claim"], "write"),
        ("start", ["notify"], ""),
        ("prove", ["prove"], "read"),
        ("report", ["report", "records"], "read"),
    ],
)
def test_a_step_of_the_workflow_takes_those_of_the_pipeline_with_no_more_rights_than_it_needs(
    world: World, name: str, steps: list[str], access: str
) -> None:
    assert world.step(name) == 0
    assert world.names == steps
    assert set(world.access) == {access}
    assert bool(os.environ.get("TRAINYARD_AWS_ROLE")) is bool(access), "a program that trains has no role"
    assert os.environ["TRAINYARD_RUN_ID"] == "gh-4711"
    assert "SECRET" not in os.environ


def test_the_trainer_replaces_the_process_with_every_value_of_the_plan_and_without_the_role(
    world: World,
) -> None:
    with pytest.raises(SystemExit):
        world.step("train", RESUME="runs/gh-4711/checkpoints/step-00000010", TRAINYARD_FOLLOW="")
    [command] = world.processes
    args = train.parse_args(command[command.index("train") + 1 :])
    assert (args.config, args.run_dir) == (Path("configs/smoke.yaml"), Path("runs/gh-4711"))
    assert args.set == ["training.max_steps=5", "model.name=my model"]
    assert (args.deadline, args.resume) == (27000.0, "runs/gh-4711/checkpoints/step-00000010")
    assert "TRAINYARD_AWS_ROLE" not in os.environ
    assert os.environ["TRAINYARD_FOLLOW"] == "true", "the trainer reserves less time for storing"


@pytest.mark.parametrize("follow", ["", "off", "false"])
def test_checkpoints_are_stored_beside_the_training_unless_that_is_switched_off(
    world: World, follow: str
) -> None:
    followed: list[dict[str, Any]] = []

    def follow_run(**values: Any) -> int:
        followed.append(values)
        return 0

    world.environment.setattr(step_command, "follow_run", follow_run)
    assert world.step("follow", TRAINYARD_FOLLOW=follow) == 0
    assert os.environ["TRAINYARD_AWS_ACCESS"] == "write"
    behind = {"behind": world.folder / "follower"}
    stored = {"run_dir": Path("runs/gh-4711"), "store": PLAN["store"], "run_number": 812}
    assert followed == ([] if follow else [{**stored, **behind}])


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("fetch", ["true", "false"])
@pytest.mark.parametrize("resume", ["none", "auto", "s3://ml-runs/manifests/run-1-manifest.json"])
def test_a_job_that_is_run_again_searches_the_store_although_its_plan_did_not(
    world: World, resume: str, fetch: str, attempt: str
) -> None:
    world.step("fetch", {"resume": resume, "fetch": fetch}, GITHUB_RUN_ATTEMPT=attempt)
    step, claim = world.steps
    assert claim.values["may_adopt"] is step.values["searches"]
    assert step.values["searches"] is (attempt == "2" or fetch == "true")
    assert step.values["resume"] == ("auto" if attempt == "2" and resume == "none" else resume)


@pytest.mark.parametrize("segment", ["1", "2"])
@pytest.mark.parametrize("ready", [True, False])
def test_the_store_is_checked_once_and_not_later(world: World, ready: bool, segment: str) -> None:
    world.step("check", {"jobs": {**PLAN["jobs"], "ready": ready}, "segment": segment})
    assert ("readiness" in world.names) is (not ready and segment == "1")


@pytest.mark.parametrize("store", ["file:///mnt/storage/store", "s3://ml-runs/phase2"])
@pytest.mark.parametrize("minutes", [60, 355, 360, 361, 480])
@pytest.mark.parametrize("machine", ["self-hosted", "github-hosted", ""])
def test_a_machine_of_github_that_loses_the_run_is_refused_before_anything_trains(
    world: World, machine: str, minutes: int, store: str
) -> None:
    """GitHub ends each job on its own machine after six hours, and destroys the machine."""
    plan = {"job_minutes": minutes, "store": store}
    is_lost = machine == "github-hosted" and (minutes > 360 or store.startswith("file://"))
    if not is_lost:
        assert world.step("check", plan, RUNNER_ENVIRONMENT=machine) == 0
        return
    with pytest.raises(CheckFailedError, match="Nothing was trained"):
        world.step("check", plan, RUNNER_ENVIRONMENT=machine)
    assert world.steps == []
    assert "gh variable set TRAINYARD_" in world.outputs()["reason"]
    assert world.outputs()["exit_code"] == "1"


@pytest.mark.parametrize("proof", ["success", "failure", "skipped"])
@pytest.mark.parametrize("keep", ["", "5", "all"])
def test_old_runs_are_removed_only_after_a_proof(world: World, keep: str, proof: str) -> None:
    world.step("report", STEPS={"prove": {"outcome": proof}}, TRAINYARD_KEEP_RUNS=keep)
    assert ("prune" in world.names) is (proof == "success" and keep != "all")
    if "prune" in world.names:
        assert world.steps[-1].values["keep"] == (keep or "3")


def test_a_number_of_runs_to_keep_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_KEEP_RUNS: 'few' is not a whole number above 0"):
        step_command.prune(tmp_path / "run", store=tmp_path.as_uri(), keep="few")


@pytest.mark.parametrize(
    ("outcome", "code", "stored"),
    [("success", "0", True), ("failure", "75", True), ("failure", "1", False), ("cancelled", "", False)],
)
def test_what_is_done_or_stopped_with_a_checkpoint_is_stored_and_what_failed_is_not(
    world: World, outcome: str, code: str, stored: bool
) -> None:
    steps = {"train": {"outcome": outcome, "outputs": {"exit_code": code}}}
    assert world.step("store", STEPS=steps) == 0
    assert (world.names == ["store"]) is stored
    assert (world.outputs().get("done") == "true") is (outcome == "success"), "only what is done is attested"


def test_what_stopped_at_the_limit_of_its_cost_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is 1, so that nothing continues it; its record shows that it has a good checkpoint."""
    monkeypatch.setattr(
        pipeline, "read_record", lambda _path: {"outcome": {"status": "stopped", "exit_code": 1}}
    )
    assert world.step("store", STEPS={"train": {"outcome": "failure", "outputs": {"exit_code": "1"}}}) == 0
    assert world.names == ["store"]


def test_the_exit_code_of_a_step_is_an_output(world: World) -> None:
    world.exit_codes = {"store": 4}
    steps = {"train": {"outcome": "success", "outputs": {"exit_code": "0"}}}
    assert world.step("store", STEPS=steps) == 4
    assert world.outputs() == {"exit_code": "4"}


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("unless_proven", ["true", "false"])
@pytest.mark.parametrize("proven", [7, None, -1])
def test_only_what_nobody_requested_is_left_out_where_it_is_proven(
    world: World, proven: int | None, unless_proven: str, attempt: str
) -> None:
    """Without an answer from the search, it trains."""

    world.proven = proven
    world.step("fetch", {"unless_proven": unless_proven}, GITHUB_RUN_ATTEMPT=attempt)
    is_skipped = proven == 7 and unless_proven == "true" and attempt == "1"
    assert world.outputs().get("skip", "") == ("run 7 is proven" if is_skipped else "")
    assert (world.names == ["fetch", "claim"]) is not is_skipped


RUNS = [
    {"run_number": 812, "status": "in_progress", "html_url": "u/812"},
    {"run_number": 813, "status": "completed", "html_url": "u/813"},
    {"run_number": 815, "status": "queued", "html_url": "u/815"},
]


@pytest.mark.parametrize("asked", ["true", "", "false"])
@pytest.mark.parametrize("event", ["push", "schedule", "workflow_dispatch"])
@pytest.mark.parametrize(("number", "newer"), [("812", "u/815"), ("815", "")])
def test_a_superseded_push_is_dropped_by_choice(
    world: World, serve_github: Callable[..., str], number: str, newer: str, event: str, asked: str
) -> None:
    def answer(_method: str, path: str, *_: Any) -> tuple[int, Any]:
        assert "/actions/workflows/training_ci.yml/runs?event=push&branch=main" in path
        return 200, {"workflow_runs": RUNS}

    world.environment.setattr(step_command, "proven_run", lambda *_: "")
    known = {"GITHUB_API_URL": serve_github(answer), "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t"}
    known |= {"GITHUB_RUN_NUMBER": number, "GITHUB_EVENT_NAME": event, "TRAINYARD_SUPERSEDE": asked}
    world.step("fetch", {"unless_proven": "true"}, **known)
    is_dropped = bool(newer) and event == "push" and asked == "true"
    assert (newer in world.outputs().get("skip", "") and "skip" in world.outputs()) is is_dropped
    assert (world.names == []) is is_dropped


def test_the_end_of_the_job_is_reported_once_and_handed_on(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {
        "train": {"outcome": "failure", "outputs": {"exit_code": "75"}},
        "store": {"outcome": "success", "outputs": {"manifest": "run-812-manifest.json"}},
        "prove": {"outcome": "failure", "outputs": {"step": "500", "stored": "true"}},
        "keep": {"outcome": "failure"},
    }
    world.environment.setenv("GITHUB_ACTIONS", "true")
    assert world.step("notify", STEPS=steps, JOB_STATUS="failure", GITHUB_RUN_ATTEMPT="2") == 0
    end = json.loads(world.outputs()["end"])
    assert (end["continues"], end["reported"], end["exit_code"], end["step"]) == ("2", "2", "75", "500")
    assert (end["stored"], end["manifest"], end["outage"]) == ("true", "run-812-manifest.json", "")
    told = capsys.readouterr()
    assert "Training 812 stopped" in told.out
    assert "::warning::GitHub refused the artifact" in told.err


@pytest.mark.parametrize("attempt", ["1", "2"])
def test_the_last_job_reports_what_no_job_has_reported_in_slack_and_in_the_summary(
    world: World, capsys: pytest.CaptureFixture[str], attempt: str
) -> None:
    end = json.dumps({"reported": "1", "continues": "1", "thread": ""})
    needs = {
        "plan": {"result": "success", "outputs": {"plan": json.dumps(PLAN)}},
        "train": {"result": "failure", "outputs": {"end": end}},
    }
    steps = {"continue": {"outcome": "failure", "outputs": {"reason": "no further segment"}}}
    world.environment.setattr(notify, "annotations", lambda *_: [])
    assert world.step("notify", NEEDS=needs, STEPS=steps, GITHUB_RUN_ATTEMPT=attempt) == 0
    told, summary = capsys.readouterr().out, (world.folder / "summary").read_text()
    assert "Training 812 failed" in told
    for text in (told, summary):
        assert "no further segment" in text
        assert ("its runner died" in text) is (attempt == "2"), (
            "it reported its end in the first attempt only"
        )
    assert "Next: `gh run " in summary


@pytest.mark.parametrize("text", ["[]", "{", "x", "{}"])
def test_a_plan_that_is_none_is_refused(world: World, text: str) -> None:
    world.environment.setenv("TRAINYARD_PLAN", text)
    with pytest.raises(ConfigError, match="TRAINYARD_PLAN"):
        step_command.main(["check"])


STATUSES = [
    (["in_progress"], None),
    (["completed"], None),
    (["queued", "in_progress"], None),
    (["queued"], "no runner with its labels"),
    (["waiting"], "waits for the approval"),
    (["pending"], "queued behind another training"),
    ([None], "queued behind another training"),
]


@pytest.mark.parametrize(("statuses", "reported"), STATUSES)
def test_a_job_that_nobody_has_taken_is_reported_after_a_quarter_of_an_hour(
    world: World,
    serve_github: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    statuses: list[str | None],
    reported: str | None,
) -> None:
    seen = [*statuses]

    def answer(*_: Any) -> tuple[int, Any]:
        status = seen.pop(0) if len(seen) > 1 else seen[0]
        jobs = [{"name": "Plan", "status": "completed"}]
        return 200, {"jobs": jobs + ([{"name": "Train and prove", "status": status}] if status else [])}

    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    world.environment.setattr(time, "sleep", sleep)
    world.environment.setattr(time, "monotonic", lambda: now[0])
    for name, value in {
        "GITHUB_API_URL": serve_github(answer),
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_TOKEN": "t",
        "TRAINYARD_PLAN": json.dumps(PLAN),
        "GITHUB_ACTIONS": "true",
    }.items():
        world.environment.setenv(name, value)
    assert step_wait.main([]) == ExitCode.DONE
    told = capsys.readouterr()
    if reported is None:
        assert "Training 812" not in told.out
        assert sum(slept) < 60
        return
    assert 900 <= sum(slept) <= 930
    assert "has waited for 15 minutes" in told.out and reported in told.out
    assert "::warning title=No runner has taken the job::" in told.err
    assert reported in (world.folder / "summary").read_text()
