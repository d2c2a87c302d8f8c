"""The `if:` conditions and other expressions of the shipped workflows, by GitHub's own evaluator."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.workflows.conftest import shipped_workflow as shipped_file

NAMES = [
    "github",
    "needs",
    "vars",
    "inputs",
    "steps",
    "env",
    "secrets",
    "matrix",
    "runner",
    "job",
    "strategy",
]
RESULTS = ("success", "failure", "cancelled", "skipped")


def every_context() -> dict[str, Any]:
    """All contexts, empty except for a plan: any other name in them is null, as at GitHub."""
    planned = {"plan": {"outputs": {"plan": "{}"}}}
    return {name: {} for name in NAMES} | {"needs": planned, "steps": planned}


def conditions(shipped: Any) -> list[str]:
    """Every `if:` of the jobs and steps."""
    places = [*shipped.jobs.values(), *shipped.steps()]
    return [place["if"] for place in places if "if" in place]


def step_called(job: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in job["steps"] if step["name"] == name)
    return found


def test_every_condition_can_be_read_and_answers_yes_or_no(shipped: Any, expressions: Any) -> None:
    for condition in conditions(shipped):
        for status in ("success", "failure", "cancelled"):
            assert expressions.holds(condition, status=status, **every_context()) in (True, False)


def test_a_condition_is_one_whole_expression(shipped: Any) -> None:
    """Text around `${{ }}` makes a text of it, and every text that is not empty holds."""
    for condition in conditions(shipped):
        assert condition.startswith("${{"), condition
        assert condition.endswith("}}"), condition
        assert condition.count("${{") == 1, condition


def test_what_cannot_be_read_is_an_error(expressions: Any) -> None:
    with pytest.raises(ValueError, match="Unrecognized named-value"):
        expressions.holds("${{ gihub.ref == 'x' }}", **every_context())


def test_a_condition_without_a_status_asks_for_success(expressions: Any) -> None:
    yes, said_in_a_text = "${{ github.ref == 'main' }}", "${{ github.ref != 'always()' }}"
    for condition in (yes, said_in_a_text, ""):
        assert expressions.holds(condition, github={"ref": "main"})
        assert not expressions.holds(condition, status="failure", github={"ref": "main"})
    assert expressions.holds(
        "${{ always() && github.ref == 'main' }}", status="failure", github={"ref": "main"}
    )


@each_case("result", RESULTS)
def test_the_required_check_is_red_for_anything_but_success(expressions: Any, result: str) -> None:
    job = shipped_file("ci.yml").jobs["ci"]
    needs = {name: {"result": "success"} for name in job["needs"]}
    for name in needs:
        status = result if result in ("failure", "cancelled") else "success"
        changed = needs | {name: {"result": result}}
        assert expressions.holds(job["if"], status=status, needs=changed)
        # Within the job nothing has failed yet: its steps see a status of their own.
        assert expressions.holds(job["steps"][0]["if"], needs=changed) == (result != "success")
        texts = changed | {"changes": {"result": "success", "outputs": {"texts": "true"}}}
        is_red = result in ("failure", "cancelled") and name != "changes"
        assert expressions.holds(job["steps"][0]["if"], needs=texts) == is_red, (
            "texts need the documents alone"
        )


@each_case(
    ("files", "event", "is_text"),
    [
        (["README.md", "CHANGELOG.md"], "pull_request", True),
        (["README.md"], "push", False),
        (["README.md", "src/a.py"], "pull_request", False),
        (["docs/README.md"], "pull_request", False),
    ],
)
def test_a_typo_in_the_readme_needs_the_documents_alone(
    tmp_path: Path, shell: Any, files: list[str], event: str, is_text: bool
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], cwd=tmp_path, check=True)
    for changed in ([], files):
        for file in changed:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
        subprocess.run([*git, "add", "--all"], cwd=tmp_path, check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], cwd=tmp_path, check=True)
    jobs = shipped_file("ci.yml").jobs
    output = tmp_path / "output"
    output.touch()
    done = shell(jobs["changes"]["steps"][1]["run"], tmp_path, EVENT=event, GITHUB_OUTPUT=str(output))
    assert (done.returncode, "texts=true" in output.read_text()) == (0, is_text)
    wanted = {name for name, job in jobs.items() if "changes" not in job.get("needs", [])}
    assert wanted == {"changes", "coverage", "docs"}, "coverage follows test"


EVENTS = ("push", "schedule", "workflow_dispatch", "pull_request", "pull_request_target", "issue_comment")


@each_case("branch", ["main", "trunk", "topic"])
@each_case("fork", [False, True, None])
@each_case("event", EVENTS)
def test_who_plans_a_training(
    training: Any, expressions: Any, event: str, fork: bool | None, branch: str
) -> None:
    """A dispatch anywhere; a push to the default branch and the schedule, but not in a fork."""
    repository = {"default_branch": "trunk"} | ({} if fork is None else {"fork": fork})
    github = {"event": {"repository": repository}, "event_name": event, "ref_name": branch}
    known = every_context() | {"github": github}
    runs = expressions.holds(training.jobs["plan"]["if"], **known)
    is_automatic = event == "schedule" or branch == "trunk"
    assert runs is (event == "workflow_dispatch" or (is_automatic and not fork))


def plan_of(**jobs: bool) -> str:
    return json.dumps({"jobs": {"ready": False, "train": False, "eks": False} | jobs})


@each_case("ready", RESULTS)
@each_case("plan", RESULTS)
@each_case("chosen", ["ready", "train", "eks", ""])
def test_each_job_runs_where_the_plan_says_so_and_all_before_it_is_well(
    training: Any, expressions: Any, chosen: str, plan: str, ready: str
) -> None:
    outputs = {"plan": plan_of(**({chosen: True} if chosen else {}))} if plan == "success" else {}
    needs = {"plan": {"result": plan, "outputs": outputs}, "ready": {"result": ready, "outputs": {}}}
    first = {"needs": {"plan": needs["plan"]}}
    for name in ("ready", "eks") if plan == "success" else ():
        assert expressions.holds(training.jobs[name]["if"], **first) is (chosen == name)
    for name in ("ready", "eks"):  # GitHub requires success first, and then does not read the plan
        if plan != "success":
            assert not expressions.holds(training.jobs[name]["if"], status="failure", **first)
    status = "failure" if "failure" in (plan, ready) else "success"
    for name in ("train", "wait"):
        holds = expressions.holds(training.jobs[name]["if"], status=status, needs=needs)
        assert holds is (chosen == "train" and plan == "success" and ready in ("success", "skipped")), name
        assert not expressions.holds(training.jobs[name]["if"], status="cancelled", needs=needs)


@each_case("result", RESULTS)
@each_case("name", ["plan", "ready", "eks", "train"])
def test_the_last_job_runs_for_each_bad_end_of_each_job(
    training: Any, expressions: Any, name: str, result: str
) -> None:
    job = training.jobs["notify"]
    assert name in job["needs"]
    needs = {each: {"result": "success"} for each in job["needs"]} | {name: {"result": result}}
    status = "failure" if result == "failure" else "success"
    assert expressions.holds(job["if"], status=status, needs=needs) is (result in ("failure", "cancelled"))
    assert expressions.holds(job["if"], status="cancelled", needs=needs), "cancelled between two jobs"


@each_case("outcome", ["success", "failure", "cancelled", "skipped", None])
@each_case("status", ["success", "failure", "cancelled"])
def test_what_follows_the_training_runs_however_it_ended(
    training_job: Any, expressions: Any, status: str, outcome: str | None
) -> None:
    steps = training_job["steps"]
    after = steps[steps.index(step_called(training_job, "Train")) + 1 :]
    context = every_context() | {"steps": {"train": {"outcome": outcome or "skipped"}}}
    is_run = outcome not in ("skipped", None)
    for step in after:
        if step["name"] == "Attest the manifest":
            continue
        expected = is_run or step["name"] == "Notify"
        if step["name"] == "Evaluate":
            expected = (status, outcome) == ("success", "success")
        assert expressions.holds(step["if"], status=status, **context) is expected, step["name"]


@each_case(("done", "asked"), [("true", "true"), ("", "true"), ("true", "")])
def test_only_what_is_done_and_stored_is_attested(
    training_job: Any, expressions: Any, done: str, asked: str
) -> None:
    condition = step_called(training_job, "Attest the manifest")["if"]
    context = {"steps": {"store": {"outputs": {"done": done}}}, "vars": {"TRAINYARD_ATTEST": asked}}
    assert expressions.holds(condition, **context) is (done == asked == "true")
    assert not expressions.holds(condition, status="failure", **context)


@each_case("skip", [None, "", "run 812 is proven"])
def test_what_need_not_be_trained_is_neither_trained_nor_announced(
    training_job: Any, expressions: Any, skip: str | None
) -> None:
    steps = {"fetch": {"outputs": {} if skip is None else {"skip": skip}}}
    for name in ("Notify of the start", "Store each checkpoint during training", "Train"):
        condition = step_called(training_job, name)["if"]
        assert expressions.holds(condition, **every_context() | {"steps": steps}) is not skip, name


@each_case(
    ("planned", "labels"),
    [
        ('["self-hosted", "gpu"]', ["self-hosted", "gpu"]),
        ('["codebuild-p-7-{0}", "train-7-{0}"]', ["codebuild-p-7-2", "train-7-2"]),
    ],
)
def test_the_machine_its_limit_and_its_queue_are_those_of_the_plan_and_the_present_attempt(
    training_job: Any, expressions: Any, planned: str, labels: list[str]
) -> None:
    plan = json.dumps({"runner": planned, "job_minutes": 355, "queue": "trainyard-gpu"})
    context = {"github": {"run_attempt": "2"}, "needs": {"plan": {"outputs": {"plan": plan}}}}
    assert expressions.value(training_job["runs-on"], **context) == labels
    assert expressions.value(training_job["timeout-minutes"], **context) == 355
    concurrency = training_job["concurrency"]
    assert expressions.value(concurrency["group"], **context) == "trainyard-gpu"
    assert (concurrency["queue"], concurrency["cancel-in-progress"]) == ("max", "false")


def test_the_name_of_a_later_segment_says_which_run_it_belongs_to(training: Any, expressions: Any) -> None:
    name = training.content["run-name"]
    continues = '{"lineage":"4711","number":3}'
    assert expressions.value(name, inputs={"continues": continues}) == "lineage 4711 segment 3"
    assert expressions.value(name, inputs={"continues": ""}) == ""
    assert expressions.value(name, inputs={}) == ""


def test_every_segment_checks_out_the_commit_of_the_first(training: Any, expressions: Any) -> None:
    ref = training.jobs["plan"]["steps"][0]["with"]["ref"]
    github = {"sha": "a" * 40}
    assert expressions.value(ref, inputs={}, github=github) == "a" * 40
    continues = f'{{"commit":"{"b" * 40}"}}'
    assert expressions.value(ref, inputs={"continues": continues}, github=github) == "b" * 40
    last = training.jobs["notify"]["steps"][0]["with"]["ref"]
    for plan, commit in (("", "a" * 40), (json.dumps({"commit": "c" * 40}), "c" * 40)):
        needs = {"plan": {"outputs": {"plan": plan}}}
        assert expressions.value(last, needs=needs, github=github) == commit


@each_case("fork", [False, True])
def test_a_fork_releases_nothing(expressions: Any, fork: bool) -> None:
    jobs = shipped_file("release.yml").jobs
    judged = expressions.holds(jobs["judge"]["if"], github={"event": {"repository": {"fork": fork}}})
    assert judged is not fork
    # A job whose `needs` was skipped is skipped too, unless it asks for a status of its own.
    for name in ("build", "attest", "publish"):
        assert "if" not in jobs[name] and jobs[name]["needs"]


def test_a_newer_push_replaces_the_older_one_of_a_pull_request_only(expressions: Any) -> None:
    group = shipped_file("ci.yml").content["concurrency"]["group"]
    number = "${{" + group.rpartition("-${{")[2]
    for event, same in (({"pull_request": {"number": 5}}, True), ({}, False)):
        names = [expressions.value(number, github={"event": event, "sha": sha}) for sha in "ab"]
        assert (names[0] == names[1]) is same
    assert "-${{ github.ref }}-" in group, "the same commit on two branches is judged on both"


@each_case("asked", [False, True], ids=["pushed", "asked"])
@each_case("role", ["", "arn:aws:iam::1:role/x"], ids=["no role", "role"])
@each_case("fork", [False, True], ids=["own", "fork"])
def test_an_image_that_was_asked_for_is_built_or_refused_but_never_skipped(
    expressions: Any, fork: bool, role: str, asked: bool
) -> None:
    """A call from a workflow that a push started has the event `push`, and inputs."""
    context = {
        "github": {"event_name": "push", "event": {"repository": {"fork": fork}}, "ref": "refs/heads/main"},
        "vars": {"TRAINYARD_IMAGE_ROLE": role} if role else {},
        "inputs": {"dockerfile": "docker/verl/Dockerfile"} if asked else {},
    }
    image = shipped_file("image.yml")
    runs = {name: expressions.holds(image.jobs[name]["if"], **context) for name in ("build", "refuse")}
    assert runs == {"build": bool(role) and (asked or not fork), "refuse": asked and not role}
    concurrency = image.content["concurrency"]
    group = expressions.value("${{" + concurrency["group"].rpartition("-${{")[2], **context)
    expected = "docker/verl/Dockerfile" if asked else "push"
    assert group == expected, "two Dockerfiles do not cancel each other"
    assert expressions.holds(concurrency["cancel-in-progress"], **context) is not asked
