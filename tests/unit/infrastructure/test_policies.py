"""The policies are least privilege: no wildcard, a caller for every action, only calls that are made."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.cluster.demand import Demand
from trainyard.cluster.needed_apis import JOB_KINDS, JobKind
from trainyard.cluster.permissions import needed_permissions
from trainyard.infrastructure.policies import BUILD_GRANTS, GITHUB_GRANTS, SERVICE_TRUST, Caller, Grant
from trainyard.infrastructure.resources import DEPLOYERS
from trainyard.infrastructure.settings import Account, settings_for, wanted_resources

ROOT = Path(__file__).resolve().parents[3]
GATEWAYS = ROOT / "src" / "trainyard" / "gateways"
RUNBOOK = ROOT / "docs" / "runbooks" / "permissions.md"
GRANTS = [*BUILD_GRANTS, *GITHUB_GRANTS]
SERVICES = ("codebuild", "ecr", "logs")
"""Of these, our code calls nothing but what the two roles may do."""
ACTIONS_OF_OPERATIONS = {"s3:HeadObject": "s3:GetObject", "s3:ListObjectsV2": "s3:ListBucket"}
TAKES_NO_RESOURCE = {"ecr:GetAuthorizationToken"}


def role(name: str) -> dict[str, Any]:
    settings = settings_for(
        {"Subjects": ["repo:me/lab:environment:training"], "Cluster": "gpus"},
        Account("123456789012", "us-west-2"),
    )
    return next(found for resource, found in wanted_resources(settings) if resource.name == name)


def statements(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = role(name)["Policies"][0]["PolicyDocument"]["Statement"]
    return found


@pytest.mark.parametrize("name", ["BuildRole", "GitHubRole"])
def test_no_action_has_a_wildcard(name: str) -> None:
    actions = [action for statement in statements(name) for action in statement["Action"]]
    assert [action for action in actions if "*" in action or ":" not in action] == []
    assert len(actions) == len(set(actions)), "an action is granted twice"


@pytest.mark.parametrize("name", ["BuildRole", "GitHubRole"])
def test_a_resource_is_named_wherever_aws_takes_one(name: str) -> None:
    for statement in statements(name):
        for resource in statement["Resource"]:
            if set(statement["Action"]) <= TAKES_NO_RESOURCE:
                assert resource == "*"
                continue
            assert "trainyard" in resource or resource.endswith(":cluster/gpus"), resource
            assert not re.match(r"arn:aws:[a-z0-9]+:[^:]*:[^:]*:\*", resource), resource


def test_nothing_that_changes_the_set_up_is_granted() -> None:
    """Roles, projects and repositories are made by people; what a build pushes cannot be deleted by it."""
    verbs = "Delete|Create(Project|Repository|Bucket|Role)|Update(Project|Role)|Put(Bucket|Role)|Pass"
    assert [a for grant in GRANTS for a in grant.actions if re.search(f":({verbs})", a)] == []
    assert [a for grant in GRANTS for a in grant.actions if a.startswith(("iam:", "sts:", "kms:"))] == []


def test_only_this_project_may_use_the_role_of_builds() -> None:
    condition = role("BuildRole")["AssumeRolePolicyDocument"]["Statement"][0]["Condition"]
    arn = "arn:aws:codebuild:us-west-2:123456789012:project/trainyard"
    assert condition["ArnLike"] == {"aws:SourceArn": arn}
    assert condition["StringEquals"] == {"aws:SourceAccount": "123456789012"}
    assert SERVICE_TRUST["Statement"][0]["Principal"] == {"Service": "codebuild.amazonaws.com"}


def test_the_role_of_github_is_for_named_jobs_only() -> None:
    condition = role("GitHubRole")["AssumeRolePolicyDocument"]["Statement"][0]["Condition"]
    assert list(condition) == ["StringEquals"]
    assert condition["StringEquals"]["token.actions.githubusercontent.com:sub"] == [
        "repo:me/lab:environment:training"
    ]


def test_without_a_cluster_nothing_of_eks_is_granted() -> None:
    settings = settings_for({"Subjects": ["repo:me/lab:environment:x"]}, Account("123456789012", "us-west-2"))
    found = next(each for resource, each in wanted_resources(settings) if resource.name == "GitHubRole")
    sids = [each["Sid"] for each in found["Policies"][0]["PolicyDocument"]["Statement"]]
    assert "FindTheCluster" not in sids and "RunBuilds" in sids


@cache
def calls_of_our_code() -> set[str]:
    """The IAM actions of every AWS operation that a gateway names, except the set-up's own gateway.

    A module that names a service in quotes is searched for names and texts that are operations of it: the way
    in which a client is called differs from module to module.
    """
    from botocore import xform_name
    from botocore.session import get_session

    session = get_session()
    operations = {
        service: {
            xform_name(name): f"{service}:{name}"
            for name in session.get_service_model(service).operation_names
        }
        for service in ("codebuild", "ecr", "logs", "eks", "s3")
    }
    found: set[str] = set()
    for path in GATEWAYS.rglob("*.py"):
        if "aws_setup" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        words = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        for service in (words | set(path.parts)) & operations.keys():
            found |= {operations[service][name] for name in (words | names) & operations[service].keys()}
    return {ACTIONS_OF_OPERATIONS.get(action, action) for action in found}


def granted_to_scripts(grants: tuple[Grant, ...] | list[Grant]) -> set[str]:
    return {action for grant in grants if grant.caller is Caller.SCRIPTS for action in grant.actions}


@pytest.mark.parametrize("action", sorted(granted_to_scripts(GRANTS)))
def test_an_action_that_our_scripts_may_do_is_a_call_that_they_make(action: str) -> None:
    service = action.partition(":")[0]
    called = calls_of_our_code()
    if service in SERVICES and not any(
        each.startswith(f"{service}:") for each in called - {"ecr:DescribeImages"}
    ):
        pytest.skip(f"no gateway calls {service} for builds yet")
    assert action in called, f"{action} is granted, and nothing in gateways/ calls it"


@pytest.mark.parametrize("service", SERVICES)
def test_a_call_that_our_scripts_make_is_granted(service: str) -> None:
    called = {action for action in calls_of_our_code() if action.startswith(f"{service}:")}
    assert called <= {action for grant in GRANTS for action in grant.actions}


def test_the_runbook_lists_every_action_with_its_caller() -> None:
    text = RUNBOOK.read_text()
    for grant in GRANTS:
        row = re.search(rf"^\| `{grant.sid}` \|.*$", text, flags=re.M)
        assert row, f"{grant.sid} is not in {RUNBOOK.name}"
        assert [action for action in grant.actions if f"`{action}`" not in row[0]] == []
        assert str(grant.caller) in row[0]
    listed = set(re.findall(r"^\| `([A-Z]\w+)` \| (?:build|github)", text, flags=re.M))
    assert listed == {grant.sid for grant in GRANTS}


def rules_in_the_runbook(kind: str) -> list[dict[str, Any]]:
    """The rules of the Role or ClusterRole that the runbook gives to the group of GitHub's role."""
    texts = re.findall(r"```yaml\n(.*?)```", RUNBOOK.read_text(), re.S)
    bodies = [body for text in texts for body in yaml.safe_load_all(text) if body]
    assert {b["subjects"][0]["name"] for b in bodies if b["kind"].endswith("Binding")} == {DEPLOYERS}
    found: list[dict[str, Any]] = next(body["rules"] for body in bodies if body["kind"] == kind)
    return found


@pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.name)
def test_the_roles_of_the_runbook_allow_what_a_deployment_needs(kind: JobKind) -> None:
    demand = Demand(namespace="training", queue="gpus", claim="fsx")
    for needed in needed_permissions(demand, kind):
        rules = rules_in_the_runbook("Role" if needed.namespace else "ClusterRole")
        assert any(
            needed.group in rule["apiGroups"]
            and needed.resource in rule["resources"]
            and needed.verb in rule["verbs"]
            for rule in rules
        ), needed
    for rule in [*rules_in_the_runbook("Role"), *rules_in_the_runbook("ClusterRole")]:
        assert "*" not in str(rule), "no wildcard"
