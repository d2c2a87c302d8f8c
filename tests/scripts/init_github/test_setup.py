"""The rows of the set-up: what is there × what GitHub does to a call → verdict, exit code, state of GitHub.

All other rows of the repository are done, so that the row alone decides the exit code.
"""

import base64
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.scripts.init_github.stand_in import (
    CUSTOM,
    FILE,
    FORKS,
    POLL,
    GitHub,
    complete,
    content,
    fresh,
    runner,
    set_up,
    shipped,
)

from trainyard.commands.init_github import parse_args, wanted_setup
from trainyard.github.job_end import TRAIN_JOB
from trainyard.github.setup import WantedSetup
from trainyard.github.setup_step import SetupVerdict

FOLDER, BUCKET = "file:///mnt/storage/store", "s3://lab-runs/phase2"
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
WANTED = WantedSetup(
    labels=("self-hosted", "gpu"),
    store=FOLDER,
    variables={"TRAINYARD_DEADLINE": "8h"},
    secrets=(("training", "PROGRAM_ENV"),),
    allow_public=True,
)
OK, DONE, WOULD = SetupVerdict.OK, SetupVerdict.DONE, SetupVerdict.WOULD
YOU, WAITS, REFUSED = SetupVerdict.YOU, SetupVerdict.WAITS, SetupVerdict.REFUSED
PERSON, CHANGED, CONSENT = "a person", "changed", "changed with --yes"
PROTECTED = {"protected_branches": True, "custom_branch_policies": False}
REVIEWER = {"type": "required_reviewers", "reviewers": [{"type": "User", "reviewer": {"id": 7}}]}
Prepare = Callable[[GitHub], Any]


def shows(path: str, value: Any) -> Prepare:
    """GitHub shows this at the path; None: it has nothing there."""
    if value is None:
        return lambda github: github.shown.pop(path)
    return lambda github: github.shown.update({path: deepcopy(value)})


def variable(name: str, value: str | None) -> Prepare:
    return shows(f"actions/variables/{name}", None if value is None else {"value": value})


def environment(name: str, limit: Any = None, *policies: Any, rules: Any = ()) -> Prepare:
    return lambda github: github.environment(name, limit, *policies, rules=rules)


TRAINING, VARIABLES, DEADLINE = "environments/training", "actions/variables", "TRAINYARD_DEADLINE"
SECRET, PERMISSIONS = f"{TRAINING}/secrets/PROGRAM_ENV", "actions/permissions"
OFFLINE = runner(status="offline")
PLANNED = {"jobs": [{"name": "Plan", "conclusion": "success"}, {"name": TRAIN_JOB, "conclusion": "skipped"}]}
CASES: list[tuple[str, Prepare, str, str]] = [
    ("actions", shows(PERMISSIONS, {"enabled": False}), CONSENT, f"PUT {PERMISSIONS}"),
    ("workflow", shows(FILE, None), PERSON, ""),
    ("workflow", shows(FILE, {"state": "disabled_manually"}), CONSENT, f"PUT {FILE}/enable"),
    ("fork PRs", shows(FORKS, {"approval_policy": "first_time_contributors"}), CHANGED, f"PUT {FORKS}"),
    ("variable", variable(DEADLINE, None), CHANGED, f"POST {VARIABLES}"),
    ("variable", variable(DEADLINE, ""), CHANGED, f"PATCH {VARIABLES}/{DEADLINE}"),
    ("variable", variable(DEADLINE, "3h"), CONSENT, f"PATCH {VARIABLES}/{DEADLINE}"),
    ("env training", shows(TRAINING, None), CHANGED, f"PUT {TRAINING}"),
    ("env training", environment("training"), CHANGED, f"PUT {TRAINING}"),
    ("env training", environment("training", PROTECTED), CONSENT, f"PUT {TRAINING}"),
    (
        "env training",
        environment("training", CUSTOM, ("main", "branch")),
        CHANGED,
        f"POST {TRAINING}/deployment-branch-policies",
    ),
    ("env release", environment("release", None, rules=[REVIEWER]), PERSON, ""),
    ("secret", shows(SECRET, None), PERSON, ""),
    ("runner", shows("actions/runners", {"runners": []}), PERSON, ""),
    ("runner", shows("actions/runners", {"runners": [OFFLINE]}), PERSON, ""),
    ("watchdog", variable("TRAINYARD_WATCH", None), CHANGED, f"POST {VARIABLES}"),
    ("poll runners", shows(POLL, content(shipped())), CONSENT, f"PUT {POLL}"),
    ("first green", shows(f"{FILE}/runs", {"workflow_runs": []}), PERSON, ""),
    ("first green", shows("actions/runs/91/jobs", PLANNED), PERSON, ""),
]


