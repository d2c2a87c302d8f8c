"""The `if:` conditions and other expressions of the shipped workflows, by GitHub's own evaluator."""

from typing import Any

import pytest

NAMES = (
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
)
RESULTS = ("success", "failure", "cancelled", "skipped")


def every_context() -> dict[str, Any]:
    """All contexts, empty: what is asked of them is null, as at GitHub."""
    return {name: {} for name in NAMES}


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


@pytest.mark.parametrize("result", RESULTS)
def test_the_required_check_is_red_for_anything_but_success(root: Any, expressions: Any, result: str) -> None:
    import yaml

    jobs = yaml.load((root / ".github/workflows/ci.yml").read_text(), Loader=yaml.BaseLoader)["jobs"]
    needs = {name: {"result": "success"} for name in jobs["ci"]["needs"]}
    refuse = jobs["ci"]["steps"][0]["if"]
    for name in needs:
        status = result if result in ("failure", "cancelled") else "success"
        changed = needs | {name: {"result": result}}
        assert expressions.holds(jobs["ci"]["if"], status=status, needs=changed)
        # Within the job nothing has failed yet: its steps see a status of their own.
        assert expressions.holds(refuse, needs=changed) == (result != "success")


EVENTS = ("push", "schedule", "workflow_dispatch", "pull_request", "pull_request_target", "issue_comment")


SCHEDULES = {None: False, "": False, "off": False, "yes": False, "true": True, "on": True}
"""Values of TRAINYARD_SCHEDULE -> whether the daily run trains."""


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fork", [False, True, None])
@pytest.mark.parametrize("event", EVENTS)
def test_who_plans_a_training(
    training: Any, expressions: Any, event: str, fork: bool | None, schedule: str | None, attempt: str
) -> None:
    """A dispatch anywhere; a push but in a fork; the schedule where it is on, or is run again by hand."""
    repository = {} if fork is None else {"fork": fork}
    github = {"event": {"repository": repository}, "event_name": event, "run_attempt": attempt}
    variables = {} if schedule is None else {"TRAINYARD_SCHEDULE": schedule}
    known = every_context() | {"github": github, "vars": variables}
    runs = expressions.holds(training.jobs["plan"]["if"], **known)
    is_on = event == "push" or (event == "schedule" and (SCHEDULES[schedule] or attempt == "2"))
    assert runs is (event == "workflow_dispatch" or (is_on and not fork))
    says_so = expressions.holds(training.jobs["daily"]["if"], **known)
    assert says_so is (event == "schedule" and not fork and not runs), "a daily run is never silent"
    if runs:
        return
    # What a skipped job is needed for is skipped, too, or asks for more than its end.
    needs = {name: {"result": "skipped", "outputs": {}} for name in ("plan", "train", "continue")}
    for name in ("train", "continue", "tell"):
        context = known | {"needs": needs}
        assert not expressions.holds(training.jobs[name]["if"], **context), name


@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("fetch", ["true", "false"])
def test_a_role_that_only_looks_for_a_proven_run_keeps_nothing_from_training(
    training_job: Any, expressions: Any, fetch: str, attempt: str
) -> None:
    outputs = {"fetch": fetch, "unless_proven": "true"}
    known = {"needs": {"plan": {"outputs": outputs}}, "github": {"run_attempt": attempt}}
    reader = step_called(training_job, "Assume the AWS role for reading")
    may_fail = expressions.value(reader.get("continue-on-error", "${{ false }}"), **every_context() | known)
    assert may_fail is (fetch == "false" and attempt == "1")


@pytest.mark.parametrize("found", [None, "", "812"])
@pytest.mark.parametrize("attempt", ["1", "2"])
@pytest.mark.parametrize("unless_proven", ["true", "false", None])
def test_only_what_nobody_asked_for_is_left_out_where_it_is_proven(
    training_job: Any, expressions: Any, unless_proven: str | None, attempt: str, found: str | None
) -> None:
    outputs = {} if unless_proven is None else {"unless_proven": unless_proven}
    context = every_context() | {
        "needs": {"plan": {"outputs": outputs}},
        "github": {"run_attempt": attempt},
        "vars": {"TRAINYARD_FOLLOW": "true"},
    }
    search = step_called(training_job, "Look for a proven run of the same")
    searches = expressions.holds(search["if"], **context)
    assert searches is (unless_proven == "true" and attempt == "1")
    assert search["continue-on-error"] == "true", "where it cannot be found out, it trains"
    steps = {"same": {"outputs": {} if found is None else {"run_number": found}}}
    for name in (
        "Tell Slack that it started or goes on",
        "Store each checkpoint while training goes on",
        "Train",
    ):
        step = step_called(training_job, name)
        assert expressions.holds(step["if"], **context | {"steps": steps}) is (not found), name


