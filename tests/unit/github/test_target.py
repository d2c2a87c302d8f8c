"""The target of a job: variables, the names of repositories, and the jobs that a role trusts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cases import each_case

from trainyard.errors import ConfigError
from trainyard.github import variables
from trainyard.github.repository import parse_repository, repository_of_remote
from trainyard.github.target import HOSTED, Target, machine_for, target_for
from trainyard.github.trust_policy import AUDIENCE, ISSUER, Subject, is_immutable, trust_policy

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


@each_case(
    ("url", "host"),
    [
        ("https://github.com/me/lab", "github.com"),
        ("https://github.com/me/lab.git", "github.com"),
        ("https://github.com/me/lab/", "github.com"),
        ("https://me:token@github.com/me/lab.git", "github.com"),
        ("https://git.example.org:8443/me/lab.git", "git.example.org:8443"),
        ("git@github.com:me/lab.git", "github.com"),
        ("github.com:me/lab", "github.com"),
        ("ssh://git@github.com/me/lab.git", "github.com"),
        ("ssh://git@ssh.github.com:443/me/lab.git", "github.com"),
        ("ssh://git@git.example.org:2222/me/lab", "git.example.org"),
        ("git@Git.Example.org:me/lab.git", "git.example.org"),
    ],
)
def test_the_url_of_a_remote_gives_host_and_repository(url: str, host: str) -> None:
    assert repository_of_remote(url) == (host, "me/lab")


@pytest.mark.parametrize(
    "url", ["", "/srv/lab.git", "file:///srv/me/lab", "https://github.com/me", "../lab", "C:\\x"]
)
def test_a_remote_that_is_not_on_github_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--repository OWNER/REPO"):
        repository_of_remote(url)


@pytest.mark.parametrize(
    ("text", "host", "found"),
    [
        ("me/lab", "", ("github.com", "me/lab")),
        ("me/lab", "git.example.org", ("git.example.org", "me/lab")),
        ("git.example.org/me/lab", "other", ("git.example.org", "me/lab")),
        ("localhost:8443/me/lab", "", ("localhost:8443", "me/lab")),
    ],
)
def test_a_name_may_have_a_host(text: str, host: str, found: tuple[str, str]) -> None:
    assert parse_repository(text, host=host) == found


@pytest.mark.parametrize(
    "text", ["lab", "me/", "a/b/c/d", "me/lab?x", "https://github.com/me/lab", "me/l ab"]
)
def test_an_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not OWNER/REPO"):
        parse_repository(text)


ROOT = Path(__file__).resolve().parents[3]


def test_variables_and_secrets_are_those_in_the_docs() -> None:
    page = (ROOT / "docs" / "variables.md").read_text()
    first, second = page.split("| variable | meaning |")[1].split("| secret | meaning |")
    own = {variables.LABELS, variables.STORE, variables.WATCH, variables.ROLE}
    rows = re.compile(r"^\| `(\w+)` \|", re.M)
    assert set(rows.findall(first)) == variables.OTHERS | own
    assert set(rows.findall(second.split("\n\n")[0])) == set(variables.SECRETS)


def test_the_workflows_read_each_variable_by_name() -> None:
    """All at once may have more than the 128 KB that a program takes in one variable."""
    files = [path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    read = set(re.findall(r"\bvars\.(\w+)", "".join(files)))
    own = {variables.LABELS, variables.STORE, variables.WATCH, variables.ROLE}
    assert variables.OTHERS | own <= read
    assert not any("toJSON(vars)" in text for text in files)


def test_the_expected_environments_are_those_of_the_workflows() -> None:
    files = {
        path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    used = [settings.get("environment") for file in files.values() for settings in file["jobs"].values()]
    names = {each["name"] if isinstance(each, dict) else each for each in used if each}
    chosen = {name for name in names if "plan" in name}  # by the plan
    assert names - chosen - {"github-pages"} | {"training", "eks"} == {
        *variables.ENVIRONMENTS,
        variables.NOTIFY,
    }


@each_case("wrong", ["0", "-1", "many", "1.5", "1000", "9" * 9, "٣"])
def test_a_number_is_whole_and_within_its_bounds(wrong: str) -> None:
    assert variables.count_in({"A": ""}, "A", most=999, default=20) == 20
    assert variables.count_in({"A": "999"}, "A", most=999) == 999
    with pytest.raises(ConfigError, match=r"A: .* is not a whole number from 1 to 999"):
        variables.count_in({"A": wrong}, "A", most=999)


@each_case(
    ("text", "labels"),
    [
        ("gpu", ("gpu",)),
        ("gpu, h100,gpu", ("gpu", "h100")),
        ("runs-on/runner=4cpu-gpu", ("runs-on/runner=4cpu-gpu",)),
        ('["self-hosted","gpu"]', ("self-hosted", "gpu")),
        ("Self-Hosted,gpu", ("Self-Hosted", "gpu")),
        ("gpu box 1, h100", ("gpu box 1", "h100")),
        ("runs-on=${{ github.run_id }}/family=g5+g6", ("runs-on=${{ github.run_id }}/family=g5+g6",)),
        ("@my-org/gpu (large)", ("@my-org/gpu (large)",)),
        ('{"group":"gpu machines","labels":"h100"}', ("h100",)),
    ],
)
def test_labels_are_read_from_commas_or_json(text: str, labels: tuple[str, ...]) -> None:
    assert variables.parse_runner_labels(text).labels == labels


@each_case(
    "text",
    [
        *("", ",", "[]", "[1]", '["gpu"', "a  b", "$(x)", '{"a": 1}', "[[]]", "{0}"),
        *('["a\\nb"]', '[" a"]', "${{ github.token }}", "a'b", "x" * 257, "{}", '{"labels":["gpu"]}'),
        *('{"group":""}', '{"group":1}', '{"group":"a","labels":[1]}', '{"group":"a","runs":1}'),
    ],
)
def test_an_invalid_list_of_labels_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        variables.parse_runner_labels(text)


@each_case("url", ["s3://", "s3://A", "s3:/x", "file://x", "file:///", "https://x", "/mnt", " s3://ml"])
def test_an_invalid_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a store"):
        variables.parse_store(url)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("PROGRAM_ENV", ["training"]),
        ("TRAINYARD_RUNNERS_TOKEN", ["watch"]),
        ("watch/SLACK_BOT_TOKEN", ["watch"]),
        ("notify/SLACK_BOT_TOKEN", ["notify"]),
        ("SLACK_BOT_TOKEN", ["training", "notify"]),
        ("SLACK_WEBHOOK_URL", ["training", "notify"]),
    ],
)
def test_a_secret_goes_to_the_environments_that_read_it(text: str, places: list[str]) -> None:
    assert variables.parse_secret(text) == tuple((place, text.rpartition("/")[2]) for place in places)


@pytest.mark.parametrize(
    "url", ["s3://ml-runs", "s3://ml-runs/phase2/", "file:///mnt/storage/store", "file:///a b"]
)
def test_a_valid_store_is_accepted(url: str) -> None:
    assert variables.parse_store(url) == url.rstrip("/")


ROLE = "arn:aws:iam::123456789012:role/ci/trainyard-ci"
IDS = (11, 22)
PAGE = Path(__file__).parents[3] / "docs" / "runbooks" / "permissions.md"


def token(ids: tuple[int, ...], where: str, **claims: str) -> dict[str, str]:
    """Return the claims of GitHub's token for a job of me/lab; `where` is the end of its subject."""
    repository = f"me@{ids[0]}/lab@{ids[1]}" if ids else "me/lab"
    return {"aud": AUDIENCE, "sub": f"repo:{repository}:{where}"} | claims


