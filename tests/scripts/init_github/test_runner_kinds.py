"""Kinds of runners: which labels and which time limit the set-up writes, and what the plan makes of them.

GitHub finds a registered machine by `self-hosted` and its labels, a scale set of actions-runner-controller
and a machine of GitHub by the name alone, and a runner of another service by what that service documents.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.scripts.init_github.stand_in import fresh, set_up

from trainyard.commands.init_github import parse_args, wanted_setup
from trainyard.config.load import load_config
from trainyard.errors import ConfigError
from trainyard.github import variables
from trainyard.github.run_plan import DispatchInputs, resolve
from trainyard.github.setup import WantedSetup
from trainyard.github.setup_step import SetupVerdict
from trainyard.github.target import target_for
from trainyard.github.variables import RunnerKind
from trainyard.run.segment import Segment

ROOT = Path(__file__).resolve().parents[3]
STORE, FOLDER = "s3://lab-runs/phase2", "file:///mnt/storage/store"
RUNS_ON = "runs-on=${{ github.run_id }}/family=g5+g6/spot=false"
KINDS = {
    "own machine": ("gpu", "", ["self-hosted", "gpu"]),
    "own machine with self-hosted": ("self-hosted,gpu", "", ["self-hosted", "gpu"]),
    "own machine, with a space": ("gpu box 1", "", ["self-hosted", "gpu box 1"]),
    "scale set": ("arc-gpu", "scale-set", ["arc-gpu"]),
    "machine of GitHub": ("gpu-t4", "hosted", ["gpu-t4"]),
    "GitHub's own label": ("ubuntu-24.04", "", ["ubuntu-24.04"]),
    "RunsOn": (RUNS_ON, "other", [RUNS_ON]),
    "another service": ("runs-on/runner=g5", "other", ["runs-on/runner=g5"]),
}
"""--labels and --runner -> the labels that reach the machine."""


def wanted(*flags: str, labels: str = "", kind: str = "", store: str = STORE) -> WantedSetup:
    given = {"--labels": labels, "--runner": kind, "--store": store}
    words = [word for flag, value in given.items() if value for word in (flag, value)]
    return wanted_setup(parse_args([*words, *flags]))


def planned(github: Any) -> dict[str, str]:
    """The plan of a push with the variables that the set-up left."""
    config = load_config(ROOT / "configs" / "smoke.yaml").config
    known = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_NAME": "push", "GITHUB_RUN_ID": "1", **github.variables}
    asked = DispatchInputs("configs/smoke.yaml", target=target_for("", known))
    return resolve(asked, config, Segment("1", 1, 1, "a" * 40), variables=known).outputs()


def test_each_kind_gets_its_labels_its_limit_and_its_command_and_stays_as_it_is() -> None:
    for name, (labels, kind, expected) in KINDS.items():
        github = fresh()
        done = set_up(github, wanted(labels=labels, kind=kind))
        assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == expected, name
        plan, is_githubs = planned(github), "GitHub" in name
        assert json.loads(plan["runner"]) == [each.replace("${{ github.run_id }}", "1") for each in expected]
        assert plan["job_minutes"] == ("355" if is_githubs else "480"), name
        assert int(plan["job_minutes"]) - int(plan["deadline"].removesuffix("m")) == 30, "left to store"
        is_own = name.startswith("own")
        assert any("registration-token" in call for call in github.calls) is is_own, name
        assert done["runner"].verdict is (SetupVerdict.YOU if is_own else SetupVerdict.WAITS), name
        before = dict(github.variables)
        again = set_up(github, wanted(store=""))
        assert (github.variables, again["runner labels"].verdict) == (before, SetupVerdict.OK), name
        github.train(labels=expected)
        follows = SetupVerdict.YOU if is_own else SetupVerdict.OK  # one's own machine is listed, or gone
        assert set_up(github, wanted(store=""))["runner"].verdict is follows, name


def test_a_folder_of_a_machine_that_ends_with_its_job_is_no_store() -> None:
    for name, (labels, kind, _) in KINDS.items():
        for is_named in (True, False):
            github = fresh()
            github.variables |= {} if is_named else {"TRAINYARD_STORE": FOLDER}
            step = set_up(github, wanted(labels=labels, kind=kind, store=FOLDER if is_named else ""))["store"]
            is_lost = "scale set" in name or "GitHub" in name
            assert (step.verdict is SetupVerdict.YOU) is is_lost, name
            if is_lost:
                assert "s3://" in step.todo[0].command
                assert github.variables.get("TRAINYARD_STORE") == (None if is_named else FOLDER)


@each_case("kind", ["scale-set", "hosted"])
@each_case("labels", ["gpu,h100", "self-hosted,gpu,h100", "self-hosted"])
def test_a_machine_that_is_found_by_its_name_has_one_name(labels: str, kind: str) -> None:
    with pytest.raises(ConfigError, match="by its name alone"):
        variables.labels_for(RunnerKind(kind), variables.parse_runner_labels(labels).labels)


def test_a_kind_without_labels_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--runner", "scale-set"])
    assert "give both" in capsys.readouterr().err
    assert isinstance(parse_args([]), argparse.Namespace)


@each_case(
    ("found", "written"), [("480", "355"), ("", "355"), ("six", "355"), ("355", "355"), ("200", "200")]
)
def test_a_limit_beyond_six_hours_is_shortened_for_a_machine_of_github(found: str, written: str) -> None:
    github = fresh()
    github.variables |= {"TRAINYARD_JOB_MINUTES": found} if found else {}
    set_up(github, wanted(labels="gpu-t4", kind="hosted"))
    assert github.variables["TRAINYARD_JOB_MINUTES"] == written


def test_codebuild_and_a_cluster_get_no_labels_that_no_machine_has() -> None:
    """With labels in the variable a push would wait a day for a machine that nobody registers."""
    for place in ("TRAINYARD_CODEBUILD_PROJECT", "TRAINYARD_EKS_CLUSTER"):
        for is_named in (True, False):
            github = fresh()
            github.variables |= {} if is_named else {place: "yard"}
            done = set_up(github, wanted(*(["--variable", f"{place}=yard"] if is_named else [])))
            assert done["runner labels"].verdict is SetupVerdict.OPTIONAL
            assert "TRAINYARD_RUNNER_LABELS" not in github.variables
            assert not any("registration-token" in call for call in github.calls)
            plan = planned(github)
            assert plan["target"] == ("codebuild" if "CODEBUILD" in place else "eks")
            assert (plan["deadline"], plan["job_minutes"]) == ("450m", "480")


@each_case("labels", [("self-hosted", "h100"), ()])
def test_a_group_of_the_organisation_is_written_and_a_run_shows_its_machine(labels: tuple[str, ...]) -> None:
    github = fresh(owner={"login": "me", "id": 11, "type": "Organization"})
    value = {"group": "gpu machines", "labels": list(labels)} if labels else {"group": "gpu machines"}
    assert set_up(github, wanted(labels=json.dumps(value)))["runner"].verdict is SetupVerdict.WAITS
    assert json.loads(github.variables["TRAINYARD_RUNNER_LABELS"]) == value
    assert json.loads(planned(github)["runner"].format("1")) == {"group": "gpu machines", "labels": [*labels]}
    github.train(labels=labels)
    again = set_up(github, wanted(store=""))
    assert again["runner labels"].verdict is again["runner"].verdict is SetupVerdict.OK


@each_case(("version", "is_old"), [(None, False), ("2.328.0", True), ("2.329.0", False)])
def test_a_runner_that_github_would_not_register_again_is_reported(version: str | None, is_old: bool) -> None:
    github = fresh()
    github.runners = [github.runner() | ({"version": version} if version else {})]
    text = set_up(github, wanted(labels="gpu"))["runner"].text
    assert ("version 2.328.0 is older than 2.329.0" in text) is is_old