def test_a_run_that_was_not_trained_again_reports_no_success_of_its_own(
    training_job: Any, expressions: Any
) -> None:
    steps = {"train": {"outcome": "skipped", "outputs": {}}, "prove": {"outcome": "skipped"}}
    for step in training_job["steps"][training_job["steps"].index(step_called(training_job, "Train")) + 1 :]:
        assert not expressions.holds(step["if"], **every_context() | {"steps": steps}), step["name"]


@pytest.mark.parametrize("keep", [None, "5", "all"])
@pytest.mark.parametrize("proof", ["success", "failure", "skipped", None])
def test_old_runs_are_removed_only_after_a_proof(
    training_job: Any, expressions: Any, proof: str | None, keep: str | None
) -> None:
    step = step_called(training_job, "Remove old runs that are proven and stored")
    steps = {} if proof is None else {"prove": {"outcome": proof}}
    context = every_context() | {"steps": steps, "vars": {"TRAINYARD_KEEP_RUNS": keep} if keep else {}}
    for status in ("success", "failure"):
        removes = expressions.holds(step["if"], status=status, **context)
        assert removes is (proof == "success" and keep != "all")
    assert expressions.value(step["env"]["KEEP"], **context) == (keep or "3")
    assert step["continue-on-error"] == "true"


@pytest.mark.parametrize(("planned", "kept"), [("true", True), ("false", False), (None, False)])
def test_only_the_plan_of_a_run_that_trains_is_kept(
    training: Any, expressions: Any, planned: str | None, kept: bool
) -> None:
    steps = {"plan": {"outputs": {} if planned is None else {"train": planned}}}
    condition = step_called(training.jobs["plan"], "Keep the plan for the watchdog")["if"]
    assert expressions.holds(condition, steps=steps) is kept


def test_a_run_that_was_told_nothing_ends_green_and_tells_nobody(training: Any, expressions: Any) -> None:
    needs = {
        "plan": {"result": "success", "outputs": {"train": "false"}},
        "train": {"result": "skipped", "outputs": {}},
        "continue": {"result": "skipped", "outputs": {}},
    }
    for name in ("train", "continue", "tell"):
        context = every_context() | {"github": {"run_attempt": "1"}, "needs": needs}
        assert not expressions.holds(training.jobs[name]["if"], **context), name


@pytest.mark.parametrize(("planned", "trains"), [("true", True), ("false", False), (None, False)])
def test_only_a_plan_that_says_so_trains(
    training_job: Any, expressions: Any, planned: str | None, trains: bool
) -> None:
    plan = {"outputs": {} if planned is None else {"train": planned}}
    for ready in RESULTS:
        needs = {"plan": plan, "ready": {"result": ready}}
        holds = expressions.holds(training_job["if"], needs=needs)
        assert holds is (trains and ready in ("success", "skipped"))
        assert not expressions.holds(training_job["if"], status="cancelled", needs=needs)


@pytest.mark.parametrize("planned", ["true", "false", None])
@pytest.mark.parametrize("role", ["arn:aws:iam::1:role/x", "", None])
@pytest.mark.parametrize("store", ["s3://ml-runs/phase2", "file:///srv/store", None])
def test_a_store_is_checked_once_on_a_hosted_runner_or_on_the_machine_that_trains(
    training: Any, expressions: Any, planned: str | None, role: str | None, store: str | None
) -> None:
    outputs = {name: value for name, value in (("train", planned), ("store", store)) if value is not None}
    context = {
        "needs": {"plan": {"outputs": outputs}},
        "vars": {} if role is None else {"TRAINYARD_AWS_ROLE": role},
    }
    hosted = expressions.holds(training.jobs["ready"]["if"], **context)
    name = "Check the store, the run number and the signing key"
    here = expressions.holds(step_called(training.jobs["train"], name)["if"], **context)
    by_role = bool(role) and (store or "").startswith("s3://")
    assert hosted is (by_role and planned == "true")
    off = context | {"vars": {"TRAINYARD_AWS_ROLE": role or "", "TRAINYARD_CHECK": "off"}}
    assert not expressions.holds(training.jobs["ready"]["if"], **off)
    assert here is not by_role
    assert not expressions.holds(training.jobs["ready"]["if"], status="failure", **context)


