"""Kinds of copies: public, of an organisation, on a free plan, with a role in AWS, with many pages."""

from pathlib import Path

from tests.cases import each_case
from tests.scripts.init_github.stand_in import complete, fresh, set_up

from trainyard.github.setup import WantedSetup
from trainyard.github.setup_step import SetupVerdict

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


def test_a_runner_of_the_organisation_is_not_listed_and_counts_once_it_had_a_job() -> None:
    github = complete(fresh(owner={"login": "me", "id": 11, "type": "Organization"}))
    github.runners, github.runs = [], []
    unlisted = set_up(github)
    assert (unlisted.code, unlisted["runner"].verdict) == (1, SetupVerdict.YOU)
    assert "one of the organisation is not listed" in unlisted["runner"].text
    assert "sudo bash -s" in unlisted.todo("runner")
    github.train()
    assert set_up(github).code == 0


def test_without_environments_secrets_are_the_repositorys() -> None:
    github = complete()
    github.environments.clear()
    github.faults = {f"PUT {BASE}/environments/.*": [422]}
    secrets = (("training", "WANDB_API_KEY"),)
    refused = set_up(github, WantedSetup(secrets=secrets))
    verdicts = (refused["env training"].verdict, refused["secret"].verdict)
    assert (refused.code, *verdicts) == (4, SetupVerdict.REFUSED, SetupVerdict.WAITS)
    assert "GitHub Pro, Team or Enterprise" in refused["env training"].text
    assert "--no-environments" in refused["env training"].text
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


@each_case(("immutable", "ids"), [(True, True), (False, False)])
def test_a_role_is_trusted_by_commands_in_githubs_form_until_a_run_has_shown_it(
    immutable: bool, ids: bool
) -> None:
    github = complete()
    github.subject = {"use_default": True, "use_immutable_subject": immutable}
    github.runs[0]["created_at"] = "2026-11-01T00:00:00Z"  # before the variable was set: perhaps another role
    unknown = set_up(github, WantedSetup(role=ROLE))
    assert github.variables["TRAINYARD_AWS_ROLE"] == ROLE
    assert (unknown.code, unknown["aws role"].verdict) == (1, SetupVerdict.YOU)
    todo = unknown.todo("aws role")
    assert ("--owner-id 11 --repository-id 22 --output trust.json" in todo) is ids
    assert "aws iam update-assume-role-policy --role-name trainyard-ci" in todo
    assert "aws iam create-role --role-name trainyard-ci" in todo
    github.train()
    assert set_up(github).code == 0


@each_case(("host", "default"), [("git.example.org", True), ("github.com", False)])
def test_a_subject_that_is_not_githubs_own_is_left_to_a_person(host: str, default: bool) -> None:
    github = complete()
    github.subject, github.runs = {"use_default": default}, []
    done = set_up(github, WantedSetup(role=ROLE), host=host)
    assert (done["aws role"].verdict, done["aws role"].todo) == (SetupVerdict.YOU, ())
    github.train()
    assert set_up(github, WantedSetup(role=ROLE), host=host).code == 0


def test_the_branch_that_is_the_default_is_the_one_that_counts() -> None:
    github = fresh(default_branch="trunk")
    set_up(github, WantedSetup(store="s3://ml-runs"))
    assert [policy["name"] for policy in github.policies["training"]] == ["trunk"]


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