def prepared(row: str, prepare: Prepare) -> GitHub:
    public = row == "fork PRs"
    github = complete(fresh(visibility="public" if public else "private", private=not public))
    github.shown |= {FORKS: {"approval_policy": "all_external_contributors"}, SECRET: {}}
    github.set_variable(DEADLINE, "8h")
    prepare(github)
    return github


@each_case("case", CASES)
def test_a_row_is_done_and_read_back_or_refused_or_left_to_a_person(case: Any) -> None:
    row, prepare, follows, call = case
    github = prepared(row, prepare)
    planned = set_up(github, WANTED, dry_run=True)[row]
    assert (planned.verdict, github.changes()) == (WOULD if call else YOU, [])
    shown = [change.command_line("github.com") for change in planned.changes]
    wanted = "gh api --method " + call.replace(" ", " repos/me/lab/")
    assert not call or any(line.startswith(wanted) for line in shown), shown
    careful = set_up(github, WANTED, yes=False)
    assert careful[row].verdict is (DONE if follows == CHANGED else YOU)
    for status in (403, 422, 204) if call else ():
        github = prepared(row, prepare)
        github.faults = {call: status}
        refused = set_up(github, WANTED)
        assert (refused[row].verdict, refused.code) == (REFUSED, 4), (
            "a change is never done before it is seen"
        )
        is_of_plan = row.startswith("env ") and status != 403  # 403 is "not accessible by" this token
        assert ("--no-environments" in refused[row].text) is is_of_plan
        github.faults = {}
    done = set_up(github, WANTED)
    assert (done[row].verdict, done.code) == ((DONE, 0) if call else (YOU, 1)), done[row]
    calls = [each for each in github.changes() if "registration" not in each]
    again = set_up(github, WANTED, yes=False)
    found = [each for each in github.changes() if "registration" not in each]
    assert found == calls, "what is right is not touched"
    assert {each.verdict for each in again.steps} <= {OK, *([] if call else [YOU])}
    assert not any(call.startswith("DELETE") for call in github.calls)


def test_a_read_that_is_refused_names_the_row_and_the_others_are_read() -> None:
    github = prepared("runner", lambda _: None)
    for row, path in (("actions", PERMISSIONS), ("secret", SECRET), ("runner", "actions/runners")):
        github.faults = {f"GET {path}": 403}
        done = set_up(github, WANTED)
        assert {step.name for step in done.steps if step.verdict is not OK} == {row}
        assert (done[row].verdict, done.code) == (REFUSED, 4) and "403" in done[row].text


# Copies: public, of an organisation, on a free plan, with a role in AWS.


def test_a_public_repository_gets_no_runner_unless_it_is_allowed() -> None:
    github = fresh(visibility="public", private=False)
    github.set_variable("TRAINYARD_STORE", BUCKET)
    refused = set_up(github)
    assert (refused["runner"].verdict, refused["watchdog"].verdict) == (YOU, WAITS)
    assert "--allow-public" in refused["runner"].text
    assert not any("/runners" in call for call in github.calls), "no token is made"
    assert github.shown[FORKS]["approval_policy"] == "all_external_contributors"
    assert set_up(complete(github), WantedSetup(allow_public=True)).code == 0


def test_a_runner_of_the_organisation_is_not_listed_and_counts_once_a_run_was_proven() -> None:
    github = complete(fresh(owner={"login": "me", "id": 11, "type": "Organization"}))
    github.shown |= {"actions/runners": {"runners": []}, f"{FILE}/runs": {"workflow_runs": []}}
    unlisted = set_up(github)
    assert (unlisted.code, unlisted["runner"].verdict) == (1, YOU)
    assert "one of the organisation is not listed" in unlisted["runner"].text
    assert "sudo bash -s" in unlisted.todo("runner")
    github.train(job=f"train / {TRAIN_JOB}")  # as GitHub names the job of a called workflow
    assert set_up(github).code == 0