@pytest.mark.parametrize(("role", "asked"), [("success", True), ("failure", True), ("skipped", False)])
def test_a_role_that_cannot_be_assumed_has_its_reason_said_by_the_check(
    training: Any, expressions: Any, role: str, asked: bool
) -> None:
    step = step_called(training.jobs["ready"], "Check the store, the run number and the signing key")
    steps = {"role": {"outcome": role}}
    status = "success" if role == "success" else "failure"
    assert expressions.holds(step["if"], status=status, steps=steps) is asked
    assert not expressions.holds(step["if"], status="cancelled", steps=steps)
    assert expressions.value(step["env"]["ASSUMED"], steps=steps) == role


@pytest.mark.parametrize(
    ("status", "code", "follows"),
    [
        ("failure", "75", True),
        ("success", "75", True),
        ("cancelled", "75", False),
        ("failure", "1", False),
        ("success", "0", False),
        ("failure", None, False),
    ],
)
def test_what_stopped_early_goes_on_and_what_somebody_cancelled_does_not(
    training: Any, expressions: Any, status: str, code: str | None, follows: bool
) -> None:
    outputs = {"attempt": "2"} | ({} if code is None else {"exit_code": code})
    condition, github = training.jobs["continue"]["if"], {"run_attempt": "2"}
    now = {"train": {"outputs": outputs}}
    assert expressions.holds(condition, status=status, needs=now, github=github) is follows
    # What an earlier attempt said is dispatched already.
    for old in ("1", ""):
        before = {"train": {"outputs": outputs | {"attempt": old}}}
        assert not expressions.holds(condition, status=status, needs=before, github=github)


@pytest.mark.parametrize(
    ("ended", "steps"),
    [
        (True, {"succeeded": "success", "told": "skipped", "failed": "skipped"}),
        (True, {"succeeded": "skipped", "told": "success", "failed": "skipped"}),
        (True, {"succeeded": "skipped", "told": "skipped", "failed": "success"}),
        (False, {"succeeded": "skipped", "told": "skipped", "failed": "failure"}),
        (False, {"succeeded": "skipped", "told": "skipped", "failed": "no answer"}),
        (False, {"succeeded": "skipped", "told": "no answer", "failed": "skipped"}),
    ],
)
def test_a_training_job_knows_whether_it_told_its_end(
    training_job: Any, expressions: Any, ended: bool, steps: dict[str, str]
) -> None:
    ids = {step["id"]: step["name"] for step in training_job["steps"] if "id" in step}
    assert [ids[name] for name in steps] == [
        f"Tell Slack that it {what}" for what in ("succeeded", "stopped", "failed")
    ]
    # The script succeeds where Slack does not answer: its output says whether it was posted.
    outcomes = {
        name: {
            "outcome": "success" if outcome == "no answer" else outcome,
            "outputs": {"posted": "true"} if outcome == "success" else {},
        }
        for name, outcome in steps.items()
    }
    context = {"steps": outcomes, "github": {"run_attempt": "2"}}
    reported = expressions.value(training_job["outputs"]["reported"], **context)
    assert reported == ("2" if ended else "")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({}, ""),
        ({"limit": {"outputs": {"reason": "6 hours"}}}, "6 hours"),
        ({"fit": {"outputs": {"reason": "gpu: none"}}}, "gpu: none"),
    ],
)
def test_the_last_job_knows_why_the_training_was_refused(
    training_job: Any, expressions: Any, steps: dict[str, Any], reason: str
) -> None:
    """It reports the end where the training job could not, and would say `its runner died`."""
    value = expressions.value(training_job["outputs"]["reason"], **every_context() | {"steps": steps})
    assert (value or "") == reason


@pytest.mark.parametrize(
    ("job", "steps", "reason"),
    [
        ("cancelled", {}, ""),
        ("failure", {"fit": {"outcome": "failure", "outputs": {"reason": "gpu: none"}}}, "gpu: none"),
        ("failure", {"limit": {"outcome": "failure", "outputs": {"reason": "6 hours"}}}, "6 hours"),
        ("failure", {"fit": {"outcome": "failure"}}, "the environment could not be checked"),
        ("failure", {"usable": {"outcome": "failure", "outputs": {"reason": "store: no"}}}, "store: no"),
        ("failure", {"usable": {"outcome": "failure"}}, "the store could not be checked"),
        ("failure", {"from": {"outcome": "failure"}}, "what it goes on from could not be brought"),
        ("failure", {"data": {"outcome": "failure"}}, "the data could not be prepared"),
        ("failure", {"from": {"outcome": "failure", "outputs": {"reason": "cut off"}}}, "cut off"),
        ("failure", {"data": {"outcome": "failure", "outputs": {"reason": "x/: empty"}}}, "x/: empty"),
        ("failure", {"train": {"outcome": "failure"}, "fit": {"outcome": "success"}}, ""),
        ("failure", {"store": {"outcome": "failure"}, "train": {"outcome": "success"}}, ""),
    ],
)
def test_a_failure_before_there_is_a_record_has_its_reason_from_the_workflow(
    training_job: Any, expressions: Any, job: str, steps: dict[str, Any], reason: str
) -> None:
    words = step_called(training_job, "Tell Slack that it failed")["env"]
    known = {"train": {"outcome": "skipped"}, **steps}
    context = every_context() | {"steps": known, "job": {"status": job}, "github": {"run_id": "99"}}
    assert expressions.value(words["REASON"], **context) == reason
    assert expressions.value(words["STATUS"], **context) == job
    trained = known["train"]["outcome"] != "skipped"
    assert expressions.value(words["NEXT"], **context) == ("" if trained else "gh run view 99 --log-failed")


