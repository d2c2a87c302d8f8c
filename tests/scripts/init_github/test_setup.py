"""The rows of the set-up: what is there × what GitHub does to a call → verdict, exit code, state of GitHub.

All other rows of the repository are done, so that the row alone decides the exit code.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case
from tests.scripts.init_github.stand_in import POLLS, GitHub, complete, direct, fresh, set_up, shipped

from trainyard.commands.init_github import parse_args, wanted_setup
from trainyard.config.load import load_config
from trainyard.errors import ServiceTroubleError
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.setup import WantedSetup
from trainyard.github.setup_step import SetupVerdict
from trainyard.github.target import target_for
from trainyard.run.segment import Segment

ROOT = Path(__file__).resolve().parents[3]
FOLDER, BUCKET = "file:///mnt/storage/store", "s3://lab-runs/phase2"
ROLE = "arn:aws:iam::123456789012:role/trainyard-ci"
WANTED = WantedSetup(
    labels=("self-hosted", "gpu"),
    store=FOLDER,
    variables={"TRAINYARD_DEADLINE": "8h"},
    secrets=(("training", "WANDB_API_KEY"),),
    allow_public=True,
)
BASE = "/repos/me/lab"
PERSON, CHANGED, CONSENT = "a person", "changed", "changed with consent"
DEV = {"id": 101, "name": "dev", "type": "branch"}
PROTECTED = {"protected_branches": True, "custom_branch_policies": False}
Prepare = Callable[[GitHub], Any]


def attribute(name: str, value: Any) -> Prepare:
    return lambda github: setattr(github, name, deepcopy(value))


def variable(name: str, value: str | None) -> Prepare:
    if value is None:
        return lambda github: github.variables.pop(name)
    return lambda github: github.variables.update({name: value})


def environment(name: str, limit: Any = None, *policies: Any, rules: Any = ()) -> Prepare:
    def change(github: GitHub) -> None:
        github.environments[name] = {"deployment_branch_policy": limit, "protection_rules": [*rules]}
        github.policies[name] = [*policies]

    return change


def without_training(github: GitHub) -> None:
    del github.environments["training"], github.policies["training"]


def only_planned(github: GitHub) -> None:
    job = github.jobs[91][0]
    github.jobs[91] = [job, {**job, "name": "Train and prove", "conclusion": "skipped"}]


OURS = {"protected_branches": False, "custom_branch_policies": True}
REVIEWER = {"type": "required_reviewers", "reviewers": [{"type": "User", "reviewer": {"id": 7}}]}
MAIN = {"id": 1, "name": "main", "type": "branch"}
TRAINING, RELEASE = f"{BASE}/environments/training", f"{BASE}/environments/release"
FORKS, WORKFLOW = (
    f"{BASE}/actions/permissions/fork-pr-contributor-approval",
    f"{BASE}/actions/workflows/training_ci.yml",
)
DEADLINE = f"{BASE}/actions/variables/TRAINYARD_DEADLINE"
CASES: list[tuple[str, Prepare, str, str, str]] = [
    ("actions", attribute("actions", {"enabled": False}), CONSENT, f"{BASE}/actions/permissions", "PUT"),
    ("workflow", attribute("workflows", {}), PERSON, WORKFLOW, ""),
    ("workflow", attribute("workflows", {"training_ci.yml": "disabled_manually"}), CONSENT, WORKFLOW, "PUT"),
    ("fork PRs", attribute("approval", "first_time_contributors"), CHANGED, FORKS, "PUT"),
    ("variable", variable("TRAINYARD_DEADLINE", None), CHANGED, DEADLINE, "POST"),
    ("variable", variable("TRAINYARD_DEADLINE", ""), CHANGED, DEADLINE, "PATCH"),
    ("variable", variable("TRAINYARD_DEADLINE", "3h"), CONSENT, DEADLINE, "PATCH"),
    ("env training", without_training, CHANGED, TRAINING, "PUT"),
    ("env training", environment("training"), CHANGED, TRAINING, "PUT"),
    ("env training", environment("training", PROTECTED), CONSENT, TRAINING, "PUT"),
    (
        "env training",
        environment("training", OURS, MAIN),
        CHANGED,
        f"{TRAINING}/deployment-branch-policies",
        "POST",
    ),
    ("env release", lambda github: github.policies["release"].append(DEV), PERSON, RELEASE, ""),
    ("env release", environment("release", None, rules=[REVIEWER]), PERSON, RELEASE, ""),
    ("secret", attribute("secrets", {}), CHANGED, f"{TRAINING}/secrets/WANDB_API_KEY", "PUT"),
    ("runner", attribute("runners", []), PERSON, f"{BASE}/actions/runners", ""),
    (
        "runner",
        attribute("runners", [GitHub().runner(status="offline")]),
        PERSON,
        f"{BASE}/actions/runners",
        "",
    ),
    (
        "watchdog",
        variable("TRAINYARD_WATCH", None),
        CHANGED,
        f"{BASE}/actions/variables/TRAINYARD_WATCH",
        "POST",
    ),
    ("first green", attribute("runs", []), PERSON, "", ""),
    ("first green", only_planned, PERSON, "", ""),
]
CHANGES = [case for case in CASES if case[4]]


def prepared(case: tuple[str, Prepare, str, str, str]) -> GitHub:
    public = case[0] == "fork PRs"
    github = complete(fresh(visibility="public" if public else "private", private=not public))
    github.approval = "all_external_contributors"
    github.variables["TRAINYARD_DEADLINE"] = "8h"
    github.secrets = {"training": {"WANDB_API_KEY": "sealed"}}
    case[1](github)
    return github


def call_of(case: tuple[str, Prepare, str, str, str]) -> str:
    """The call that changes, as a pattern."""
    path = case[3].rpartition("/")[0] if case[4] == "POST" and "variables" in case[3] else case[3]
    return f"{case[4]} {path}(/enable)?"


@each_case("yes", [True, False])
@each_case("case", CASES)
def test_a_row_is_done_and_read_back_or_left_to_a_person(case: Any, yes: bool) -> None:
    row, _, follows, *_ = case
    github = prepared(case)
    done = set_up(github, WANTED, yes=yes)
    if follows == PERSON or (follows == CONSENT and not yes):
        assert (done[row].verdict, done.code) == (SetupVerdict.YOU, 1)
    else:
        assert (done[row].verdict, done.code) == (SetupVerdict.DONE, 0), done[row]
        calls = len(github.changes())
        again = set_up(github, WANTED, yes=False)
        assert len(github.changes()) == calls, "what is right is not touched"
        assert {each.verdict for each in again.steps} == {SetupVerdict.OK}
    assert not any(call.startswith("DELETE") for call in github.calls)


@each_case("case", CASES)
def test_a_dry_run_changes_nothing_and_names_the_calls(case: Any) -> None:
    github = prepared(case)
    step = set_up(github, WANTED, dry_run=True)[case[0]]
    assert github.changes() == []
    if case[4]:
        assert step.verdict is SetupVerdict.WOULD
        shown = [change.command_line("github.com", "me/lab") for change in step.changes]
        method, path = call_of(case).removesuffix("(/enable)?").split(" ")
        wanted = (
            "gh secret set WANDB_API_KEY" if case[0] == "secret" else f"gh api --method {method} {path[1:]}"
        )
        assert any(line.startswith(wanted) for line in shown), shown


@each_case("fault", (403, 500, "cut", "limit"))
@each_case("case", [case for case in CASES if case[3]])
def test_a_read_that_is_refused_names_the_row_and_goes_on_where_it_can(case: Any, fault: int | str) -> None:
    github = prepared(case)
    github.faults = {f"GET {case[3]}": [fault]}
    done = set_up(github, WANTED)
    names = [each.name for each in done.steps]
    first = next(number for number, each in enumerate(done.steps) if each.verdict is not SetupVerdict.OK)
    if isinstance(fault, str):
        assert {each.verdict for each in done.steps[first:]} == {SetupVerdict.UNREACHED}
    else:
        assert done[case[0]].verdict is SetupVerdict.REFUSED and str(fault) in done[case[0]].text
        assert SetupVerdict.UNREACHED not in {each.verdict for each in done.steps}
    assert done.code == 4 and first <= names.index(case[0])


@each_case("fault", (403, 404, 422, 500, "cut", "after", "ignored", "limit"))
@each_case("case", CHANGES)
def test_a_change_that_is_refused_is_never_reported_as_done(case: Any, fault: int | str) -> None:
    row = case[0]
    github = prepared(case)
    github.faults = {call_of(case): [fault]}
    done = set_up(github, WANTED)
    if fault == "after" and not (row.startswith("env ") and case[4] == "PUT"):
        assert (done[row].verdict, done.code) == (SetupVerdict.DONE, 0)
    elif fault in ("cut", "after", "limit"):
        assert (done[row].verdict, done.code) == (SetupVerdict.UNREACHED, 4)
    else:
        assert (done[row].verdict, done.code) == (SetupVerdict.REFUSED, 4)
        is_of_plan = row.startswith("env ") and fault != 403  # 403 is "not accessible by" this token
        assert ("--no-environments" in done[row].text) is is_of_plan
    github.faults = {}
    assert set_up(github, WANTED).code == 0, "nothing is lost: run again goes on"


@each_case("calls", range(1, 18))
def test_a_network_that_is_cut_after_any_change_loses_nothing(calls: int) -> None:
    github = fresh()
    ask, left = direct(github), [calls]

    def cut_after(method: str, path: str, body: Any = None) -> Any:
        if left[0] <= 0:
            raise ServiceTroubleError("no answer")
        left[0] -= method != "GET"
        return ask(method, path, body)

    wanted = replace(WANTED, secrets=())
    assert set_up(github, wanted, ask=cut_after).code == (4 if left[0] <= 0 else 1)
    assert set_up(github, wanted).code == 1
    github.runners = [github.runner()]
    github.train()
    assert set_up(github, wanted).code == 0


# Copies: public, of an organisation, on a free plan, with a role in AWS.


def test_a_public_repository_gets_no_runner_unless_it_is_allowed() -> None:
    github = fresh(visibility="public", private=False)
    github.variables["TRAINYARD_STORE"] = BUCKET
    refused = set_up(github)
    assert (refused["runner"].verdict, refused["watchdog"].verdict) == (SetupVerdict.YOU, SetupVerdict.WAITS)
    assert "--allow-public" in refused["runner"].text
    assert not any("/runners" in call for call in github.calls), "no token is made"
    assert github.approval == "all_external_contributors"
    assert set_up(complete(github), WantedSetup(allow_public=True)).code == 0


def test_a_runner_of_the_organisation_is_not_listed_and_counts_once_a_run_was_proven() -> None:
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
    taken = set_up(github, WantedSetup(secrets=secrets, environments=False))
    assert (taken.code, github.secrets) == (0, {"": {"WANDB_API_KEY": "sealed"}})


def test_the_tags_of_lineages_may_use_the_environments_of_their_jobs() -> None:
    """A segment runs from its tag where the branch has a newer workflow file."""
    github = fresh(default_branch="trunk")
    set_up(github, WantedSetup(store=BUCKET))
    policies = {
        name: {(each["name"], each["type"]) for each in found} for name, found in github.policies.items()
    }
    assert policies["training"] == policies["eks"] == {("trunk", "branch"), ("trainyard-lineage-*", "tag")}
    assert (policies["images"], policies["release"]) == ({("trunk", "branch")}, {("v*", "tag")})


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
    places = {"TRAINYARD_EKS_CLUSTER": "gpus"}
    secrets = (("training", "WANDB_API_KEY"),)
    wanted = WantedSetup(role=ROLE, secrets=secrets, variables=places, allow_public=True)
    page = (ROOT / "docs" / "runner.md").read_text()
    table = page.partition("| step | who does it |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    names = {step.name.removeprefix("env ") for step in set_up(github, wanted).steps}
    assert {name for name in names if not any(name in row for row in rows)} == set()
    assert {row for row in rows if not any(name in row for name in names)} == set()


@each_case("immutable", [True, False])
def test_a_role_is_trusted_by_commands_in_githubs_form_until_a_run_has_shown_it(immutable: bool) -> None:
    github = complete()
    github.subject = {"use_default": True, "use_immutable_subject": immutable}
    github.runs[0]["created_at"] = "2026-11-01T00:00:00Z"  # before the variable was set: perhaps another role
    unknown = set_up(github, WantedSetup(role=ROLE))
    assert github.variables["TRAINYARD_AWS_ROLE"] == ROLE
    assert (unknown.code, unknown["aws role"].verdict) == (1, SetupVerdict.YOU)
    todo = unknown.todo("aws role")
    assert ("--owner-id 11 --repository-id 22 --output trust.json" in todo) is immutable
    assert "aws iam update-assume-role-policy --role-name trainyard-ci" in todo
    for host, default in (("git.example.org", True), ("github.com", False)):
        github.subject = {"use_default": default}
        assert set_up(github, WantedSetup(role=ROLE), host=host)["aws role"].todo == ()
    github.train()
    assert set_up(github).code == 0


def test_slacks_secret_is_set_for_the_jobs_that_report_too() -> None:
    github = complete()
    secrets = tuple((place, "SLACK_WEBHOOK_URL") for place in ("training", "notify"))
    done = set_up(github, WantedSetup(secrets=secrets))
    assert (done.code, done["env notify"].verdict) == (0, SetupVerdict.DONE)
    assert github.secrets.keys() == {"training", "notify"}
    github.environments["notify"]["protection_rules"] = [REVIEWER]
    assert set_up(github, WantedSetup(secrets=secrets))["env notify"].verdict is SetupVerdict.YOU


def test_the_watchdog_keeps_its_value_and_stays_off_where_nothing_is_registered() -> None:
    for found, flags, kept in (("off", (), "off"), (None, (), "on"), (None, ("--no-watch",), None)):
        github = complete()
        variable("TRAINYARD_WATCH", found)(github)
        assert set_up(github, wanted_setup(parse_args([*flags]))).code == 0
        assert github.variables.get("TRAINYARD_WATCH") == kept


def test_what_polls_gets_its_schedule_where_it_is_wanted_and_nowhere_else() -> None:
    cluster = WantedSetup(variables={"TRAINYARD_EKS_CLUSTER": "gpus"})
    for wanted, expected in ((WantedSetup(), ["watch_runners.yml"]), (cluster, [*POLLS]), (None, [])):
        github = complete()
        github.files = {name: shipped(name) for name in POLLS}
        if wanted is None:
            github.variables["TRAINYARD_WATCH"] = "off"
        assert set_up(github, wanted, yes=False).code == (1 if expected else 0), "a commit needs consent"
        assert set_up(github, wanted).code == 0
        on = {name: yaml.safe_load(text)[True] for name, text in github.files.items()}
        assert [name for name in POLLS if "schedule" in on[name]] == expected
    github.files["watch_runners.yml"], github.variables["TRAINYARD_WATCH"] = "on: push\n", "on"
    assert set_up(github)["poll runners"].verdict is SetupVerdict.YOU


# Kinds of runners: which labels and which time limit are written, and what the plan makes of them.

RUNS_ON = "runs-on=${{ github.run_id }}/family=g5+g6/spot=false"
KINDS = {
    "own machine": ("gpu", "", ["self-hosted", "gpu"]),
    "own machine with self-hosted": ("self-hosted,gpu", "", ["self-hosted", "gpu"]),
    "own machine, with a space": ("gpu box 1", "", ["self-hosted", "gpu box 1"]),
    "scale set": ("arc-gpu", "scale-set", ["arc-gpu"]),
    "machine of GitHub": ("gpu-t4", "hosted", ["gpu-t4"]),
    "GitHub's own label": ("ubuntu-24.04", "", ["ubuntu-24.04"]),
    "RunsOn": (RUNS_ON, "other", [RUNS_ON]),
    "a group": (
        '{"group":"gpu machines","labels":["h100"]}',
        "",
        {"group": "gpu machines", "labels": ["h100"]},
    ),
}
"""--labels and --runner -> the value of runs-on that reaches the machine."""


def wanted_of(labels: str = "", kind: str = "", store: str = BUCKET, *flags: str) -> WantedSetup:
    given = {"--labels": labels, "--runner": kind, "--store": store}
    return wanted_setup(parse_args([*[word for pair in given.items() if pair[1] for word in pair], *flags]))


def planned(github: GitHub) -> dict[str, str]:
    """The plan of a push with the variables that the set-up left."""
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    known = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ID": "1", **github.variables}
    asked = DispatchInputs("configs/smoke.yaml", target=target_for("", known))
    return resolve(asked, config, Segment("1", 1, 1, "a" * 40), variables=known).outputs()


@each_case("name", KINDS)
def test_each_kind_gets_its_labels_its_limit_and_its_command_and_stays_as_it_is(name: str) -> None:
    labels, kind, expected = KINDS[name]
    github = fresh()
    done = set_up(github, wanted_of(labels, kind))
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == expected
    plan, is_own = planned(github), name.startswith("own")
    runner = (
        plan["runner"].format("1") if name == "a group" else plan["runner"]
    )  # the workflow calls format()
    assert json.loads(runner) == json.loads(json.dumps(expected).replace("${{ github.run_id }}", "1"))
    assert plan["job_minutes"] == ("355" if "GitHub" in name else "480")
    assert any("registration-token" in call for call in github.calls) is is_own
    assert done["runner"].verdict is (SetupVerdict.YOU if is_own else SetupVerdict.WAITS)
    before = dict(github.variables)
    github.train()
    again = set_up(github, wanted_of(store=""))
    assert (github.variables, again["runner labels"].verdict) == (before, SetupVerdict.OK)
    # One's own machine is listed, or gone.
    assert again["runner"].verdict is (SetupVerdict.YOU if is_own else SetupVerdict.OK)
    is_lost = "scale set" in name or "GitHub" in name
    assert (set_up(fresh(), wanted_of(labels, kind, FOLDER))["store"].verdict is SetupVerdict.YOU) is is_lost


@each_case(("found", "written"), [("480", "355"), ("", "355"), ("six", "355"), ("200", "200")])
def test_a_limit_beyond_six_hours_is_shortened_for_a_machine_of_github(found: str, written: str) -> None:
    github = fresh()
    github.variables |= {"TRAINYARD_JOB_MINUTES": found} if found else {}
    set_up(github, wanted_of("gpu-t4", "hosted"))
    assert github.variables["TRAINYARD_JOB_MINUTES"] == written


@each_case("place", ["TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"])
@each_case("is_named", [True, False])
def test_codebuild_and_a_cluster_get_no_labels_that_no_machine_has(place: str, is_named: bool) -> None:
    """With labels in the variable a push would wait a day for a machine that nobody registers."""
    github = fresh()
    github.variables |= {} if is_named else {place: "yard"}
    done = set_up(github, wanted_of("", "", BUCKET, *(["--variable", f"{place}=yard"] if is_named else [])))
    assert done["runner labels"].verdict is SetupVerdict.OK
    assert "TRAINYARD_RUNNER_LABELS" not in github.variables
    assert not any("registration-token" in call for call in github.calls)
    assert planned(github)["target"] == ("codebuild" if "CODEBUILD" in place else "eks")


@each_case("value", ['["gpu"', "self-hosted,gpu", "[]", "gpu"])
def test_variables_that_hold_no_labels_are_reported_and_not_replaced(value: str) -> None:
    github = complete()
    github.variables["TRAINYARD_RUNNER_LABELS"] = value
    done = set_up(github)
    assert (done.code, done["runner labels"].verdict, github.changes()) == (1, SetupVerdict.YOU, [])
    assert set_up(github, WantedSetup(labels=("self-hosted", "gpu"))).code == 0


@each_case(("version", "is_old"), [(None, False), ("2.328.0", True), ("2.329.0", False)])
def test_a_runner_that_github_would_not_register_again_is_reported(version: str | None, is_old: bool) -> None:
    github = fresh()
    github.runners = [github.runner() | ({"version": version} if version else {})]
    github.runners += [github.runner(f"cpu-{n}", "self-hosted") for n in range(105)]  # more than a page
    text = set_up(github, wanted_of("gpu"))["runner"].text
    assert ("version 2.328.0 is older than 2.329.0" in text) is is_old and "gpu-1 online" in text


@each_case("words", [["gpu,h100", "scale-set"], ["self-hosted", "hosted"]])
def test_a_machine_that_is_found_by_its_name_has_one_name(words: list[str]) -> None:
    with pytest.raises(Exception, match="by its name alone"):
        wanted_of(*words)
    with pytest.raises(SystemExit):
        parse_args(["--runner", "scale-set"])