def test_without_environments_secrets_are_the_repositorys() -> None:
    github = complete()
    wanted = WantedSetup(secrets=(("training", "PROGRAM_ENV"),), environments=False)
    assert set_up(github, wanted).todo("secret").endswith("gh secret set PROGRAM_ENV --repo me/lab")
    github.shown["actions/secrets/PROGRAM_ENV"] = {}
    assert set_up(github, wanted).code == 0


def test_an_environment_has_the_tags_of_its_jobs_and_keeps_what_others_added() -> None:
    """A segment runs from its tag where the branch has a newer workflow file."""
    github = fresh(default_branch="trunk")
    set_up(github, WantedSetup(store=BUCKET))
    for name, expected in (
        ("training", {("trunk", "branch"), ("trainyard-lineage-*", "tag")}),
        ("eks", {("trunk", "branch"), ("trainyard-lineage-*", "tag")}),
        ("images", {("trunk", "branch")}),
        ("release", {("v*", "tag")}),
    ):
        assert {(each["name"], each["type"]) for each in github.limits(name)} == expected
        github.limits(name).append({"name": "dev", "type": "branch"})
        kept = set_up(github, WantedSetup(store=BUCKET))[f"env {name}"]
        assert kept.verdict is OK and "by your choice also open to dev" in kept.text


def test_slacks_secret_is_for_the_jobs_that_report_too() -> None:
    github = complete()
    secrets = tuple((place, "SLACK_WEBHOOK_URL") for place in ("training", "notify"))
    done = set_up(github, WantedSetup(secrets=secrets))
    assert (done.code, done["env notify"].verdict) == (1, DONE)
    commands = [todo.command for step in done.steps for todo in step.todo]
    assert commands == [f"gh secret set {name} --env {place} --repo me/lab" for place, name in secrets]
    github.environment("notify", None, rules=[REVIEWER])
    assert set_up(github, WantedSetup(secrets=secrets))["env notify"].verdict is YOU


def test_the_command_for_a_machine_waits_for_the_store_whose_folder_it_makes() -> None:
    github = fresh()
    done = set_up(github)
    assert [done[name].verdict for name in ("store", "runner")] == [YOU, WAITS]
    assert "--repository me/lab --store file:///mnt/storage/store" in done.todo("store")
    assert not any("registration-token" in call for call in github.calls)
    directory = {"TRAINYARD_RUNS_DIRECTORY": "/mnt/runs"}
    known = set_up(github, WantedSetup(store="file:///mnt/a%20b", variables=directory))
    assert "FOLDERS=('/mnt/a b' /mnt/runs)\n" in known.todo("runner")


@each_case("immutable", [True, False])
def test_a_role_is_trusted_by_a_command_in_githubs_form_until_a_run_has_shown_it(immutable: bool) -> None:
    github = complete()
    subject = "actions/oidc/customization/sub"
    github.shown[subject] = {"use_default": True, "use_immutable_subject": immutable}
    github.shown[f"{FILE}/runs"]["workflow_runs"][0]["created_at"] = (
        "2026-11-01T00:00:00Z"  # before the variable was set: perhaps another role
    )
    unknown = set_up(github, WantedSetup(role=ROLE))
    assert github.variable("TRAINYARD_AWS_ROLE") == ROLE
    assert (unknown.code, unknown["aws role"].verdict) == (1, YOU)
    todo = unknown.todo("aws role")
    assert ("repo:me@11/lab@22:environment:training" in todo) is immutable
    assert "arn:aws:iam::123456789012:oidc-provider" in todo
    for host, default in (("git.example.org", True), ("github.com", False)):
        github.shown[subject] = {"use_default": default}
        assert set_up(github, WantedSetup(role=ROLE), host=host)["aws role"].todo == ()
    github.train()
    assert set_up(github).code == 0


def test_what_polls_gets_its_schedule_where_it_is_wanted_and_nowhere_else() -> None:
    for wanted, value, expected in (
        (WantedSetup(), "on", True),
        (WantedSetup(watch=False), "on", False),
        (WantedSetup(), "off", False),
    ):
        github = complete()
        github.shown[POLL] = content(shipped())
        github.set_variable("TRAINYARD_WATCH", value)
        for _ in range(2):
            assert set_up(github, wanted).code == 0
        text = base64.b64decode(github.shown[POLL]["content"])
        assert ("schedule" in yaml.safe_load(text)[True]) is expected
        assert github.variable("TRAINYARD_WATCH") == value
    github.shown[POLL] = content("on: push\n")
    github.set_variable("TRAINYARD_WATCH", "on")
    assert set_up(github)["poll runners"].verdict is YOU