@pytest.mark.parametrize(
    ("attempt", "fetch", "resume", "found"),
    [
        ("1", "false", "none", ("none", "false")),
        ("1", "true", "auto", ("auto", "true")),
        ("2", "false", "none", ("auto", "true")),
        ("2", "false", "auto", ("auto", "true")),
        ("2", "true", "s3://b/manifests/run-1-manifest.json", None),
    ],
)
def test_a_job_that_is_run_again_goes_on_although_the_plan_did_not_know_of_it(
    training_job: Any, expressions: Any, attempt: str, fetch: str, resume: str, found: Any
) -> None:
    given = step_called(training_job, "Bring what it goes on from")["env"]
    needs = {"plan": {"outputs": {"fetch": fetch, "resume": resume}}}
    context = {"github": {"run_attempt": attempt}, "needs": needs}
    values = tuple(expressions.value(given[name], **context) for name in ("RESUME", "FETCH"))
    assert values == (found or (resume, "true"))
    reader = step_called(training_job, "Assume the AWS role for reading")["if"]
    role = {"TRAINYARD_AWS_ROLE": "arn"}
    assert expressions.holds(reader, vars=role, **context) is (values[1] == "true")


@pytest.mark.parametrize(
    ("planned", "labels"),
    [
        ('["self-hosted", "gpu"]', ["self-hosted", "gpu"]),
        ('["codebuild-p-7-{0}", "train-7-{0}"]', ["codebuild-p-7-2", "train-7-2"]),
    ],
)
def test_the_labels_are_those_of_the_present_attempt(
    training_job: Any, expressions: Any, planned: str, labels: list[str]
) -> None:
    needs = {"plan": {"outputs": {"runner": planned}}}
    context = {"github": {"run_attempt": "2"}, "needs": needs}
    assert expressions.value(training_job["runs-on"], **context) == labels


@pytest.mark.parametrize(
    ("trained", "stored", "attested"),
    [("success", "success", True), ("failure", "success", False), ("success", "failure", False)],
)
def test_only_what_is_done_and_stored_is_attested(
    training_job: Any, expressions: Any, trained: str, stored: str, attested: bool
) -> None:
    condition = step_called(training_job, "Attest the manifest")["if"]
    steps = {"train": {"outcome": trained}, "store": {"outcome": stored}}
    variables = {"TRAINYARD_ATTEST": "true"}
    for status in ("success", "failure"):
        assert expressions.holds(condition, status=status, steps=steps, vars=variables) is attested


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        ("success", "0", "succeeded"),
        ("failure", "75", "stopped"),
        ("failure", "1", "failed"),
        ("failure", None, "failed"),
        ("cancelled", "75", "failed"),
        ("cancelled", None, "failed"),
    ],
)
def test_slack_is_told_one_ending(
    training_job: Any, expressions: Any, status: str, code: str | None, told: str
) -> None:
    ended = "success" if code == "0" else "failure"
    steps = {"train": {"outcome": ended, "outputs": {} if code is None else {"exit_code": code}}}
    endings = ("succeeded", "stopped", "failed")
    conditions = {name: step_called(training_job, f"Tell Slack that it {name}")["if"] for name in endings}
    context = every_context() | {"steps": steps}
    assert [n for n, c in conditions.items() if expressions.holds(c, status=status, **context)] == [told]


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


