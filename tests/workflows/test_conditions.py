"""The `if:` conditions and other expressions of the shipped workflows, by GitHub's own evaluator."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.git_repository import git
from tests.workflows.conftest import CALLER, PIPELINE, PIPELINE_JOB, ROOT, shell, shipped_workflow
from tests.workflows.conftest import shipped_workflow as shipped_file

from trainyard.github.setup import SCHEDULE

NAMES = (
    *("github", "needs", "vars", "inputs", "steps", "env", "secrets"),
    *("matrix", "runner", "job", "strategy"),
)
RESULTS = ("success", "failure", "cancelled", "skipped")


def every_context() -> dict[str, Any]:
    """All contexts, empty except for a plan: any other name in them is null, as at GitHub."""
    planned = {"plan": {"outputs": {"plan": "{}"}}}
    return {name: {} for name in NAMES} | {"needs": planned, "steps": planned}


def conditions(shipped: Any) -> list[str]:
    """Every `if:` of the jobs and steps."""
    places = [*shipped.jobs.values(), *shipped.steps()]
    return [place["if"] for place in places if "if" in place]


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
    tmp_path: Path, files: list[str], event: str, is_text: bool
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


@each_case("schedule", ["", "off", "true", "True", "yes"])
@each_case("branch", ["main", "trunk"])
@each_case("fork", [False, True, None])
@each_case("event", EVENTS)
def test_who_trains_this_repository(
    expressions: Any, event: str, fork: bool | None, branch: str, schedule: str
) -> None:
    """A dispatch anywhere; not in a fork: a push to the default branch, and the daily run where it is on."""
    repository = {"default_branch": "trunk"} | ({} if fork is None else {"fork": fork})
    github = {"event": {"repository": repository}, "event_name": event, "ref_name": branch}
    known = every_context() | {"github": github, "vars": {"TRAINYARD_SCHEDULE": schedule}}
    is_due = {"push": branch == "trunk", "schedule": schedule.lower() == "true"}.get(event, False)
    runs = expressions.holds(CALLER.jobs["train"]["if"], **known)
    assert runs is (event == "workflow_dispatch" or (is_due and not fork))


@each_case("trains", ["true", "false", ""])
@each_case("plan", RESULTS)
def test_a_job_runs_where_the_plan_says_so_and_is_well(expressions: Any, plan: str, trains: str) -> None:
    needs = {"plan": {"result": plan, "outputs": {"trains": trains}}}
    for name in ("train", "wait"):
        for status in ("success", "failure", "cancelled"):
            is_well = status == "success" and plan == "success"
            if is_well or plan != "success":  # GitHub requires success first
                holds = expressions.holds(PIPELINE.jobs[name]["if"], status=status, needs=needs)
                assert holds is (status == "success" and trains == "true"), name


@each_case("status", ["success", "failure", "cancelled"])
@each_case(
    ("plan", "trains", "due"), [("failure", "", True), ("success", "true", True), ("success", "false", False)]
)
def test_the_last_job_runs_however_a_training_ended(
    expressions: Any, plan: str, trains: str, due: bool, status: str
) -> None:
    job = PIPELINE.jobs["notify"]
    assert set(job["needs"]) == {"plan", "train"}
    needs = {"plan": {"result": plan, "outputs": {"trains": trains}}}
    assert expressions.holds(job["if"], status=status, needs=needs) is due
    [continues, notifies] = job["steps"]
    assert expressions.holds(continues["if"], status=status) is (status != "cancelled")
    assert expressions.holds(notifies["if"], status=status)


@each_case("end", ["", "{}"])
def test_what_a_killed_step_left_is_stored(expressions: Any, end: str) -> None:
    [finish] = [each for each in PIPELINE_JOB["steps"] if each.get("id") == "finish"]
    context = {"steps": {"train": {"outputs": {"end": end} if end else {}}}}
    for status in ("failure", "cancelled"):
        assert expressions.holds(finish["if"], status=status, **context) is (end == "")


def test_the_machine_its_limit_its_container_and_its_queue_are_those_of_the_plan(expressions: Any) -> None:
    plan: dict[str, Any] = {"runner": ["self-hosted", "gpu"], "job_minutes": 355, "queue": "trainyard-gpu"}
    plan |= {"container": {"image": "a/b:1", "options": "--gpus all"}, "environment": "training"}
    context = {"needs": {"plan": {"outputs": {"plan": json.dumps(plan)}}}}
    found = {
        "runner": PIPELINE_JOB["runs-on"],
        "job_minutes": PIPELINE_JOB["timeout-minutes"],
        "container": PIPELINE_JOB["container"],
        "queue": PIPELINE_JOB["concurrency"]["group"],
        "environment": PIPELINE_JOB["environment"]["name"],
    }
    assert {name: expressions.value(text, **context) for name, text in found.items()} == plan
    assert PIPELINE_JOB["concurrency"]["queue"] == "max", "the third push waits, and is not cancelled"
    assert PIPELINE_JOB["concurrency"]["cancel-in-progress"] == "false"


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


def test_the_merge_is_compared_with_the_base_that_it_merges_into(tmp_path: Path) -> None:
    steps = shipped_workflow("compare.yml").jobs["measure"]["steps"]
    [checkout] = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkout["with"]["ref"] == "${{ inputs.commit || github.sha }}"
    origin, head = tmp_path / "origin", tmp_path / checkout["with"]["path"]
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch=main")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "where the branch began")
    git(origin, "checkout", "--quiet", "-b", "change")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "the change")
    git(origin, "checkout", "--quiet", "main")
    git(origin, "commit", "--quiet", "--allow-empty", "--message", "what the base got since")
    base = git(origin, "rev-parse", "HEAD")
    git(origin, "merge", "--quiet", "--no-ff", "--no-edit", "change")
    depth = f"--depth={checkout['with']['fetch-depth']}"
    git(tmp_path, "clone", "--quiet", depth, origin.as_uri(), str(head))
    [beside] = [step["run"] for step in steps if "worktree" in step.get("run", "")]
    subprocess.run(["bash", "-ec", beside], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert git(tmp_path / "base", "rev-parse", "HEAD") == base


def test_new_locks_are_proposed_and_compared_only_where_they_changed(expressions: Any) -> None:
    jobs = shipped_workflow("update_locks.yml").jobs
    for changed, runs in (("true", True), ("false", False), ("", False)):
        needs = {"resolve": {"outputs": {"changed": changed}}}
        assert expressions.holds(jobs["propose"]["if"], needs=needs) is runs
    assert jobs["compare"]["needs"] == "propose"
    writes = [name for name, job in jobs.items() if job["permissions"].get("contents") == "write"]
    assert writes == ["propose"]
    lines = " ".join(step.get("run", "") for step in jobs["propose"]["steps"])
    assert "make" not in lines and "/setup" not in str(jobs["propose"]["steps"]), "no new package runs there"


def test_a_comparison_is_of_the_pull_request_or_of_what_the_caller_names(expressions: Any) -> None:
    jobs = shipped_workflow("compare.yml").jobs
    comment = jobs["comment"]
    event: dict[str, Any] = {"pull_request": {"number": 5, "head": {"repo": {"full_name": "o/r"}}}}
    needs = {"measure": {"result": "success", "outputs": {}}}
    of_pull = {"inputs": {}, "github": {"sha": "merge", "repository": "o/r", "event": event}}
    called = {"commit": "new", "pull_request": "57"}
    of_call = {"inputs": called, "github": {"sha": "main", "repository": "o/r", "event": {}}}
    for context, commit, pull in ((of_pull, "merge", 5), (of_call, "new", "57")):
        assert expressions.value(jobs["measure"]["steps"][0]["with"]["ref"], **context) == commit
        assert expressions.value(comment["steps"][-1]["env"]["PULL_REQUEST"], **context) == pull
        assert expressions.holds(comment["if"], needs=needs, **context)
        for status in ("failure", "cancelled"):
            assert not expressions.holds(comment["if"], status=status, needs=needs, **context)
    for head in ({"full_name": "stranger/r"}, None):  # a deleted fork has none
        event["pull_request"]["head"]["repo"] = head
        assert not expressions.holds(comment["if"], needs=needs, **of_pull), "own branches only"


def test_any_repository_gets_a_comment_on_its_own_branches_only(expressions: Any) -> None:
    """act/test_shipped_workflows.py plays it."""
    jobs = shipped_workflow("comment.yml").jobs
    for repository, runs in (("o/r", True), ("stranger/r", False)):
        event = {"pull_request": {"number": 5, "head": {"repo": {"full_name": repository}}}}
        context = {"github": {"repository": "o/r", "event": event}}
        assert expressions.holds(jobs["compare"]["if"], **context) is runs, "own branches only"
    writing = [name for name, job in jobs.items() if "write" in job["permissions"].values()]
    assert (writing, jobs["comment"]["needs"]) == (["comment"], "compare")
    assert "uses: $/" not in str(jobs["comment"]), "no code of the change runs where a token may write"


@each_case("count", range(6))
def test_a_quota_that_is_used_up_is_no_red_coverage(tmp_path: Path, count: int) -> None:
    """Coverage is judged if the data of every group was stored; else a warning says that it was not."""
    jobs = shipped_workflow("ci.yml").jobs
    groups = [each["group"] for each in jobs["test"]["strategy"]["matrix"]["include"]]
    [step] = [step for step in jobs["coverage"]["steps"] if step["name"] == "Judge the coverage"]
    assert step["env"]["GROUPS_OF_TESTS"] == str(len(groups))
    for name in groups[:count]:
        (tmp_path / f"coverage-{name}").touch()
    (tmp_path / "Makefile").write_text("coverage:\n\t@echo judged\n")
    done = shell(step["run"], tmp_path, **step["env"])
    assert ("judged" in done.stdout.splitlines()) is (count == len(groups))
    assert ("::warning" in done.stdout) is (count < len(groups))


@pytest.fixture(scope="module")
def watching() -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / "watch_runners.yml").read_text()
    assert SCHEDULE not in text, "a copy that does not train polls nothing"
    text = text.replace("\n  # schedule:", SCHEDULE)
    content: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)
    return content


@each_case("fork", [False, True])
@each_case("switch", [None, "", "off", "on", "On", "true", "false", "1", "o"])
@each_case("place", [None, "TRAINYARD_RUNNER_LABELS"])
@each_case("event", ["schedule", "workflow_dispatch"])
def test_it_looks_by_itself_only_where_somebody_wants_it_and_has_a_runner(
    watching: dict[str, Any], expressions: Any, fork: bool, switch: str | None, place: str | None, event: str
) -> None:
    github = {"event_name": event, "event": {"repository": {"fork": fork}}}
    variables = {} if switch is None else {"TRAINYARD_WATCH": switch}
    variables |= {} if place is None else {place: "x"}
    wanted = (switch or "").lower() in ("on", "true") and place is not None and not fork
    looks = expressions.holds(watching["jobs"]["watch"]["if"], github=github, vars=variables)
    assert looks is (event == "workflow_dispatch" or wanted)


@pytest.mark.parametrize(
    ("status", "alerts", "told"),
    [("failure", "gpu-1 is offline", True), ("success", "", False), ("cancelled", "gpu-1", False)],
)
def test_slack_is_told_of_a_new_outage_although_the_look_is_red(
    watching: dict[str, Any], expressions: Any, status: str, alerts: str, told: bool
) -> None:
    needs, condition = {"watch": {"outputs": {"alerts": alerts}}}, watching["jobs"]["notify"]["if"]
    for inputs in ({"dry_run": None}, {"dry_run": False}):
        assert expressions.holds(condition, status=status, needs=needs, inputs=inputs) is told
    assert expressions.holds(condition, status=status, needs=needs, inputs={"dry_run": True}) is False
