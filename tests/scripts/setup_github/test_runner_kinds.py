"""Kinds of runners: which labels and which time limit the set-up writes, and what the plan makes of them.

GitHub finds a registered machine by `self-hosted` and its labels, a scale set of actions-runner-controller
and a machine of GitHub by the name alone, and a runner of another service by what that service documents.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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


def world(fresh: Any, kind: str, known: Kind) -> Any:
    """A repository of an organisation, with the runner listed as GitHub lists this kind."""
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


@pytest.fixture
def set_up(set_up: Any) -> Any:
    def run(github: Any, *, labels: str = "", flag: str = "", store: str = STORE, **more: Any) -> Any:
        given = variables.parse_runner_labels(labels) if labels else variables.RunnerSelector(())
        kind = RunnerKind(flag) if flag else None
        wanted = WantedSetup(labels=given.labels, group=given.group, kind=kind, store=store, **more)
        return set_up(github, wanted)

    return run


def planned(github: Any) -> dict[str, str]:
    """The plan of a push with the variables that the set-up left."""
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    known = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ID": "1", **github.variables}
    asked = DispatchInputs("configs/smoke.yaml", target=target_for("", known))
    return resolve(asked, config, Segment("1", 1, 1, "a" * 40), variables=known).outputs()


@pytest.mark.parametrize("with_self_hosted", [False, True], ids=["alone", "with self-hosted"])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_deadline_are_those_of_the_kind_of_runner(
    fresh: Any, set_up: Any, kind: str, with_self_hosted: bool
) -> None:
    known = KINDS[kind]
    github = world(fresh, kind, known)
    given = ("self-hosted", *known.names) if with_self_hosted else known.names
    # Given with `self-hosted`, labels are those of a registered machine, unless the flag names another kind.
    flag = known.flag
    if with_self_hosted and not flag and "self-hosted" not in known.reached_by:
        flag = {"scale set with a pod": "scale-set"}.get(kind, "hosted")
    set_up(github, labels=",".join(given), flag=flag)
    expected = given if known.flag == "other" else known.reached_by
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == list(expected)
    plan = planned(github)
    assert json.loads(plan["runner"]) == [label.replace("${{ github.run_id }}", "1") for label in expected]
    minutes, deadline = int(plan["job_minutes"]), int(plan["deadline"].removesuffix("m"))
    assert minutes == (480 if known.hours == 8 else 355)
    assert minutes < known.hours * 60 or known.hours == 8
    assert minutes - deadline == 30, "half an hour is left to store"


@pytest.mark.parametrize("kind", [kind for kind, known in KINDS.items() if known.flag])
def test_labels_that_github_lists_nowhere_are_asked_about_and_not_written(
    fresh: Any, set_up: Any, kind: str
) -> None:
    github = world(fresh, kind, KINDS[kind])
    done = set_up(github, labels=",".join(KINDS[kind].names))
    assert done["runner labels"].verdict is SetupVerdict.YOU
    assert "--runner KIND" in done["runner labels"].todo[0].command
    assert "TRAINYARD_RUNNER_LABELS" not in github.variables
    assert "TRAINYARD_JOB_MINUTES" not in github.variables
    assert not any("registration-token" in call for call in github.calls)


@pytest.mark.parametrize("flag", ["scale-set", "hosted"])
@pytest.mark.parametrize("labels", ["gpu,h100", "self-hosted,gpu,h100", "self-hosted"])
def test_a_machine_that_is_found_by_its_name_has_one_name(labels: str, flag: str) -> None:
    with pytest.raises(ConfigError, match="by its name alone"):
        variables.labels_for(RunnerKind(flag), variables.parse_runner_labels(labels).labels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_without_flags_changes_nothing(fresh: Any, set_up: Any, kind: str) -> None:
    known = KINDS[kind]
    github = world(fresh, kind, known)
    set_up(github, labels=",".join(known.names), flag=known.flag)
    before = dict(github.variables)
    again = set_up(github)
    assert github.variables == before
    assert again["runner labels"].verdict is SetupVerdict.OK


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "own machine" not in kind])
def test_only_a_machine_of_ones_own_gets_the_command_that_registers_it(
    fresh: Any, set_up: Any, kind: str
) -> None:
    known = KINDS[kind]
    github = world(fresh, kind, known)
    done = set_up(github, labels=",".join(known.names), flag=known.flag)
    assert not any("registration-token" in call for call in github.calls)
    listed = "listed" in kind or "pod" in kind
    assert done["runner"].verdict is (SetupVerdict.OK if listed else SetupVerdict.WAITS)
    assert done["first green"].verdict is SetupVerdict.YOU, "the first run is what shows it"
    github.train()
    for job in github.jobs[91]:
        job["labels"] = list(known.reached_by)
    assert set_up(github)["runner"].verdict is SetupVerdict.OK


def test_a_wrong_list_of_before_is_put_right_by_naming_the_kind(fresh: Any, set_up: Any) -> None:
    github = world(fresh, "scale set with none", KINDS["scale set with none"])
    github.variables["TRAINYARD_RUNNER_LABELS"] = '["self-hosted","arc-gpu"]'
    set_up(github, flag="scale-set")
    assert github.variables["TRAINYARD_RUNNER_LABELS"] == '["arc-gpu"]'


@pytest.mark.parametrize(
    ("found", "written"), [("480", "355"), ("", "355"), ("six", "355"), ("355", "355"), ("200", "200")]
)
def test_a_limit_beyond_six_hours_is_shortened_for_a_machine_of_github(
    fresh: Any, set_up: Any, found: str, written: str
) -> None:
    github = world(fresh, "machine of GitHub, listed", KINDS["machine of GitHub, listed"])
    github.variables |= {"TRAINYARD_JOB_MINUTES": found} if found else {}
    set_up(github, labels="gpu-t4")
    assert github.variables["TRAINYARD_JOB_MINUTES"] == written


@pytest.mark.parametrize("minutes", ["", "480", "355", "200"])
@pytest.mark.parametrize("deadline", ["450m", "7h", "325m", "90m", "tomorrow"])
def test_a_deadline_that_is_too_late_for_a_machine_of_github_is_corrected(
    fresh: Any, set_up: Any, deadline: str, minutes: str
) -> None:
    """The plan refuses a deadline after the limit that the set-up has just shortened."""
    github = world(fresh, "machine of GitHub, listed", KINDS["machine of GitHub, listed"])
    github.variables |= {"TRAINYARD_DEADLINE": deadline}
    github.variables |= {"TRAINYARD_JOB_MINUTES": minutes} if minutes else {}
    done = set_up(github, labels="gpu-t4")
    known = {"450m": 450, "7h": 420, "325m": 325, "90m": 90}.get(deadline, 999)
    limit = int(github.variables["TRAINYARD_JOB_MINUTES"])
    expected = deadline if known <= limit - 10 else f"{limit - 30}m"
    assert github.variables["TRAINYARD_DEADLINE"] == expected
    assert int(planned(github)["job_minutes"]) == limit
    if expected != deadline:
        assert any(step.verdict is SetupVerdict.DONE and "DEADLINE" in step.text for step in done.steps)


@pytest.mark.parametrize("named", ["wanted", "found"])
@pytest.mark.parametrize("store", [FOLDER, STORE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_a_machine_that_ends_with_its_job_is_no_store(
    fresh: Any, set_up: Any, kind: str, store: str, named: str
) -> None:
    known = KINDS[kind]
    github = world(fresh, kind, known)
    github.variables |= {"TRAINYARD_STORE": store} if named == "found" else {}
    given = store if named == "wanted" else ""
    done = set_up(github, labels=",".join(known.names), flag=known.flag, store=given)["store"]
    is_lost = store == FOLDER and ("scale set" in kind or "of GitHub" in kind or kind == "GitHub's own label")
    assert (done.verdict is SetupVerdict.YOU) is is_lost
    if is_lost:
        assert "s3://" in done.todo[0].command
        assert github.variables.get("TRAINYARD_STORE") == (store if named == "found" else None)


@pytest.mark.parametrize("named", ["wanted", "found"])
@pytest.mark.parametrize("place", ["TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"])
def test_codebuild_and_a_cluster_get_no_labels_that_no_machine_has(
    fresh: Any, set_up: Any, place: str, named: str
) -> None:
    """With labels in the variable a push would wait a day for a machine that nobody registers."""
    github = fresh()
    more = {"variables": {place: "yard"}} if named == "wanted" else {}
    github.variables |= {place: "yard"} if named == "found" else {}
    done = set_up(github, **more)
    assert done["runner labels"].verdict is SetupVerdict.OPTIONAL
    assert "TRAINYARD_RUNNER_LABELS" not in github.variables
    assert not any("registration-token" in call for call in github.calls)
    plan = planned(github)
    assert plan["target"] == ("codebuild" if "CODEBUILD" in place else "eks")
    assert (plan["deadline"], plan["job_minutes"]) == ("450m", "480")


def test_github_may_refuse_to_list_its_machines(fresh: Any, set_up: Any) -> None:
    github = world(fresh, "machine of GitHub, listed", KINDS["machine of GitHub, listed"])
    github.faults = {"GET /orgs/me/actions/hosted-runners": [403]}
    assert set_up(github, labels="gpu-t4")["runner labels"].verdict is SetupVerdict.YOU
    said = set_up(github, labels="gpu-t4", flag="hosted")["runner"]
    assert said.verdict is SetupVerdict.WAITS
    assert "manage_runners:org" in said.text


def test_a_kind_without_a_name_asks_for_it(fresh: Any, set_up: Any) -> None:
    done = set_up(fresh(), flag="scale-set")
    assert "needs the name of the machine" in done["runner labels"].text


@pytest.mark.parametrize("case", ["member", "no member", "not listed"])
@pytest.mark.parametrize("labels", [("self-hosted", "h100"), ("arc-gpu",), ()])
def test_a_group_of_the_organisation_is_found_by_its_name(
    fresh: Any, set_up: Any, labels: tuple[str, ...], case: str
) -> None:
    github = fresh(owner={"login": "me", "id": 11, "type": "Organization"})
    box = github.runner("box", *labels)
    github.groups = {1: [box] if case == "member" else [], 2: [github.runner("other", *labels)]}
    if case == "not listed":
        github.faults = {"GET /orgs/me/actions/runner-groups": [403] * 9}
    value = {"group": "group 1", "labels": list(labels)} if labels else {"group": "group 1"}
    done = set_up(github, labels=json.dumps(value))
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == value
    verdicts = {"member": SetupVerdict.OK, "no member": SetupVerdict.YOU, "not listed": SetupVerdict.WAITS}
    assert done["runner"].verdict is verdicts[case]
    assert ("gh auth refresh --scopes admin:org" in done["runner"].text) is (case == "not listed")
    assert set_up(github)["runner labels"].verdict is SetupVerdict.OK, "a second call changes nothing"
    asked = json.loads(planned(github)["runner"].format("1"))
    assert asked == {"group": "group 1", "labels": list(labels)}


@pytest.mark.parametrize(("version", "is_old"), [(None, False), ("2.328.0", True), ("2.329.0", False)])
def test_a_runner_that_github_would_not_register_again_is_reported(
    fresh: Any, set_up: Any, version: str | None, is_old: bool
) -> None:
    github = world(fresh, "own machine, listed", KINDS["own machine, listed"])
    github.runners[0] |= {"version": version} if version else {}
    text = set_up(github, labels="gpu")["runner"].text
    assert ("version 2.328.0 is older than 2.329.0" in text) is is_old
