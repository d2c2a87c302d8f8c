"""Kinds of copies: public, of an organisation, on a free plan, with a role in AWS, with many pages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.cases import each_case
from tests.scripts.setup_github.stand_in import GitHub, complete, fresh, set_up

from trainyard.github.settings import WantedSetup
from trainyard.github.setup_step import SetupVerdict
from trainyard.github.trust_policy import Form, Subject, trust_policy

ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
BASE = "/repos/me/lab"


def test_a_public_repository_gets_no_runner_unless_it_is_told() -> None:
    github = fresh(visibility="public", private=False)
    github.variables["TRAINYARD_STORE"] = "s3://ml-runs"
    refused = set_up(github)
    assert (refused["runner"].verdict, refused["watchdog"].verdict) == (SetupVerdict.YOU, SetupVerdict.WAITS)
    assert "--allow-public" in refused["runner"].text
    assert not any("/runners" in call for call in github.calls), "no token is made"
    assert github.approval == "all_external_contributors"
    assert set_up(complete(github), WantedSetup(allow_public=True)).code == 0


@each_case("visibility", ["private", "internal"])
def test_pull_requests_of_strangers_are_no_matter_where_there_are_none(visibility: str) -> None:
    done = set_up(complete(fresh(visibility=visibility)))
    assert (done.code, [step.name for step in done.steps if step.name == "fork PRs"]) == (0, [])


def organisation() -> GitHub:
    github = complete(fresh(owner={"login": "me", "id": 11, "type": "Organization"}))
    github.runners = []
    return github


def test_a_runner_of_the_organisation_counts_if_the_repository_may_use_it() -> None:
    github = organisation()
    github.groups = {1: [github.runner("cpu-1", "self-hosted")], 5: [github.runner("org-gpu")]}
    done = set_up(github)
    assert (done.code, done["runner"].text) == (0, "org-gpu online with self-hosted, gpu")
    github.faults = {"GET /orgs/me/actions/runner-groups": [403]}
    unlisted = set_up(github)
    assert (unlisted.code, unlisted["runner"].verdict) == (1, SetupVerdict.YOU)
    assert "it takes the scope admin:org" in unlisted["runner"].text
    assert "sudo bash -s" in unlisted.todo("runner")


def test_a_runner_that_lacks_a_label_is_named_with_the_call_that_gives_it() -> None:
    done = set_up(complete(), WantedSetup(labels=("self-hosted", "GPU", "h100")))
    assert "gpu-1 lacks h100" in done["runner"].text
    wanted = (
        """gh api --method POST repos/me/lab/actions/runners/7/labels --input - <<< '{"labels": ["h100"]}'"""
    )
    assert f"if gpu-1 is the intended runner: {wanted}" in done.todo("runner")


def test_without_environments_secrets_are_the_repositorys() -> None:
    github = complete()
    github.environments.clear()
    github.faults = {f"PUT {BASE}/environments/.*": [422]}
    secrets = (("training", "WANDB_API_KEY"),)
    refused = set_up(github, WantedSetup(secrets=secrets))
    assert (refused.code, refused["env training"].verdict, refused["secret"].verdict) == (
        1,
        SetupVerdict.YOU,
        SetupVerdict.WAITS,
    )
    assert "GitHub Pro, Team or Enterprise" in refused["env training"].text
    taken = set_up(github, WantedSetup(secrets=secrets, environments=False))
    assert (taken.code, github.secrets) == (0, {"": {"WANDB_API_KEY": "sealed"}})


def test_a_limit_is_added_to_an_environment_and_what_else_it_has_is_kept() -> None:
    github = complete(fresh(enterprise=True))
    reviewers = [{"type": "User", "reviewer": {"id": 11, "login": "me"}}]
    kept = [
        {"type": "wait_timer", "wait_timer": 30},
        {"type": "required_reviewers", "prevent_self_review": True, "reviewers": reviewers},
        {"type": "branch_policy"},
    ]
    github.environments["release"] = {"protection_rules": kept, "deployment_branch_policy": None}
    assert set_up(github).code == 0
    assert github.environments["release"]["protection_rules"] == [
        {"type": "wait_timer", "wait_timer": 30},
        {"type": "required_reviewers", "reviewers": [{"type": "User", "id": 11}]},
    ]


def test_a_plan_is_named_where_github_names_it() -> None:
    github = complete()
    github.faults = {f"GET {BASE}/environments/training": ["upgrade"]}
    done = set_up(github)
    assert (done.code, done["env training"].verdict) == (1, SetupVerdict.YOU)
    assert "--no-environments" in done["env training"].text


def test_the_command_for_a_machine_waits_for_the_store_whose_folder_it_makes() -> None:
    github = fresh()
    done = set_up(github)
    assert [done[name].verdict for name in ("store", "runner")] == [SetupVerdict.YOU, SetupVerdict.WAITS]
    assert "--repository me/lab --store file:///mnt/storage/store" in done.todo("store")
    assert not any("registration-token" in call for call in github.calls)
    directory = {"TRAINYARD_RUNS_DIRECTORY": "/mnt/runs"}
    known = set_up(github, WantedSetup(store="file:///mnt/a%20b", variables=directory))
    assert "  give '/mnt/a b'\n  give /mnt/runs\n" in known.todo("runner")


def test_the_page_on_the_runner_has_a_row_for_every_step() -> None:
    github = complete(fresh(visibility="public", private=False))
    wanted = WantedSetup(role=ROLE, secrets=(("training", "WANDB_API_KEY"),), allow_public=True)
    page = (Path(__file__).resolve().parents[3] / "docs" / "runner.md").read_text()
    table = page.partition("| step | who does it |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    names = {step.name.removeprefix("env ") for step in set_up(github, wanted).steps}
    assert {name for name in names if not any(name in row for row in rows)} == set()
    assert {row for row in rows if not any(name in row for name in names)} == set()


@each_case(("found", "kept"), [("off", "off"), ("on", "on"), (None, "on")])
def test_a_watchdog_that_somebody_switched_off_stays_off(found: str | None, kept: str) -> None:
    github = complete()
    del github.variables["TRAINYARD_WATCH"]
    github.variables |= {"TRAINYARD_WATCH": found} if found else {}
    done = set_up(github)
    assert (done.code, github.variables["TRAINYARD_WATCH"]) == (0, kept)


def test_lists_are_read_to_their_last_page() -> None:
    github = complete()
    github.variables = {f"A_{n}": "x" for n in range(65)} | github.variables
    github.runners = [github.runner(f"cpu-{n}", "self-hosted") for n in range(205)] + github.runners
    done = set_up(github)
    assert (done.code, done["runner"].text) == (0, "gpu-1 online with self-hosted, gpu")


@each_case("value", ['["gpu"', "self-hosted,gpu", "[]", "gpu"])
def test_variables_that_hold_no_labels_are_said_and_not_replaced(value: str) -> None:
    github = complete()
    github.variables["TRAINYARD_RUNNER_LABELS"] = value
    done = set_up(github)
    assert (done.code, done["runner labels"].verdict) == (1, SetupVerdict.YOU)
    assert github.changes() == []
    assert set_up(github, WantedSetup(labels=("self-hosted", "gpu"))).code == 0


SUBJECT = Subject("me/lab", environment="training", owner_id=11, repository_id=22)
WITH_ROLE = WantedSetup(role=ROLE)


def policy(form: Form) -> dict[str, Any]:
    return trust_policy(SUBJECT, account="123456789012", form=form)


@each_case(
    ("immutable", "form", "right"),
    [
        (True, Form.IMMUTABLE, True),
        (True, Form.NAMES, False),
        (False, Form.NAMES, True),
        (True, Form.BOTH, True),
    ],
)
def test_the_role_is_judged_by_what_aws_holds_and_the_subject_that_github_gives(
    immutable: bool, form: Form, right: bool
) -> None:
    github = complete()
    github.subject = {"use_default": True, "use_immutable_subject": immutable}
    done = set_up(github, WITH_ROLE, policy(form))
    assert github.variables["TRAINYARD_AWS_ROLE"] == ROLE
    assert (done["aws role"].verdict, done.code) == ((SetupVerdict.OK, 0) if right else (SetupVerdict.YOU, 1))
    if not right:
        assert (
            "trusts repo:me/lab:environment:training → repo:me@11/lab@22:environment:training"
            in done["aws role"].text
        )
        assert "--owner-id 11 --repository-id 22 --output trust.json" in done.todo("aws role")


def test_a_role_of_the_variable_is_judged_too_and_a_run_that_assumed_it_counts() -> None:
    github = complete()
    github.variables["TRAINYARD_AWS_ROLE"] = ROLE
    unknown = set_up(github)
    assert (unknown.code, unknown["aws role"].verdict) == (1, SetupVerdict.YOU)
    assert "no aws here" in unknown["aws role"].text
    missing = set_up(github, why="An error occurred (NoSuchEntity) when calling the GetRole operation")
    assert "AWS has no role trainyard-ci" in missing["aws role"].text
    assert "aws iam create-role --role-name trainyard-ci" in missing.todo("aws role")
    github.train(role="success")
    assert set_up(github).code == 0
    github.runs[0]["created_at"] = "2026-11-01T00:00:00Z"  # before the variable was set: perhaps another role
    assert set_up(github).code == 1


@each_case(("host", "default"), [("git.example.org", True), ("github.com", False)])
def test_a_subject_that_is_not_githubs_own_is_left_to_a_person(host: str, default: bool) -> None:
    github = complete()
    github.subject = {"use_default": default}
    done = set_up(github, WITH_ROLE, policy(Form.IMMUTABLE), host=host)
    assert (done["aws role"].verdict, done.code) == (SetupVerdict.YOU, 1)
    github.train(role="success")
    assert set_up(github, WITH_ROLE, host=host).code == 0


@each_case(
    ("selected", "role", "right"),
    [
        ({"github_owned_allowed": True}, False, True),
        ({"github_owned_allowed": True}, True, False),
        ({"github_owned_allowed": True, "verified_allowed": True}, True, True),
        ({"github_owned_allowed": True, "patterns_allowed": ["aws-actions/*"]}, True, True),
        ({"patterns_allowed": ["aws-actions/*"]}, False, False),
    ],
)
def test_actions_that_are_selected_must_hold_those_of_the_workflows(
    selected: dict[str, Any], role: bool, right: bool
) -> None:
    github = complete()
    github.actions, github.selected = {"enabled": True, "allowed_actions": "selected"}, selected
    done = set_up(github, replace(WantedSetup(), role=ROLE if role else ""), policy(Form.IMMUTABLE))
    assert (done["actions"].verdict is SetupVerdict.OK) is right


def test_the_branch_that_is_the_default_is_the_one_that_counts() -> None:
    github = fresh(default_branch="trunk")
    set_up(github, WantedSetup(store="s3://ml-runs"))
    assert [policy["name"] for policy in github.policies["training"]] == ["trunk"]


def test_the_branch_rule_is_advice() -> None:
    github = complete()
    assert set_up(github)["branch rule"].verdict is SetupVerdict.OPTIONAL
    checks = {"required_status_checks": [{"context": "ci"}]}
    github.rules = [{"type": "deletion"}, {"type": "required_status_checks", "parameters": checks}]
    assert set_up(github)["branch rule"].verdict is SetupVerdict.OK
    github.faults = {"GET .*/rules/branches/main": [403]}
    done = set_up(github)
    assert (done["branch rule"].verdict, done.code) == (SetupVerdict.OPTIONAL, 0)


def test_slacks_secret_is_set_for_the_jobs_that_report_too() -> None:
    github = complete()
    secrets = tuple((place, "SLACK_WEBHOOK_URL") for place in ("training", "notify"))
    done = set_up(github, WantedSetup(secrets=secrets))
    assert done.code == 0
    assert done["env notify"].verdict is SetupVerdict.DONE
    assert {place for place, names in github.secrets.items() if "SLACK_WEBHOOK_URL" in names} == {
        "training",
        "notify",
    }
    again = set_up(github, WantedSetup(secrets=secrets))
    assert (again.code, again["env notify"].text) == (0, "open to every branch")
    reviewer = {"type": "User", "reviewer": {"id": 7}}
    github.environments["notify"]["protection_rules"] = [
        {"type": "required_reviewers", "reviewers": [reviewer]}
    ]
    delayed = set_up(github, WantedSetup(secrets=secrets))
    assert delayed["env notify"].verdict is SetupVerdict.YOU