def trusts(ids: tuple[int, ...], claims: dict[str, str]) -> bool:
    """Whether STS trusts the claims: each condition of StringEquals equals its claim."""
    (statement,) = trust_policy(Subject("me/lab", "training", *ids), ROLE)["Statement"]
    assert (list(statement["Condition"]), statement["Action"]) == (
        ["StringEquals"],
        "sts:AssumeRoleWithWebIdentity",
    )
    wanted: dict[str, Any] = statement["Condition"]["StringEquals"]
    return all(claims.get(key.removeprefix(f"{ISSUER}:")) == value for key, value in wanted.items())


def test_the_jobs_of_the_environment_are_trusted_and_no_other() -> None:
    places = ["environment:training", "ref:refs/heads/main", "pull_request", "environment:release"]
    places += ["environment:training2", "ref:refs/tags/training"]
    for ids in ((), IDS):
        assert [place for place in places if trusts(ids, token(ids, place))] == ["environment:training"]
        assert not trusts(ids, token(ids, "environment:training", aud="https://github.com/me"))
        assert not trusts(IDS if ids == () else (), token(ids, "environment:training")), "the wrong form"


def test_a_repository_that_took_over_the_name_is_trusted_by_the_names_alone() -> None:
    assert not trusts(IDS, token((98, 99), "environment:training"))
    assert trusts((), token((), "environment:training"))  # why the immutable form is there


def test_a_colon_in_a_name_is_written_as_github_does() -> None:
    assert Subject("me/lab", "eu:gpu").text == "repo:me/lab:environment:eu%3Agpu"


def test_a_subject_that_is_none_or_many_is_refused() -> None:
    for repository, environment, message in (
        ("me", "training", "is not OWNER/REPO"),
        ("me/*", "training", "is not OWNER/REPO"),
        ("me/lab\n", "training", "is not OWNER/REPO"),
        ("me/lab", "", "would match more than one place, or none"),
        ("me/lab", "*", "would match more than one place"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            Subject(repository, environment)


def test_the_page_on_permissions_has_the_policy_that_is_written() -> None:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.S)
    (block,) = [each for each in blocks if "oidc-provider" in each]
    policy = json.dumps(trust_policy(Subject("OWNER/REPO", "training", 1, 2), ROLE))
    assert json.loads(block) == json.loads(policy.replace("@1", "@OWNER_ID").replace("@2", "@REPO_ID"))
    provider = trust_policy(Subject("me/lab", "training"), ROLE.replace("aws", "aws-cn"))["Statement"][0]
    assert provider["Principal"]["Federated"] == f"arn:aws-cn:iam::123456789012:oidc-provider/{ISSUER}"


def test_the_form_comes_from_github_or_from_the_creation_date() -> None:
    for answer, created, immutable in (
        ({"use_immutable_subject": True}, "2020-01-01T00:00:00Z", True),
        ({"use_immutable_subject": False}, "2026-11-01T00:00:00Z", False),
        ({}, "2026-07-14T23:59:59Z", False),
        ({"use_default": True}, "2026-07-15T00:00:00Z", True),
    ):
        assert is_immutable(answer, created) is immutable
