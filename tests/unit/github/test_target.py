"""The target of a job, by the repository's variables."""

import json

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.github.target import HOSTED, Target, machine_for, target_for

RUN = {"GITHUB_RUN_ID": "4711", "TRAINYARD_CODEBUILD_PROJECT": "trainyard"}


def test_your_own_runner_has_one_queue_and_the_labels_of_one_variable() -> None:
    gpu = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]'}
    machine = machine_for(Target.GPU_RUNNER, gpu)
    assert machine.runs_on == ["self-hosted", "gpu"]
    named = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","h100"]', "TRAINYARD_INSTANCE_TYPE": "p5.4xlarge"}
    other = machine_for(Target.GPU_RUNNER, named)
    assert (other.labels, other.hardware) == (("self-hosted", "h100"), "p5.4xlarge")
    assert machine.queue == other.queue == "trainyard-gpu"


@pytest.mark.parametrize(
    ("labels", "project", "cluster", "target"),
    [
        ("", "", "", Target.GPU_RUNNER),
        ("[]", "", "", Target.GPU_RUNNER),
        ("", "yard", "", Target.CODEBUILD),
        ("", "", "ml", Target.EKS),
        ("", "yard", "ml", Target.CODEBUILD),
        ('["gpu"]', "yard", "ml", Target.GPU_RUNNER),
    ],
)
def test_a_run_that_names_no_target_takes_what_the_repository_is_set_up_for(
    labels: str, project: str, cluster: str, target: Target
) -> None:
    variables = {"TRAINYARD_RUNNER_LABELS": labels, "TRAINYARD_CODEBUILD_PROJECT": project}
    variables["TRAINYARD_EKS_CLUSTER"] = cluster
    assert target_for("", {**variables}) is target
    for asked in Target:
        assert target_for(asked, {**variables}) is target_for(asked.upper(), {**variables}) is asked


@each_case(
    ("asked", "labels"),
    [("gpu", '["gpu"]'), ('["a","b"]', '["a","b"]'), ('{"group":"g"}', '{"group":"g"}'), ("as set up", "")],
)
def test_anything_but_the_name_of_a_target_is_a_runner(asked: str, labels: str) -> None:
    variables = {"TRAINYARD_CODEBUILD_PROJECT": "yard"}
    assert target_for(asked, variables) is (Target.GPU_RUNNER if labels else Target.CODEBUILD)
    assert variables.get("TRAINYARD_RUNNER_LABELS", "") == labels


def test_a_hosted_machine_or_one_of_its_network_follows_a_job_of_a_cluster_in_no_queue_of_ours() -> None:
    named = {"TRAINYARD_EKS_CLUSTER": "ml-prod", "GITHUB_RUN_ID": "4711"}
    machine = machine_for(Target.EKS, named | {"TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge"})
    assert (machine.labels, machine.cluster, machine.hardware) == (HOSTED, "ml-prod", "p5.48xlarge")
    assert (machine.is_known, machine.queue) == (True, "trainyard-eks-4711")
    assert machine_for(Target.EKS, named | {"TRAINYARD_EKS_RUNNER": '["vpc"]'}).runs_on == ["vpc"]
    assert not machine_for(Target.EKS, {}).is_known
    with pytest.raises(ConfigError, match="TRAINYARD_EKS_CLUSTER: 'a b' is not a name"):
        machine_for(Target.EKS, {"TRAINYARD_EKS_CLUSTER": "a b"})


@each_case("attempt", ["1", "3"])
@each_case(
    "labels",
    [(), ("gpu",), ("self-hosted", "gpu box 1"), ("a=${{ github.run_id }}-${{github.run_attempt}}",)],
)
@each_case("group", ["", "gpu machines"])
def test_labels_and_group_reach_runs_on_with_the_numbers_of_the_run(
    group: str, labels: tuple[str, ...], attempt: str
) -> None:
    if not (group or labels):
        return
    value = {"group": group, "labels": list(labels)} if group else list(labels)
    known = {
        "TRAINYARD_RUNNER_LABELS": json.dumps(value),
        "GITHUB_RUN_ATTEMPT": attempt,
        "GITHUB_RUN_ID": "7",
    }
    machine = machine_for(Target.GPU_RUNNER, known)
    assert (machine.is_known, machine.group) == (True, group)
    numbered = [f"a=7-{attempt}" if label.startswith("a=") else label for label in labels]
    assert list(machine.labels) == numbered
    assert machine.runs_on == ({"group": group, "labels": numbered} if group else numbered)


def test_a_hosted_machine_follows_a_build_in_no_queue_of_ours() -> None:
    machine = machine_for(Target.CODEBUILD, RUN)
    assert (machine.labels, machine.queue) == (HOSTED, "trainyard-codebuild-4711")
    with pytest.raises(ConfigError, match="TRAINYARD_CODEBUILD_PROJECT: 'a b' is not a name"):
        machine_for(Target.CODEBUILD, {"TRAINYARD_CODEBUILD_PROJECT": "a b"})
