"""Each step by rule: what is there × what GitHub does to a call → verdict, exit code, state of GitHub.

All other steps of the repository are done, so that the step alone decides the exit code.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from tests.cases import each_case
from tests.scripts.init_github.stand_in import Done, GitHub, complete, direct, fresh, set_up

from trainyard.errors import ServiceTroubleError
from trainyard.github.setup import WantedSetup
from trainyard.github.setup_step import SetupVerdict

WANTED = WantedSetup(
    labels=("self-hosted", "gpu"),
    store="file:///mnt/storage/store",
    variables={"TRAINYARD_DEADLINE": "8h"},
    secrets=(("training", "WANDB_API_KEY"),),
    allow_public=True,
)
BASE = "/repos/me/lab"
PERSON, CHANGED, CONSENT, ENOUGH = "a person", "changed", "changed with consent", "enough"
"""The result of a state if GitHub accepts every call."""


@dataclass(frozen=True)
class Case:
    """One step in one state."""

    row: str
    state: str
    prepare: Callable[[Any], None]
    """Takes the step back from done to the state."""
    follows: str
    read: str = ""
    """The call that finds the state, as a pattern."""
    change: str = ""
    """The call that fixes it, as a pattern."""

    def __str__(self) -> str:
        return f"{self.row}, {self.state}"


def as_it_is(_: Any) -> None:
    pass


def absent(variable: str) -> Callable[[Any], None]:
    return lambda github: github.variables.pop(variable)


def variable(name: str, row: str) -> list[Case]:
    read = f"GET {BASE}/actions/variables"
    patch = f"PATCH {BASE}/actions/variables/{name}"

    def value(text: str) -> Callable[[Any], None]:
        return lambda github: github.variables.update({name: text})

    return [
        Case(row, "absent", absent(name), CHANGED, read, f"POST {read[4:]}"),
        Case(row, "empty", value(""), CHANGED, read, patch),
        Case(row, "different", value('["self-hosted","other"]'), CONSENT, read, patch),
        Case(row, "right", as_it_is, ENOUGH, read),
    ]


def environment(name: str) -> list[Case]:
    path, row = f"{BASE}/environments/{name}", f"env {name}"
    read, put, branches = f"GET {path}", f"PUT {path}", f"{path}/deployment-branch-policies"
    dev = {"id": 101, "name": "dev", "type": "branch"}

    def absent(github: Any) -> None:
        del github.environments[name], github.policies[name]

    def policy(value: Any) -> Callable[[Any], None]:
        def change(github: Any) -> None:
            github.environments[name]["deployment_branch_policy"] = value
            github.policies[name] = []

        return change

    def open_to(*branches: Any, kept: bool = False) -> Callable[[Any], None]:
        def change(github: Any) -> None:
            github.policies[name] = [*(github.policies[name] if kept else ()), *branches]

        return change

    protected = {"protected_branches": True, "custom_branch_policies": False}
    return [
        Case(row, "absent", absent, CHANGED, read, put),
        Case(row, "without a limit", policy(None), CHANGED, read, put),
        Case(row, "limited to protected branches", policy(protected), CONSENT, read, put),
        Case(row, "cut in the middle", open_to(), CHANGED, f"GET {branches}", f"POST {branches}"),
        Case(row, "open to another branch too", open_to(dev, kept=True), PERSON, f"GET {branches}"),
        Case(row, "open to another branch instead", open_to(dev), PERSON, read),
        Case(row, "right", as_it_is, ENOUGH, read),
    ]


def attribute(name: str, value: Any) -> Callable[[Any], None]:
    return lambda github: setattr(github, name, deepcopy(value))


def unfit(github: Any) -> None:
    github.runs.clear()
    github.train("failure", check="failure")


def only_planned(github: Any) -> None:
    job = github.jobs[91][0]
    github.jobs[91] = [job, {**job, "name": "Train and prove", "conclusion": "skipped"}]


ACTIONS, RUNNERS = f"GET {BASE}/actions/permissions", f"GET {BASE}/actions/runners"
FORKS = f"{BASE}/actions/permissions/fork-pr-contributor-approval"
WORKFLOW = f"{BASE}/actions/workflows/training_ci.yml"
SECRETS = f"{BASE}/environments/training/secrets"
OFF = attribute("actions", {"enabled": False})
LOCAL = attribute("actions", {"enabled": True, "allowed_actions": "local_only"})
NO_WORKFLOW, NO_SECRET = attribute("workflows", {}), attribute("secrets", {})
ASLEEP = attribute("workflows", {"training_ci.yml": "disabled_inactivity"})
SWITCHED_OFF = attribute("workflows", {"training_ci.yml": "disabled_manually"})
ENABLE = f"PUT {WORKFLOW}/enable"


CASES = [
    Case("repository", "right", as_it_is, ENOUGH),
    Case("actions", "off", OFF, CONSENT, ACTIONS, f"PUT {BASE}/actions/permissions"),
    Case("actions", "local only", LOCAL, PERSON, ACTIONS),
    Case("actions", "right", as_it_is, ENOUGH, ACTIONS),
    Case("workflow", "absent", NO_WORKFLOW, PERSON, f"GET {WORKFLOW}"),
    Case("workflow", "asleep", ASLEEP, CHANGED, f"GET {WORKFLOW}", ENABLE),
    Case("workflow", "switched off", SWITCHED_OFF, CONSENT, f"GET {WORKFLOW}", ENABLE),
    Case("workflow", "right", as_it_is, ENOUGH, f"GET {WORKFLOW}"),
    Case("fork PRs", "different", as_it_is, CHANGED, f"GET {FORKS}", f"PUT {FORKS}"),
    Case("fork PRs", "right", attribute("approval", "all_external_contributors"), ENOUGH, f"GET {FORKS}"),
    *variable("TRAINYARD_RUNNER_LABELS", "runner labels"),
    *variable("TRAINYARD_STORE", "store"),
    *variable("TRAINYARD_DEADLINE", "variable"),
    *environment("training"),
    *environment("release"),
    Case("secret", "absent", NO_SECRET, CHANGED, f"GET {SECRETS}", f"PUT {SECRETS}/WANDB_API_KEY"),
    Case("secret", "right", as_it_is, ENOUGH, f"GET {SECRETS}"),
    Case("runner", "absent", attribute("runners", []), PERSON, RUNNERS),
    Case("runner", "offline", attribute("runners", [GitHub().runner(status="offline")]), PERSON, RUNNERS),
    Case("runner", "right", as_it_is, ENOUGH, RUNNERS),
    Case("first green", "absent", attribute("runs", []), PERSON),
    Case("first green", "a plan and no training", only_planned, PERSON),
    Case("first green", "a machine that is not fit", unfit, PERSON),
    Case("first green", "right", as_it_is, ENOUGH),
    Case("watchdog", "absent", absent("TRAINYARD_WATCH"), CHANGED, "", f"POST {BASE}/actions/variables"),
    Case("watchdog", "right", as_it_is, ENOUGH),
]
FINAL = {ENOUGH: SetupVerdict.OK, CHANGED: SetupVerdict.DONE, CONSENT: SetupVerdict.DONE}


def prepared(case: Case) -> GitHub:
    public = case.row == "fork PRs"
    github = complete(fresh(visibility="public" if public else "private", private=not public))
    github.variables["TRAINYARD_DEADLINE"] = "8h"
    github.secrets = {"training": {"WANDB_API_KEY": "sealed"}}
    case.prepare(github)
    return github


def run(github: GitHub, **more: Any) -> Done:
    return set_up(github, WANTED, **more)


@each_case("yes", [True, False])
@each_case("case", CASES, ids=str)
def test_a_step_is_done_and_read_back_or_left_to_a_person(case: Case, yes: bool) -> None:
    github = prepared(case)
    before = github.changes()
    done = run(github, yes=yes)
    step = done[case.row]
    if case.follows == PERSON or (case.follows == CONSENT and not yes):
        assert (step.verdict, done.code) == (SetupVerdict.YOU, 1)
        assert case.change == "" or github.changes() == before
    else:
        assert (step.verdict, done.code) == (FINAL[case.follows], 0)
    assert not any(call.startswith("DELETE") for call in github.calls)
    if done.code == 0:
        calls = len(github.changes())
        again = run(github, yes=False)
        assert len(github.changes()) == calls, "what is right is not touched"
        assert {each.verdict for each in again.steps} <= {SetupVerdict.OK, SetupVerdict.OPTIONAL}


@each_case("case", CASES, ids=str)
def test_a_dry_run_changes_nothing_and_names_the_calls(case: Case) -> None:
    github = prepared(case)
    done = run(github, dry_run=True)
    assert github.changes() == []
    step = done[case.row]
    if case.change and case.follows != PERSON:
        assert (step.verdict, done.code) == (SetupVerdict.WOULD, 1)
        method, path = case.change.split(" ")
        shown = [change.command_line("github.com", "me/lab") for change in step.changes]
        secret = case.row == "secret"
        wanted = "gh secret set WANDB_API_KEY" if secret else f"gh api --method {method} {path[1:]}"
        assert any(line.startswith(wanted) for line in shown), shown


READS = [case for case in CASES if case.state == "right" and case.read]


@each_case("fault", (403, 404, 500, "cut", "limit"))
@each_case("case", READS, ids=str)
def test_a_read_that_is_refused_names_the_step_and_goes_on_where_it_can(case: Case, fault: int | str) -> None:
    github = prepared(case)
    github.faults = {case.read: [fault]}
    done = run(github)
    step = done[case.row]
    absent_by_404 = fault == 404 and case.row.split()[0] in ("workflow", "env")
    if isinstance(fault, str):
        after = done.steps[[each.name for each in done.steps].index(case.row) :]
        shared = case.read.endswith("/variables")
        assert step.verdict is SetupVerdict.UNREACHED
        assert {each.verdict for each in after} == {SetupVerdict.UNREACHED} or shared
        assert done.code == 4
        github.faults = {}
        assert run(github).code == 0, "run again goes on"
    elif absent_by_404:
        assert step.verdict not in (SetupVerdict.OK, SetupVerdict.DONE)
        assert done.code in (1, 4)
    else:
        assert (step.verdict, done.code) == (SetupVerdict.REFUSED, 4)
        assert str(fault) in step.text
        assert SetupVerdict.UNREACHED not in {each.verdict for each in done.steps}


CHANGES = [case for case in CASES if case.change and case.follows in (CHANGED, CONSENT)]


@each_case("fault", (403, 404, 422, 500, "cut", "after", "ignored", "limit"))
@each_case("case", CHANGES, ids=str)
def test_a_change_that_is_refused_is_never_reported_as_done(case: Case, fault: int | str) -> None:
    github = prepared(case)
    github.faults = {case.change: [fault]}
    done = run(github)
    step = done[case.row]
    if fault == "after" and not (case.row.startswith("env ") and case.change.startswith("PUT")):
        assert (step.verdict, done.code) == (SetupVerdict.DONE, 0)
    elif fault in ("cut", "after", "limit"):
        assert (step.verdict, done.code) == (SetupVerdict.UNREACHED, 4)
    else:
        assert (step.verdict, done.code) == (SetupVerdict.REFUSED, 4)
        is_of_plan = case.row.startswith("env ") and fault != 403  # 403 is "not accessible by" this token
        assert ("--no-environments" in step.text) is is_of_plan
    github.faults = {}
    assert run(github).code == 0, "nothing is lost: run again goes on"


@each_case("calls", range(1, 16))
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
    final = set_up(github, wanted)
    assert final.code == 0, final
    assert {step.name for step in set_up(complete(), wanted).steps} == {step.name for step in final.steps}
