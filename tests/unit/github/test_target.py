"""The target of a job, by the repository's variables."""

import json

import pytest
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.github.target import Target, machine_for, target_for

RUN = {"GITHUB_RUN_ID": "4711", "GITHUB_RUN_ATTEMPT": "2", "TRAINYARD_CODEBUILD_PROJECT": "trainyard"}


def test_your_own_runner_has_one_queue_and_the_labels_of_one_variable() -> None:
    gpu = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","gpu"]'}
    machine = machine_for(Target.GPU_RUNNER, gpu, on_cpu=False)
    assert json.loads(machine.runs_on) == ["self-hosted", "gpu"]
    named = {"TRAINYARD_RUNNER_LABELS": '["self-hosted","h100"]', "TRAINYARD_INSTANCE_TYPE": "p5.4xlarge"}
    other = machine_for(Target.GPU_RUNNER, named, on_cpu=False)
    assert (other.labels, other.hardware) == (("self-hosted", "h100"), "p5.4xlarge")
    assert machine.queue == other.queue == "trainyard-gpu"


@pytest.mark.parametrize("target", Target)
def test_no_job_is_routed_where_nobody_says_where(target: Target) -> None:
    assert machine_for(target, {}, on_cpu=False).labels == ()


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
    assert target_for("", {"GITHUB_ACTIONS": "true", **variables}) is target
    assert target_for("", variables) is Target.HERE
    for asked in Target:
        assert target_for(asked, {"GITHUB_ACTIONS": "true", **variables}) is asked


def test_a_job_of_a_cluster_is_routed_by_its_operators_and_waits_in_no_queue_of_ours() -> None:
    named = {"TRAINYARD_EKS_CLUSTER": "ml-prod", "GITHUB_RUN_ID": "4711"}
    machine = machine_for(Target.EKS, named | {"TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge"}, on_cpu=False)
    assert (machine.labels, machine.cluster, machine.hardware) == ((), "ml-prod", "p5.48xlarge")
    assert (machine.is_known, machine.queue) == (True, "trainyard-eks-4711")
    assert not machine_for(Target.EKS, {}, on_cpu=False).is_known
    with pytest.raises(ConfigError, match="TRAINYARD_EKS_CLUSTER: 'a b' is not a name"):
        machine_for(Target.EKS, {"TRAINYARD_EKS_CLUSTER": "a b"}, on_cpu=False)


@pytest.mark.parametrize("text", ["gpu", "[]", '["a", 1]', '["two  spaces"]', "{}", " "])
def test_labels_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TRAINYARD_RUNNER_LABELS"):
        machine_for(Target.GPU_RUNNER, {"TRAINYARD_RUNNER_LABELS": text}, on_cpu=False)


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
    machine = machine_for(Target.GPU_RUNNER, known, on_cpu=False)
    assert (machine.is_known, machine.group) == (True, group)
    numbered = [f"a=7-{attempt}" if label.startswith("a=") else label for label in labels]
    assert list(machine.labels) == numbered
    # GitHub's format() replaces {0} and takes a doubled brace for one, as Python's does.
    asked = json.loads(machine.runs_on.format(attempt))
    assert asked == ({"group": group, "labels": numbered} if group else numbered)


def test_codebuild_starts_a_machine_of_its_own_with_a_label_of_its_own() -> None:
    machine = machine_for(Target.CODEBUILD, RUN, on_cpu=False)
    assert machine.labels == (
        "codebuild-trainyard-4711-2",
        "image:linux-5.0",
        "instance-size:gpu_small",
        "train-4711-2",
    )
    assert machine.queue == "trainyard-codebuild-4711-2"
    assert machine.hardware == "g5.xlarge"


def test_a_job_that_is_run_again_asks_for_a_machine_of_its_own_attempt() -> None:
    """The workflow inserts the current attempt; nothing else may be in braces there."""
    [first, image, size, own] = json.loads(machine_for(Target.CODEBUILD, RUN, on_cpu=False).runs_on)
    assert (first, own) == ("codebuild-trainyard-4711-{0}", "train-4711-{0}")
    assert "{" not in image + size
    machine = machine_for(Target.CODEBUILD, RUN, on_cpu=False)
    assert machine.runs_on.format("3").count("4711-3") == 2


@pytest.mark.parametrize(
    ("compute", "on_cpu", "label"),
    [
        ("", True, "instance-size:large"),
        ("2xlarge", True, "instance-size:2xlarge"),
        ("gpu_small", True, "instance-size:gpu_small"),
        ("fleet:h100s", False, "fleet:h100s"),
    ],
)
def test_the_size_follows_the_configuration_and_the_variable(compute: str, on_cpu: bool, label: str) -> None:
    machine = machine_for(Target.CODEBUILD, RUN | {"TRAINYARD_CODEBUILD_COMPUTE": compute}, on_cpu=on_cpu)
    assert machine.labels[2] == label


@pytest.mark.parametrize(
    ("image", "compute", "on_cpu"),
    [
        ("linux-5.0", "gpu_small", False),
        ("ubuntu-7.0", "2xlarge", True),
        ("arm-3.0", "xlarge", True),
        ("linux-ec2-latest", "large", True),
        ("arm-3.0", "fleet:arms", False),
        ("custom-linux-123456789012.dkr.ecr.eu-west-1.amazonaws.com/trainyard:1", "gpu_small", False),
    ],
)
def test_an_image_goes_with_the_sizes_that_codebuild_lists_for_it(
    image: str, compute: str, on_cpu: bool
) -> None:
    asked = RUN | {"TRAINYARD_CODEBUILD_IMAGE": image, "TRAINYARD_CODEBUILD_COMPUTE": compute}
    assert machine_for(Target.CODEBUILD, asked, on_cpu=on_cpu).labels[1] == f"image:{image}"


@each_case(
    ("change", "named"),
    [
        ({"TRAINYARD_CODEBUILD_PROJECT": "a b"}, "TRAINYARD_CODEBUILD_PROJECT"),
        ({"TRAINYARD_CODEBUILD_IMAGE": "a b"}, "TRAINYARD_CODEBUILD_IMAGE"),
        ({"TRAINYARD_CODEBUILD_IMAGE": "linx-5.0"}, "TRAINYARD_CODEBUILD_IMAGE: 'linx-5.0' is not an image"),
        ({"TRAINYARD_CODEBUILD_IMAGE": "linux"}, "TRAINYARD_CODEBUILD_IMAGE: 'linux' is not an image"),
        ({"TRAINYARD_CODEBUILD_IMAGE": "linux-lambda-python3.12"}, "cannot train: Lambda ends after 15 min"),
        ({"TRAINYARD_CODEBUILD_IMAGE": "windows-3.0"}, "windows-3.0 cannot train"),
        ({"TRAINYARD_CODEBUILD_COMPUTE": "gpu_large"}, "V100"),
        ({"TRAINYARD_CODEBUILD_COMPUTE": "large"}, "has no GPU"),
        ({"TRAINYARD_CODEBUILD_COMPUTE": "huge"}, "neither gpu_small"),
        ({"TRAINYARD_CODEBUILD_COMPUTE": "fleet:"}, "neither gpu_small"),
    ],
)
def test_what_codebuild_would_ignore_in_silence_is_refused(change: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        machine_for(Target.CODEBUILD, RUN | change, on_cpu=False)
