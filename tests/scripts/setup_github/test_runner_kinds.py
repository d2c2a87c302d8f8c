"""Kinds of runners: which labels and which time limit the set-up writes, and what the plan makes of them.

GitHub finds a registered machine by `self-hosted` and its labels, a scale set of actions-runner-controller
and a machine of GitHub by the name alone, and a runner of another service by what that service documents.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.scripts.setup_github.stand_in import Done, GitHub, fresh, set_up

from trainyard.config.load import load_config
from trainyard.errors import ConfigError
from trainyard.github import variables
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.settings import WantedSetup
from trainyard.github.setup_step import SetupVerdict
from trainyard.github.target import target_for
from trainyard.github.variables import RunnerKind
from trainyard.run.segment import Segment

ROOT = Path(__file__).resolve().parents[3]
STORE = "s3://lab-runs/phase2"
FOLDER = "file:///mnt/storage/store"
RUNS_ON = "runs-on=${{ github.run_id }}/family=g5+g6/spot=false"


@dataclass(frozen=True)
class Kind:
    """A kind of runner as GitHub shows it, and what reaches it."""

    names: tuple[str, ...]
    """The labels that its owner knows it by."""
    reached_by: tuple[str, ...]
    flag: str = ""
    """The value of --runner if GitHub does not list the runner."""
    hours: int = 8


KINDS = {
    "own machine, listed": Kind(("gpu",), ("self-hosted", "gpu")),
    "machine of the organisation, listed": Kind(("gpu", "h100"), ("self-hosted", "gpu", "h100")),
    "own machine, not registered yet": Kind(("gpu",), ("self-hosted", "gpu"), "self-hosted"),
    "scale set with a pod": Kind(("arc-gpu",), ("arc-gpu",)),
    "scale set with none": Kind(("arc-gpu",), ("arc-gpu",), "scale-set"),
    "machine of GitHub, listed": Kind(("gpu-t4",), ("gpu-t4",), hours=6),
    "machine of GitHub, of the enterprise": Kind(("gpu-t4",), ("gpu-t4",), "hosted", hours=6),
    "GitHub's own label": Kind(("ubuntu-24.04",), ("ubuntu-24.04",), hours=6),
    "own machine, listed, with a space": Kind(("gpu box 1",), ("self-hosted", "gpu box 1")),
    "RunsOn": Kind((RUNS_ON,), (RUNS_ON,), "other"),
    "another service": Kind(("runs-on/runner=g5",), ("runs-on/runner=g5",), "other"),
}


def world(kind: str) -> GitHub:
    """A repository of an organisation, with the runner listed as GitHub lists this kind."""
    known = KINDS[kind]
    github = fresh(owner={"login": "me", "id": 11, "type": "Organization"})
    if kind.startswith("own machine, listed"):
        github.runners = [github.runner("box", "self-hosted", "Linux", "X64", *known.names)]
    if "of the organisation" in kind:
        github.groups = {1: [github.runner("box", "self-hosted", "Linux", "X64", *known.names)]}
    if "with a pod" in kind:
        github.runners = [github.runner("arc-gpu-x7k2p-runner-9f3dq", *known.names)]
    if kind == "machine of GitHub, listed":
        github.hosted = [{"id": 5, "name": known.names[0], "platform": "linux-x64", "status": "Ready"}]
    return github


def run(github: GitHub, labels: str = "", flag: str = "", *, store: str = STORE, **more: Any) -> Done:
    given = variables.parse_runner_labels(labels) if labels else variables.RunnerSelector(())
    kind = RunnerKind(flag) if flag else None
    return set_up(github, WantedSetup(given.labels, given.group, kind=kind, store=store, **more))


def planned(github: Any) -> dict[str, str]:
    """The plan of a push with the variables that the set-up left."""
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    known = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ID": "1", **github.variables}
    asked = DispatchInputs("configs/smoke.yaml", target=target_for("", known))
    return resolve(asked, config, Segment("1", 1, 1, "a" * 40), variables=known).outputs()


@each_case("with_self_hosted", [False, True], ids=["alone", "with self-hosted"])
@each_case("kind", KINDS)
def test_labels_and_deadline_are_those_of_the_kind_of_runner(kind: str, with_self_hosted: bool) -> None:
    known = KINDS[kind]
    github = world(kind)
    given = ("self-hosted", *known.names) if with_self_hosted else known.names
    # Given with `self-hosted`, labels are those of a registered machine, unless the flag names another kind.
    flag = known.flag
    if with_self_hosted and not flag and "self-hosted" not in known.reached_by:
        flag = {"scale set with a pod": "scale-set"}.get(kind, "hosted")
    run(github, labels=",".join(given), flag=flag)
    expected = given if known.flag == "other" else known.reached_by
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == list(expected)
    plan = planned(github)
    assert json.loads(plan["runner"]) == [label.replace("${{ github.run_id }}", "1") for label in expected]
    minutes, deadline = int(plan["job_minutes"]), int(plan["deadline"].removesuffix("m"))
    assert minutes == (480 if known.hours == 8 else 355)
    assert minutes < known.hours * 60 or known.hours == 8
    assert minutes - deadline == 30, "half an hour is left to store"
    before = dict(github.variables)
    assert run(github)["runner labels"].verdict is SetupVerdict.OK
    assert github.variables == before, "a second call changes nothing"


@each_case("kind", [kind for kind, known in KINDS.items() if known.flag])
def test_labels_that_github_lists_nowhere_are_asked_about_and_not_written(kind: str) -> None:
    github = world(kind)
    done = run(github, labels=",".join(KINDS[kind].names))
    assert done["runner labels"].verdict is SetupVerdict.YOU
    assert "--runner KIND" in done["runner labels"].todo[0].command
    assert "TRAINYARD_RUNNER_LABELS" not in github.variables
    assert "TRAINYARD_JOB_MINUTES" not in github.variables
    assert not any("registration-token" in call for call in github.calls)


@each_case("flag", ["scale-set", "hosted"])
@each_case("labels", ["gpu,h100", "self-hosted,gpu,h100", "self-hosted"])
def test_a_machine_that_is_found_by_its_name_has_one_name(labels: str, flag: str) -> None:
    with pytest.raises(ConfigError, match="by its name alone"):
        variables.labels_for(RunnerKind(flag), variables.parse_runner_labels(labels).labels)


@each_case("kind", [kind for kind in KINDS if "own machine" not in kind])
def test_only_a_machine_of_ones_own_gets_the_command_that_registers_it(kind: str) -> None:
    known = KINDS[kind]
    github = world(kind)
    done = run(github, labels=",".join(known.names), flag=known.flag)
    assert not any("registration-token" in call for call in github.calls)
    listed = "listed" in kind or "pod" in kind
    assert done["runner"].verdict is (SetupVerdict.OK if listed else SetupVerdict.WAITS)
    assert done["first green"].verdict is SetupVerdict.YOU, "the first run is what shows it"
    github.train()
    for job in github.jobs[91]:
        job["labels"] = list(known.reached_by)
    assert run(github)["runner"].verdict is SetupVerdict.OK


def test_a_wrong_list_of_before_is_put_right_by_naming_the_kind() -> None:
    github = world("scale set with none")
    github.variables["TRAINYARD_RUNNER_LABELS"] = '["self-hosted","arc-gpu"]'
    run(github, flag="scale-set")
    assert github.variables["TRAINYARD_RUNNER_LABELS"] == '["arc-gpu"]'


@each_case(("found", "limit"), [("480", 355), ("", 355), ("six", 355), ("355", 355), ("200", 200)])
@each_case("deadline", ["", "450m", "7h", "325m", "90m", "tomorrow"])
def test_limits_that_are_too_late_for_a_machine_of_github_are_corrected(
    deadline: str, found: str, limit: int
) -> None:
    """GitHub ends a job there after six hours, and the plan refuses a deadline after the limit."""
    github = world("machine of GitHub, listed")
    github.variables |= {"TRAINYARD_DEADLINE": deadline} if deadline else {}
    github.variables |= {"TRAINYARD_JOB_MINUTES": found} if found else {}
    done = run(github, labels="gpu-t4")
    assert github.variables["TRAINYARD_JOB_MINUTES"] == str(limit)
    if deadline:
        known = {"450m": 450, "7h": 420, "325m": 325, "90m": 90}.get(deadline, 999)
        expected = deadline if known <= limit - 10 else f"{limit - 30}m"
        assert github.variables["TRAINYARD_DEADLINE"] == expected
        assert int(planned(github)["job_minutes"]) == limit
        texts = [step.text for step in done.steps if step.verdict is SetupVerdict.DONE]
        assert expected == deadline or any("DEADLINE" in text for text in texts)


@each_case("named", ["wanted", "found"])
@each_case("store", [FOLDER, STORE])
@each_case("kind", KINDS)
def test_a_folder_of_a_machine_that_ends_with_its_job_is_no_store(kind: str, store: str, named: str) -> None:
    known = KINDS[kind]
    github = world(kind)
    github.variables |= {"TRAINYARD_STORE": store} if named == "found" else {}
    given = store if named == "wanted" else ""
    done = run(github, labels=",".join(known.names), flag=known.flag, store=given)["store"]
    is_lost = store == FOLDER and ("scale set" in kind or "of GitHub" in kind or kind == "GitHub's own label")
    assert (done.verdict is SetupVerdict.YOU) is is_lost
    if is_lost:
        assert "s3://" in done.todo[0].command
        assert github.variables.get("TRAINYARD_STORE") == (store if named == "found" else None)


@each_case("named", ["wanted", "found"])
@each_case("place", ["TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"])
def test_codebuild_and_a_cluster_get_no_labels_that_no_machine_has(place: str, named: str) -> None:
    """With labels in the variable a push would wait a day for a machine that nobody registers."""
    github = fresh()
    github.variables |= {place: "yard"} if named == "found" else {}
    done = run(github, variables={place: "yard"} if named == "wanted" else {})
    assert done["runner labels"].verdict is SetupVerdict.OPTIONAL
    assert "TRAINYARD_RUNNER_LABELS" not in github.variables
    assert not any("registration-token" in call for call in github.calls)
    plan = planned(github)
    assert plan["target"] == ("codebuild" if "CODEBUILD" in place else "eks")
    assert (plan["deadline"], plan["job_minutes"]) == ("450m", "480")


def test_github_may_refuse_to_list_its_machines() -> None:
    github = world("machine of GitHub, listed")
    github.faults = {"GET /orgs/me/actions/hosted-runners": [403]}
    assert run(github, labels="gpu-t4")["runner labels"].verdict is SetupVerdict.YOU
    said = run(github, labels="gpu-t4", flag="hosted")["runner"]
    assert said.verdict is SetupVerdict.WAITS
    assert "manage_runners:org" in said.text


def test_a_kind_without_a_name_asks_for_it() -> None:
    done = run(fresh(), flag="scale-set")
    assert "needs the name of the machine" in done["runner labels"].text


@each_case("case", ["member", "no member", "not listed"])
@each_case("labels", [("self-hosted", "h100"), ("arc-gpu",), ()])
def test_a_group_of_the_organisation_is_found_by_its_name(labels: tuple[str, ...], case: str) -> None:
    github = fresh(owner={"login": "me", "id": 11, "type": "Organization"})
    box = github.runner("box", *labels)
    github.groups = {1: [box] if case == "member" else [], 2: [github.runner("other", *labels)]}
    if case == "not listed":
        github.faults = {"GET /orgs/me/actions/runner-groups": [403] * 9}
    value = {"group": "group 1", "labels": list(labels)} if labels else {"group": "group 1"}
    done = run(github, labels=json.dumps(value))
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == value
    verdicts = {"member": SetupVerdict.OK, "no member": SetupVerdict.YOU, "not listed": SetupVerdict.WAITS}
    assert done["runner"].verdict is verdicts[case]
    assert ("gh auth refresh --scopes admin:org" in done["runner"].text) is (case == "not listed")
    assert run(github)["runner labels"].verdict is SetupVerdict.OK, "a second call changes nothing"
    asked = json.loads(planned(github)["runner"].format("1"))
    assert asked == {"group": "group 1", "labels": list(labels)}


@each_case(("version", "is_old"), [(None, False), ("2.328.0", True), ("2.329.0", False)])
def test_a_runner_that_github_would_not_register_again_is_reported(version: str | None, is_old: bool) -> None:
    github = world("own machine, listed")
    github.runners[0] |= {"version": version} if version else {}
    text = run(github, labels="gpu")["runner"].text
    assert ("version 2.328.0 is older than 2.329.0" in text) is is_old