@pytest.mark.parametrize(
    ("outcome", "code", "stored"),
    [("success", "0", True), ("failure", "75", True), ("failure", "1", False), ("skipped", "", False)],
)
def test_what_is_done_or_stopped_with_a_checkpoint_is_stored(
    training_job: Any, expressions: Any, outcome: str, code: str, stored: bool
) -> None:
    condition = step_called(training_job, "Store the artifacts")["if"]
    steps = {"train": {"outcome": outcome, "outputs": {"exit_code": code}}, "role": {"outcome": "skipped"}}
    for status in ("success", "failure"):
        assert expressions.holds(condition, status=status, **every_context() | {"steps": steps}) is stored
    steps["role"] = {"outcome": "failure"}
    assert not expressions.holds(condition, status="failure", **every_context() | {"steps": steps})


def job_of(root: Any, workflow: str, name: str) -> dict[str, Any]:
    import yaml

    path = root / ".github" / "workflows" / workflow
    job: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)["jobs"][name]
    return job


@pytest.mark.parametrize(
    ("head", "status", "writes"),
    [
        ("me/lab", "success", True),
        ("me/lab", "failure", False),
        ("me/lab", "cancelled", False),
        ("stranger/lab", "success", False),
        (None, "success", False),
    ],
)
def test_a_comment_is_written_for_own_branches_only(
    root: Any, expressions: Any, head: str | None, status: str, writes: bool
) -> None:
    job = job_of(root, "compare.yml", "comment")
    repo = None if head is None else {"full_name": head}  # of a fork that was deleted there is none
    github = {"repository": "me/lab", "event": {"pull_request": {"head": {"repo": repo}}}}
    needs = {"measure": {"result": status, "outputs": {}}}
    assert expressions.holds(job["if"], status=status, github=github, needs=needs) is writes


@pytest.mark.parametrize("fork", [False, True])
def test_a_fork_releases_nothing(root: Any, expressions: Any, fork: bool) -> None:
    github = {"event": {"repository": {"fork": fork}}}
    judged = expressions.holds(job_of(root, "release.yml", "judge")["if"], github=github)
    assert judged is not fork
    # A job whose `needs` was skipped is skipped too, unless it asks for a status of its own.
    for name in ("build", "attest", "publish"):
        job = job_of(root, "release.yml", name)
        assert "if" not in job
        assert job["needs"]


@pytest.mark.parametrize(
    ("event", "first", "second", "same"),
    [
        (
            "pull_request",
            {"event": {"pull_request": {"number": 5}}, "sha": "a"},
            {"event": {"pull_request": {"number": 5}}, "sha": "b"},
            True,
        ),
        ("push", {"event": {}, "sha": "a"}, {"event": {}, "sha": "b"}, False),
    ],
)
def test_a_newer_push_replaces_the_older_one_of_a_pull_request_only(
    root: Any, expressions: Any, event: str, first: Any, second: Any, same: bool
) -> None:
    import yaml

    text = (root / ".github/workflows/ci.yml").read_text()
    group = yaml.load(text, Loader=yaml.BaseLoader)["concurrency"]["group"]
    number = group.rpartition("-${{")[2]
    names = [expressions.value("${{" + number, github=github) for github in (first, second)]
    assert (names[0] == names[1]) is same
    assert "-${{ github.ref }}-" in group, "the same commit on two branches is judged on both"


@pytest.mark.parametrize("asked", [False, True], ids=["pushed", "asked"])
@pytest.mark.parametrize("role", ["", "arn:aws:iam::1:role/x"], ids=["no role", "role"])
@pytest.mark.parametrize("fork", [False, True], ids=["own", "fork"])
def test_an_image_that_was_asked_for_is_built_or_refused_but_never_skipped(
    root: Any, expressions: Any, fork: bool, role: str, asked: bool
) -> None:
    """A call from a workflow that a push started has the event `push`, and inputs."""
    context = {
        "github": {"event_name": "push", "event": {"repository": {"fork": fork}}, "ref": "refs/heads/main"},
        "vars": {"TRAINYARD_IMAGE_ROLE": role} if role else {},
        "inputs": {"dockerfile": "docker/verl/Dockerfile"} if asked else {},
    }
    runs = {
        name: expressions.holds(job_of(root, "image.yml", name)["if"], **context)
        for name in ("build", "refuse")
    }
    assert runs == {
        "build": bool(role) and (asked or not fork),
        "refuse": asked and not role,
    }
    import yaml

    text = (root / ".github/workflows/image.yml").read_text()
    concurrency = yaml.load(text, Loader=yaml.BaseLoader)["concurrency"]
    group = expressions.value("${{" + concurrency["group"].rpartition("-${{")[2], **context)
    assert group == ("docker/verl/Dockerfile" if asked else "push"), (
        "two Dockerfiles do not cancel each other"
    )
    assert expressions.holds(concurrency["cancel-in-progress"], **context) is not asked
