"""The pipeline in a job of GitHub: by the inputs of the action, and by the plan of a workflow run."""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.answering import answering_slack
from tests.cases import each_case
from tests.scripts.conftest import ROOT

from trainyard import pipeline
from trainyard.commands import notify, step_action, step_notify, step_wait
from trainyard.commands.run import RunRequest
from trainyard.errors import ConfigError, ExitCode
from trainyard.gateways.github_api import GitHub
from trainyard.gateways.process import environment_without, withheld_names
from trainyard.pipeline import Step, StepRunner

ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
PLAN: dict[str, Any] = {"trains": True, "target": "gpu-runner", "kind": "program", "config": "trainyard.yaml"}
PLAN |= {"overrides": "program.steps=5\nmodel.name=my model", "run_id": "gh-4711", "run_dir": "runs/gh-4711"}
PLAN |= {"run_number": "812", "title": "812", "segment": "1", "most_segments": "20", "resume": "none"}
PLAN |= {"thread": "", "reason": "", "fetch": "false", "store": "s3://ml-runs/phase2", "role": ROLE}
PLAN |= {"region": "", "deadline": "450m", "job_minutes": 480, "unless_proven": "false", "branch": "main"}
PLAN |= {"expected": "{}", "runner": ["gpu"]}


class World:
    """The steps that are taken, and the step outputs."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.folder, self.environment = folder, environment
        self.steps: list[Step] = []
        self.exit_codes: dict[str, int] = {}
        self.proven: int | None = None
        """The answer of the search for a proven run; -1 for an error."""

    def run(self, runner: StepRunner, *steps: Step) -> int:
        """Note steps instead of `StepRunner.run`."""
        for step in steps:
            if step.name == "proven":
                runner.result = (self.proven, "", ())
                return ExitCode.REFUSED if self.proven == -1 else ExitCode.DONE
            self.steps.append(step)
            runner.result = SimpleNamespace(resume="auto")
            runner.codes[step.name] = code = self.exit_codes.get(step.name, 0)
            posted = notify.Posted(step.values["notice"], "") if step.name == "notify" else None
            runner.results[step.name] = posted
            if step.name == "train" and code in (0, 75):
                (self.folder / "runs/gh-4711").mkdir(parents=True, exist_ok=True)
                outcome = {"status": "stopped" if code else "succeeded", "exit_code": code, "steps": 500}
                (self.folder / "runs/gh-4711/run.json").write_text(json.dumps({"outcome": outcome}))
            if code:
                return code
        return ExitCode.DONE

    def action(self, plan: dict[str, Any] | None = None, **variables: str) -> int:
        self.environment.setenv("TRAINYARD_PLAN", json.dumps({**PLAN, **(plan or {})}))
        for name, value in variables.items():
            self.environment.setenv(name, value)
        return step_action.main([])

    def outputs(self) -> dict[str, str]:
        file = self.folder / "output"
        lines = file.read_text().splitlines() if file.exists() else []
        return {lines[i].partition("<<")[0]: lines[i + 1] for i in range(0, len(lines), 3)}

    @property
    def end(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.outputs()["end"])
        return found

    @property
    def names(self) -> list[str]:
        return [step.name for step in self.steps]

    def told(self) -> list[str]:
        return [step.values["notice"].event for step in self.steps if step.name == "notify"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in (
        *("TRAINYARD_RUN_ID", "TRAINYARD_AWS_ROLE", "TRAINYARD_AWS_REGION", "TRAINYARD_COMMAND_LINE"),
        *("JOB_MINUTES", "TRAINYARD_JOB_MINUTES", "RUNNER_ENVIRONMENT", "TRAINYARD_FOLLOW", "TRAINYARD_PASS"),
        *("GITHUB_RUN_ATTEMPT", "STEPS", "NEEDS", "GITHUB_EVENT_NAME", "RUN_DIR", "FINISH", "PROGRAM_ENV"),
        *("SLACK_WEBHOOK_URL", "SLACK_BOT_TOKEN", "TRAINYARD_SUPERSEDE", "TRAINYARD_KEEP_RUNS"),
    ):
        monkeypatch.setenv(name, "x")  # so that a value that the step sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("GITHUB_RUN_ID", "99")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainyard.yaml").write_text("recipe: command\nprogram: {command: [python3, train.py]}\n")
    there = World(tmp_path, monkeypatch)
    monkeypatch.setattr(StepRunner, "run", lambda runner, *steps: there.run(runner, *steps))
    return there


ORDER = ["machine", "readiness", "claim", "notify", "train", "store", "prove", "report", "notify", "notify"]


def test_a_plan_is_the_pipeline_with_every_value_and_its_end_is_handed_on(world: World) -> None:
    assert world.action(GITHUB_RUN_ATTEMPT="1") == 0
    assert world.names == [*ORDER, "records", "prune"]
    assert world.told() == ["started", "degraded", "succeeded"]
    train = next(step for step in world.steps if step.name == "train").values["order"]
    assert (train.config, train.run_dir) == (Path("trainyard.yaml"), Path("runs/gh-4711"))
    assert (train.changes, train.deadline) == (("program.steps=5", "model.name=my model"), 27000.0)
    claim = next(step for step in world.steps if step.name == "claim").values
    assert (claim["run_number"], claim["run_id"]) == (812, "gh-4711")
    notice = world.steps[3].values["notice"]
    assert (notice.lineage, notice.segment, notice.plan) == ("812", "1/20", "{}")
    assert (world.end["continues"], world.end["reported"], world.end["stored"]) == ("", "1", "true")
    assert os.environ["TRAINYARD_FOLLOW"] == "true", "the trainer reserves less time for storing"


def test_what_stopped_early_is_handed_to_the_next_segment(world: World) -> None:
    world.exit_codes = {"train": 75}
    assert world.action(GITHUB_RUN_ATTEMPT="2") == 75
    assert world.told() == ["started", "degraded", "stopped"]
    end = world.end
    assert (end["continues"], end["reported"], end["exit_code"]) == ("2", "2", "75")
    assert (end["step"], end["stored"], end["outage"]) == ("500", "true", "")


def test_what_stopped_at_the_limit_of_its_cost_is_stored(world: World) -> None:
    """Its exit code is 1, so that nothing continues it; its record shows that it has a good checkpoint."""
    stopped = {"outcome": {"status": "stopped", "exit_code": 1}}
    world.environment.setattr(pipeline, "read_record", lambda _path: stopped)
    world.exit_codes = {"train": 1}
    (world.folder / "runs/gh-4711").mkdir(parents=True)
    (world.folder / "runs/gh-4711/run.json").write_text("{}")
    world.environment.setattr(
        step_action, "pipeline_to_run", lambda request: nullcontext(pipeline_of_run(request))
    )
    assert world.action() == 1
    assert "store" in world.names and world.told()[-1] == "stopped"
    assert world.end["continues"] == ""


@each_case("segment", ["1", "2"])
@each_case("step", ["machine", "readiness", "claim", "store"])
@each_case("code", [1, 4])
def test_an_outage_of_a_later_segment_is_no_end(world: World, code: int, step: str, segment: str) -> None:
    shutil.rmtree(world.folder / "runs", ignore_errors=True)
    world.steps, world.exit_codes = [], {step: code}
    (world.folder / "output").write_text("")
    assert world.action({"segment": segment, "fetch": "false"}, GITHUB_RUN_ATTEMPT="1") == code
    is_outage = code == 4 and segment == "2" and step != "machine"
    assert (world.end["outage"], world.end["continues"]) == (("true", "1") if is_outage else ("", ""))
    assert ("failed" in world.told()) is not (code == 4 and segment == "2")


@each_case("attempt", ["1", "2"])
@each_case("unless_proven", ["true", "false"])
@each_case("proven", [7, None, -1])
def test_only_what_nobody_requested_is_left_out_where_it_is_proven(
    world: World, proven: int | None, unless_proven: str, attempt: str
) -> None:
    """Without an answer from the search, it trains."""
    shutil.rmtree(world.folder / "runs", ignore_errors=True)
    world.proven, world.steps = proven, []
    assert world.action({"unless_proven": unless_proven}, GITHUB_RUN_ATTEMPT=attempt) == 0
    is_skipped = proven == 7 and unless_proven == "true" and attempt == "1"
    assert ("train" in world.names) is not is_skipped
    assert world.end["reported"] == attempt, "green, and nobody has to hear of it"


RUNS = [
    {"run_number": 812, "status": "in_progress", "html_url": "u/812"},
    {"run_number": 813, "status": "completed", "html_url": "u/813"},
    {"run_number": 815, "status": "queued", "html_url": "u/815"},
]


@pytest.mark.parametrize("asked", ["true", "", "false"])
@pytest.mark.parametrize("event", ["push", "schedule"])
@pytest.mark.parametrize(("number", "newer"), [("812", "u/815"), ("815", "")])
def test_a_superseded_push_is_dropped_by_choice(
    world: World, serve_github: Callable[..., str], number: str, newer: str, event: str, asked: str
) -> None:
    def answer(_method: str, path: str, *_: Any) -> tuple[int, Any]:
        assert "/actions/workflows/training.yml/runs?event=push&branch=main" in path
        return 200, {"workflow_runs": RUNS}

    known = {"GITHUB_API_URL": serve_github(answer), "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t"}
    known |= {"GITHUB_RUN_NUMBER": number, "GITHUB_EVENT_NAME": event, "TRAINYARD_SUPERSEDE": asked}
    known["GITHUB_WORKFLOW_REF"] = "o/r/.github/workflows/training.yml@refs/heads/main"
    world.action({"unless_proven": "true"}, **known)
    is_dropped = bool(newer) and event == "push" and asked == "true"
    assert ("train" in world.names) is not is_dropped
    assert (world.folder / "summary").exists() is is_dropped


@each_case("proof", [0, 1])
@each_case("keep", ["", "5", "all"])
def test_old_runs_are_removed_only_after_a_proof(world: World, keep: str, proof: int) -> None:
    shutil.rmtree(world.folder / "runs", ignore_errors=True)
    world.steps, world.exit_codes = [], {"prove": proof}
    world.action(TRAINYARD_KEEP_RUNS=keep)
    pruned = [step.values["keep"] for step in world.steps if step.name == "prune"]
    assert pruned == ([keep or "3"] if proof == 0 and keep != "all" else [])


def test_a_killed_step_is_finished_once_its_trainer_has_saved(world: World) -> None:
    folder = world.folder / "runs/gh-4711"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    world.environment.setattr(step_action, "pipeline_of", lambda request: pipeline_of_run(request))
    is_alive = iter([True, True, True, False, False])  # its command is gone, and its program is not
    world.environment.setattr(step_action, "is_alive", lambda _: next(is_alive))
    world.environment.setattr(step_action, "_SAVING_SECONDS", 0)
    assert world.action(FINISH="true") == ExitCode.INTERRUPTED
    assert world.names == ["records"], "what still trains is not judged"
    world.environment.setattr(step_action, "_SAVING_SECONDS", 60)
    world.steps = []
    assert world.action(FINISH="true", JOB_STATUS="cancelled") == ExitCode.INTERRUPTED
    assert world.names == ["store", "prove", "report", "notify", "notify", "records", "prune"]
    assert world.steps[3].values["notice"].job_status == "cancelled"
    assert (world.end["continues"], world.end["stored"]) == ("", "true")


def pipeline_of_run(request: RunRequest) -> pipeline.Pipeline:
    assert request.run_dir is not None and request.config is not None
    return pipeline.Pipeline(
        run_dir=request.run_dir, config=request.config, store=request.store, notifies=True, prepares=False
    )


@each_case("target", ["gpu-runner", "eks"])
@each_case("store", ["s3://ml-runs", "file:///srv"])
def test_the_role_is_for_the_store_and_what_the_program_alone_gets_is_hidden(
    world: World, capsys: pytest.CaptureFixture[str], store: str, target: str
) -> None:
    world.environment.setenv("PROGRAM_ENV", "HF_TOKEN=hf_secret\n\nNAME=a=b\n")
    step_action.set_job_environment({**PLAN, "store": store, "target": target})
    assert (os.environ.get("TRAINYARD_AWS_ROLE") == ROLE) is (store.startswith("s3://") or target == "eks")
    assert "::add-mask::hf_secret\n::add-mask::a=b\n" in capsys.readouterr().out
    world.environment.setenv("TRAINYARD_PLAN", json.dumps(PLAN))
    world.environment.setenv("GITHUB_TOKEN", "ghs_of_the_pipeline")
    given = environment_without(withheld_names(os.environ))
    assert (given["HF_TOKEN"], given["NAME"]) == ("hf_secret", "a=b")
    assert not {"PROGRAM_ENV", "GITHUB_TOKEN", "TRAINYARD_AWS_ROLE"} & given.keys()
    world.environment.setenv("PROGRAM_ENV", "HF_TOKEN hf_secret")
    with pytest.raises(ConfigError, match="line 1 is not NAME=VALUE") as caught:
        step_action.set_job_environment(PLAN)
    assert "hf_secret" not in str(caught.value)


@each_case(
    ("variables", "run_id"),
    [
        ({}, "gh-7-train"),
        ({"MATRIX": "null", "USED_BY": "__OWNER_trainyard"}, "gh-7-train"),
        ({"USED_BY": "__OWNER_trainyard_2"}, "gh-7-train-2"),
        ({"USED_BY": "second"}, "gh-7-train-second"),
        ({"MATRIX": '{"seed": 1}'}, "gh-7-train-1cbf6a09"),
        ({"MATRIX": '{"seed": 2}'}, "gh-7-train-d3d8e1cb"),
    ],
)
def test_each_cell_and_each_use_in_a_job_has_a_run_of_its_own(variables: dict[str, str], run_id: str) -> None:
    known = {"GITHUB_RUN_ID": "7", "GITHUB_JOB": "train", "COMMAND": "python train.py", **variables}
    request = step_action.request_of(known)
    assert len(request.run_id) == len(run_id)
    assert request.run_id == run_id or "MATRIX" in variables
    assert request.run_dir == Path("runs") / request.run_id
    assert step_action.request_of({**known, "GITHUB_RUN_ATTEMPT": "2"}).run_id == request.run_id


EPOCHS = ["python", "train.py", "--epochs", "3"]


@each_case(
    ("command", "words"),
    [
        ("python train.py --epochs 3", EPOCHS),
        ("python train.py \\\n  --epochs 3 \\ \n --lr 1", [*EPOCHS, "--lr", "1"]),
        ("python -c 'a\nb'", ["python", "-c", "a\nb"]),
        ("python a.py\npython b.py", "2 lines are one command: end each line but the last with a backslash"),
        ("SEED=1 python a.py", "no shell runs it, so SEED=... cannot begin it. Set SEED by env: of the step"),
        ("echo it's", "Write an apostrophe"),
    ],
)
def test_a_command_is_one_line_or_is_continued(command: str, words: list[str] | str) -> None:
    if isinstance(words, list):
        assert step_action.words_of(command) == words
        return
    with pytest.raises(ConfigError, match=words):
        step_action.words_of(command)


def test_a_gpu_that_does_not_answer_is_red_before_training_in_log_summary_and_slack(
    program: Callable[..., Any], tmp_path: Path
) -> None:
    """A process of its own, because the step changes the environment of its process."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: no communication with the driver'\nexit 9\n")
    driver.chmod(0o755)
    config = str(ROOT / "configs" / "training_configuration.yaml")
    plan = {**PLAN, "kind": "trainer", "config": config, "overrides": "", "role": "", "store": "file:///s"}
    variables = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "1", "TRAINYARD_PLAN": json.dumps(plan)}
    variables["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary")
    variables["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    with answering_slack() as slack:
        done = program("step action", SLACK_WEBHOOK_URL=f"{slack.url}/hook", **variables)
    assert done.returncode == 1
    assert "nvidia-smi failed (exit code 9)" in done.stderr and "fix: " in done.stderr
    assert "### ❌ Not started: " in (tmp_path / "summary").read_text()
    (message,) = map(json.dumps, slack.bodies)
    assert "Training 812 failed" in message
    assert "gpu: nvidia-smi failed (exit code 9)" in message
    assert "Next: gh run view 1 --log-failed" in message


@pytest.mark.parametrize("text", ["[]", "{", '{"config": "x"}'])
def test_a_plan_that_is_none_is_refused(world: World, text: str) -> None:
    world.environment.setenv("TRAINYARD_PLAN", text)
    if text.startswith('{"'):
        assert step_action.main([]) == ExitCode.USAGE
        return
    with pytest.raises(ConfigError, match="TRAINYARD_PLAN"):
        step_action.main([])


@each_case("attempt", ["1", "2"])
def test_the_last_job_reports_what_no_job_has_reported_in_slack_and_in_the_summary(
    world: World, capsys: pytest.CaptureFixture[str], attempt: str
) -> None:
    end = json.dumps({"reported": "1", "continues": "1", "thread": ""})
    needs = {
        "plan": {"result": "success", "outputs": {"plan": json.dumps(PLAN), "trains": "true"}},
        "train": {"result": "failure", "outputs": {"end": end}},
    }
    steps = {"continue": {"outcome": "failure", "outputs": {"reason": "no further segment"}}}
    values = {"NEEDS": needs, "STEPS": steps, "TRAINYARD_PLAN": PLAN}
    for name, value in values.items():
        world.environment.setenv(name, json.dumps(value))
    world.environment.setenv("GITHUB_RUN_ATTEMPT", attempt)
    world.environment.setattr(notify, "record_of_job", lambda *_: {}, raising=False)
    assert step_notify.main([]) == 0
    told, summary = capsys.readouterr().out, (world.folder / "summary").read_text()
    assert "Training 812 failed" in told
    for text in (told, summary):
        assert "no further segment" in text
        assert ("the job Train and prove failed" in text) is (attempt == "2"), "attempt 1 reported its end"
    assert "Next: `gh run " in summary


@each_case(
    ("end", "continued", "is_deleted"),
    [
        ({"reported": "1"}, "skipped", True),
        ({"reported": "1", "continues": "1"}, "success", False),
        ({}, "skipped", False),  # its runner died: the next attempt may need it
    ],
)
def test_the_tag_of_a_run_that_is_over_is_deleted(
    world: World, end: dict[str, str], continued: str, is_deleted: bool
) -> None:
    deleted: list[str] = []
    world.environment.setattr(step_notify, "report", lambda *_: ExitCode.DONE)
    world.environment.setattr(step_notify, "github_from", lambda: None)
    world.environment.setattr(step_notify, "delete_tag", lambda _, segment: deleted.append(segment.tag))
    commit = "0123456789abcdef0123456789abcdef01234567"
    segment = {"lineage": "4711", "number": 1, "run_number": 812, "commit": commit, "step": 0}
    segment |= {"thread": "", "outages": 0, "name": ""}
    handover = {"inputs": {}, "segment": segment, "store": "s3://x", "most_segments": 20}
    values = {"TRAINYARD_PLAN": {**PLAN, "plan": handover}}
    values["NEEDS"] = {"train": {"result": "success", "outputs": {"end": json.dumps(end)}}}
    values["STEPS"] = {"continue": {"outcome": continued, "outputs": {"dispatched": "true"}}}
    for name, value in values.items():
        world.environment.setenv(name, json.dumps(value))
    assert step_notify.main([]) == 0
    assert deleted == (["trainyard-lineage-4711"] if is_deleted else [])


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
        jobs = [{"name": "train / Plan", "status": "completed"}]
        return 200, {
            "jobs": jobs + ([{"name": "train / Train and prove", "status": status}] if status else [])
        }

    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    world.environment.setattr(time, "sleep", sleep)
    world.environment.setattr(time, "monotonic", lambda: now[0])
    known = {"GITHUB_API_URL": serve_github(answer), "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t"}
    for name, value in (known | {"TRAINYARD_PLAN": json.dumps(PLAN)}).items():
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


def test_of_several_calls_each_watches_its_own_job(serve_github: Callable[..., str]) -> None:
    jobs = [
        {"name": "a / Report", "status": "in_progress", "runner_name": "r1"},
        {"name": "b / Report", "status": "in_progress", "runner_name": "r2"},
        {"name": "b / Train and prove", "status": "in_progress", "runner_name": "gpu-1"},
        {"name": "a / Train and prove", "status": "queued", "runner_name": ""},
    ]
    api = GitHub("o/r", "t", server=serve_github(lambda *_: (200, {"jobs": jobs})))
    for runner, status in (("r1", "queued"), ("r2", None)):
        assert step_wait.wait_for_start(api, "1", "Train and prove", seconds=0, runner=runner) == status