# Kinds of runners: which labels and which time limit are written.

RUNS_ON = "runs-on=${{ github.run_id }}/family=g5+g6/spot=false"
GROUP = {"group": "gpu machines", "labels": ["h100"]}
KINDS: list[tuple[str, str, Any, str]] = [
    ("gpu", "", ["self-hosted", "gpu"], "own"),
    ("self-hosted,gpu", "", ["self-hosted", "gpu"], "own"),
    ("gpu box 1", "", ["self-hosted", "gpu box 1"], "own"),
    ("arc-gpu", "scale-set", ["arc-gpu"], "one job"),
    ("gpu-t4", "hosted", ["gpu-t4"], "one job, six hours"),
    ("ubuntu-24.04", "", ["ubuntu-24.04"], "one job, six hours"),
    (RUNS_ON, "other", [RUNS_ON], ""),
    (json.dumps(GROUP), "", GROUP, ""),
]
"""--labels, --runner, the variable that is written, and what is known about the machine."""


def wanted_of(labels: str, kind: str, store: str = BUCKET) -> WantedSetup:
    given = {"--labels": labels, "--runner": kind, "--store": store}
    return wanted_setup(parse_args([word for pair in given.items() if pair[1] for word in pair]))


@each_case("case", KINDS)
def test_each_kind_gets_its_labels_its_limit_and_its_command_and_stays_as_it_is(case: Any) -> None:
    labels, kind, expected, known = case
    github, is_own = fresh(), known == "own"
    github.set_variable("TRAINYARD_JOB_MINUTES", "480")
    done = set_up(github, wanted_of(labels, kind))
    assert json.loads(github.variable("TRAINYARD_RUNNER_LABELS")) == expected
    assert github.variable("TRAINYARD_JOB_MINUTES") == ("355" if "six hours" in known else "480")
    assert any("registration-token" in call for call in github.calls) is is_own
    assert done["runner"].verdict is (YOU if is_own else WAITS)
    before = len(github.changes())
    github.train()
    again = set_up(github)
    made = [call for call in github.changes()[before:] if VARIABLES in call and "WATCH" not in call]
    assert (made, again["runner labels"].verdict) == ([], OK)
    assert again["runner"].verdict is (YOU if is_own else OK), "one's own machine is listed, or gone"
    lost = set_up(fresh(), wanted_of(labels, kind, FOLDER))["store"]
    assert (lost.verdict is YOU) is ("one job" in known), "its disk ends with its job"


def test_codebuild_and_a_cluster_get_no_labels_that_no_machine_has() -> None:
    """With labels in the variable a push would wait a day for a machine that nobody registers."""
    for place in ("TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"):
        for wanted in (WantedSetup(), WantedSetup(variables={place: "yard"})):
            github = fresh()
            github.set_variable(place, "" if wanted.variables else "yard")
            done = set_up(github, wanted)
            assert done["runner labels"].verdict is OK
            assert github.variable("TRAINYARD_RUNNER_LABELS") == ""
            assert not any("registration-token" in call for call in github.calls)


def test_variables_that_hold_no_labels_are_reported_and_not_replaced() -> None:
    for value in ('["gpu"', "self-hosted,gpu", "[]", "gpu"):
        github = complete()
        github.set_variable("TRAINYARD_RUNNER_LABELS", value)
        done = set_up(github)
        assert (done.code, done["runner labels"].verdict, github.changes()) == (1, YOU, [])
        assert set_up(github, WantedSetup(labels=("self-hosted", "gpu"))).code == 0


def test_a_machine_that_is_found_by_its_name_has_one_name() -> None:
    for labels, kind in (("gpu,h100", "scale-set"), ("self-hosted", "hosted")):
        with pytest.raises(Exception, match="by its name alone"):
            wanted_of(labels, kind)
    with pytest.raises(SystemExit):
        parse_args(["--runner", "scale-set"])
